"""The guide lists every action with its parameters, and tests that are there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from millrace.server.sqs.actions import SQS
from tests.server.aws.site import AwsSite
from tests.server.server_process import Process
from tests.support.timeouts import scaled

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/guide/sqs.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| ([A-Z][A-Za-z]+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)


class Row(NamedTuple):
    """An action."""

    parameters: list[str]
    errors: list[str]
    tests: list[str]


def rows() -> dict[str, Row]:
    """The actions that are listed."""
    return {
        name: Row(
            parameters.split(", "),
            re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", errors),
            re.findall(r"`(\w+)`", tests),
        )
        for name, parameters, errors, tests in _ROW.findall(GUIDE)
    }


def sources() -> dict[str, str]:
    """The tests of this folder, with what they are run for."""
    found: dict[str, str] = {}
    for path in Path(__file__).parent.glob("test_*.py"):
        for part in path.read_text(encoding="utf-8").split("\n\n\n"):
            found.update(
                (name, part) for name in re.findall(r"^def (test_\w+)", part, re.MULTILINE)
            )
    return found


def _run(line: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "millrace.cli", *shlex.split(line, comments=True)[1:]]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=scaled(60)
    ).stdout


def _messages(looked: bytes) -> list[dict[str, str]]:
    found = msgspec.json.decode(looked)["ReceiveMessageResponse"]["ReceiveMessageResult"]
    messages: list[dict[str, str]] = found["Message"]
    return messages


@pytest.mark.process
def test_the_first_steps_of_the_page_lead_where_it_says(tmp_path: Path) -> None:
    commands, _, *_ = re.findall(r"^```\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    programs = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    told = re.findall(r"^```text\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    [peek] = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    first, add, key = commands.splitlines()
    assert first == "millrace serve &"
    with Process(tmp_path / "data") as server:
        environment = {**os.environ, "MILLRACE_DATA": str(tmp_path / "data")}
        said = [_run(line, environment) for line in (add, key)]
        found = dict(re.findall(r"(aws_\w+)\W+(\S+)", said[-1]))
        environment |= {name.upper(): value for name, value in found.items()}
        environment["AWS_ENDPOINT_URL_SQS"] = f"http://127.0.0.1:{server.port}"
        environment["AWS_DEFAULT_REGION"] = "us-east-1"
        for program, expected in zip(programs, told, strict=True):
            ran = subprocess.run(
                [sys.executable, "-c", program],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=scaled(60),
            )
            assert ran.stdout == expected, ran.stderr
        looked = subprocess.run(
            ["bash", "-c", peek.replace("7070", str(server.port)).replace("millrace-data", "data")],
            cwd=tmp_path,
            capture_output=True,
            check=True,
            timeout=scaled(60),
        ).stdout
        assert [one["Body"] for one in _messages(looked)] == ["from afar"]


@pytest.mark.process
def test_the_settings_of_the_page_declare_their_queues(tmp_path: Path) -> None:
    [declared] = re.findall(r"^```toml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "millrace.toml"
    file.write_text(declared, encoding="utf-8")
    with AwsSite(tmp_path / "data", "--config", file) as site:
        listed = site.aws().sqs.list_queues()["QueueUrls"]
    names = [url.rpartition("/")[2] for url in listed]
    assert names == ["invoices", "invoices-dead", "orders.fifo"]


def test_every_action_is_listed_with_its_parameters() -> None:
    found = {
        name: [field.encode_name for field in msgspec.structs.fields(action.takes)]
        for name, action in SQS.actions.items()
    }
    assert {name: row.parameters for name, row in rows().items()} == found


def test_the_tests_that_it_names_are_there() -> None:
    named = [test for row in rows().values() for test in row.tests]
    assert len(named) > len(SQS.actions)
    assert [test for test in named if test not in sources()] == []


def test_every_error_that_it_lists_is_seen_by_a_test_of_its_row() -> None:
    tests = sources()
    unseen = {
        name: [code for code in row.errors if not any(code in tests[test] for test in row.tests)]
        for name, row in rows().items()
    }
    # Those of a batch's entries are those of the action that is done for each.
    left = {name: codes for name, codes in unseen.items() if codes and "Batch" not in name}
    assert left == {}
