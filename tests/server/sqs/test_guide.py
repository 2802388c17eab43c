"""The guide lists every action with its parameters, and tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from millrace.server.sqs.all import SQS

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/guide/sqs.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| ([A-Z][A-Za-z]+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)


def rows() -> dict[str, tuple[list[str], list[str]]]:
    """Parameters and tests of each action."""
    return {
        name: (parameters.split(", "), re.findall(r"`(\w+)`", tests))
        for name, parameters, _, tests in _ROW.findall(GUIDE)
    }


def test_every_action_is_listed_with_its_parameters() -> None:
    found = {
        name: [field.encode_name for field in msgspec.structs.fields(action.takes)]
        for name, action in SQS.actions.items()
    }
    assert {name: parameters for name, (parameters, _) in rows().items()} == found


def test_the_tests_that_it_names_are_there() -> None:
    here = "".join(
        path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")
    )
    named = [test for _, tests in rows().values() for test in tests]
    assert len(named) > len(SQS.actions)
    assert [test for test in named if f"def {test}(" not in here] == []
