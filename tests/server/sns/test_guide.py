"""The program of the page on SNS runs; its table lists every action, and tests that are there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from millrace.server.sns.all import SNS
from millrace.server.sns.others import UNSUPPORTED
from tests.server.aws.site import AwsSite

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "sns.md"


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
            timeout=60,
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


def test_the_tests_that_it_names_are_there() -> None:
    here = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    named = {test for _, tests in rows().values() for test in tests}
    assert named <= here
    assert [name for name, (_, tests) in rows().items() if not tests] == []
