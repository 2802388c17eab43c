"""The ledger knows where the only worker of a log stands."""

from __future__ import annotations

import pytest

from tests.crash.events import AnyEvent, GoBack, Pull, Pulled, Sent, WentBack, Wind
from tests.crash.ledger import Ledger
from tests.crash.scene import QUEUES

WOUND: list[AnyEvent] = [Wind(1, 5), Sent(1, 1, 5)]
BACK: list[AnyEvent] = [GoBack(3, 2), WentBack(3, 2)]

BAD: list[tuple[str, list[AnyEvent]]] = [
    ("skipped", [*WOUND, Pull(2, 2), Pulled(2, [2, 3])]),
    ("skipped", [*WOUND, Pull(2, 2), Pulled(2, [1, 3])]),
    ("lost", [*WOUND, Pull(2, 9), Pulled(2, [1, 2])]),
    ("lost", [*WOUND, Pull(2, 9), Pulled(2, [])]),
    ("lost", [*WOUND, Wind(2, 1), Sent(2, 5, 1)]),
    ("phantom", [*WOUND, Wind(2, 1), Sent(2, 7, 1)]),
    ("revived", [*WOUND, Pull(2, 2), Pulled(2, [1, 2]), Pull(3, 2), Pulled(3, [2, 3])]),
    (
        "skipped",
        [*WOUND, Pull(2, 5), Pulled(2, [1, 2, 3, 4, 5]), *BACK, Pull(4, 1), Pulled(4, [3])],
    ),
]


def judge(*lives: list[AnyEvent]) -> dict[str, int]:
    ledger = Ledger(QUEUES)
    for events in lives:
        for event in events:
            ledger.hear(event)
        ledger.end_life(seed=0)
    return dict(ledger.findings.counts)


@pytest.mark.parametrize(("kind", "history"), BAD)
def test_a_fault_is_named(kind: str, history: list[AnyEvent]) -> None:
    assert judge(history) == {kind: 1}


def test_it_goes_on_where_it_was() -> None:
    before = [*WOUND, Pull(2, 2), Pulled(2, [1, 2])]
    assert judge(before, [Pull(1, 2), Pulled(1, [3, 4])]) == {}
    assert judge(before, [Pull(1, 2), Pulled(1, [4, 5])]) == {"skipped": 1}


def test_what_was_not_answered_may_have_been_done() -> None:
    for first in (1, 4):
        seqs = list(range(first, 6))
        before = [*WOUND, Pull(2, 3), Pulled(2, [1, 2, 3]), GoBack(3, 1)]
        assert judge(before, [Pull(1, 9), Pulled(1, seqs)]) == {}
    assert judge([*WOUND, Pull(2, 3)], [Pull(1, 9), Pulled(1, [4, 5])]) == {}
    for rows in (5, 7):
        before = [*WOUND, Wind(2, 2)]
        assert judge(before, [Wind(1, 1), Sent(1, rows + 1, 1)]) == {}
