"""The program of the page on SNS runs; its table lists every action, and tests that are there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from millrace import limits
from millrace.server.sns import faults
from millrace.server.sns.actions import SNS
from millrace.server.sns.unsupported import UNSUPPORTED
from tests.server.aws.site import AwsSite
from tests.support.timeouts import scaled

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "sns.md"


@pytest.mark.process
def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    [program] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    with AwsSite(tmp_path / "data") as site:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "AWS_ENDPOINT_URL": site.url,
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": site.root.id,
                "AWS_SECRET_ACCESS_KEY": site.root.secret,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(60),
        )
        assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["Type"], told["Message"], told["Subject"]) == (
        "Notification",
        "100 hammers",
        "order",
    )


_ROW = re.compile(r"^\| ([A-Z][A-Za-z, ]+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)


def rows() -> dict[str, tuple[str, list[str]]]:
    """What is said of the parameters of each action, and its tests."""
    found: dict[str, tuple[str, list[str]]] = {}
    for names, parameters, refused, tests in _ROW.findall(GUIDE.read_text(encoding="utf-8")):
        for name in names.split(", "):
            found[name] = (f"{parameters} {refused}", re.findall(r"`(\w+)`", tests))
    return found


def test_every_action_is_listed_with_its_parameters() -> None:
    listed = rows()
    assert set(listed) == set(SNS.actions) - set(UNSUPPORTED)
    missing = [
        (name, field.encode_name)
        for name, (told, _) in listed.items()
        for field in msgspec.structs.fields(SNS.actions[name].takes)
        if not re.search(rf"\b{field.encode_name}\b", told)
    ]
    assert missing == []


def test_every_error_of_this_server_is_listed() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    source = (Path(faults.__file__)).read_text(encoding="utf-8")
    codes = set(re.findall(r'query="(\w+)"', source)) | {"UnsupportedOperation"}
    assert {code for code in codes if not re.search(rf"\b{code}\b", text)} == set()


def test_the_limits_that_it_names_are_those_that_hold() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for told in (
        f"{limits.SNS_MESSAGE_BYTES // 1024} KiB, its attributes counted",
        f"from {limits.SNS_MESSAGE_BYTES_MIN:,} to {limits.SNS_MESSAGE_BYTES_MAX:,} bytes",
        f"up to {limits.SNS_LARGE_SUBSCRIPTIONS_MAX} subscriptions, all of them of queues",
        f"a line of up to {limits.SNS_SUBJECT_CHARS_MAX} characters",
        f"up to {limits.SNS_ATTRIBUTES_MAX} attributes",
        f"up to {limits.SUBSCRIPTIONS_MAX:,} subscriptions",
    ):
        assert told in text


def test_the_tests_that_it_names_are_there() -> None:
    here = "".join(
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")
    )
    named = {test for _, tests in rows().values() for test in tests}
    assert len(named) > len(rows())
    assert [test for test in sorted(named) if f"def {test}(" not in here] == []
    assert [name for name, (_, tests) in rows().items() if not tests] == []
