"""The book of the chores is tried on histories made by hand."""

from __future__ import annotations

import pytest

from tests.crash.findings import Findings
from tests.crash.served.chores import Chores
from tests.crash.served.events import AnyChore, Assign, Assigned, LookChores, Worked

ASSIGNED: list[AnyChore] = [Assign(11), Assigned(11, 1)]
WORKED: list[AnyChore] = [*ASSIGNED, Worked(11, 1, 1_000, 2_000)]

GOOD: dict[str, list[AnyChore]] = {
    "confirmed and there": [*ASSIGNED, LookChores(0, [(1, 11)], 1)],
    "worked on before it was confirmed": [
        Assign(11),
        Worked(11, 1, 1_000, 2_000),
        Assigned(11, 1),
        LookChores(1_500, [], 1),
    ],
    "worked on again when its time was over": [*WORKED, Worked(11, 1, 2_000, 3_000)],
    "there again when its time was over": [*WORKED, LookChores(2_000, [(1, 11)], 1)],
    "confirmed, and its place is forgotten": [
        Assign(11),
        Assigned(11, 0),
        LookChores(0, [(1, 11)], 1),
    ],
    "never confirmed": [Assign(11), LookChores(0, [], 0)],
}

BAD: list[tuple[str, list[AnyChore]]] = [
    ("lost", [*ASSIGNED, LookChores(0, [], 1)]),
    ("doubled", [*ASSIGNED, Worked(11, 2, 1_000, 2_000)]),
    ("doubled", [*WORKED, LookChores(2_000, [(2, 11)], 1)]),
    ("phantom", [Worked(11, 1, 1_000, 2_000)]),
    ("shared", [*WORKED, Worked(11, 1, 1_999, 3_000)]),
    ("revived", [*WORKED, LookChores(1_999, [(1, 11)], 1)]),
    ("miscounted", [*ASSIGNED, LookChores(0, [(1, 11)], 2)]),
]


def judge(history: list[AnyChore]) -> Findings:
    findings = Findings()
    chores = Chores(findings)
    for event in history:
        chores.hear(event)
    return findings


@pytest.mark.parametrize("name", GOOD)
def test_good_histories_pass(name: str) -> None:
    assert judge(GOOD[name]).told == []


@pytest.mark.parametrize(("kind", "history"), BAD)
def test_every_fault_is_named(kind: str, history: list[AnyChore]) -> None:
    assert list(judge(history).counts) == [kind]
