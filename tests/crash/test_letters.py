"""The ledger finds what is wrong with dead letters in histories made by hand, and nothing else."""

from __future__ import annotations

import pytest

from tests.crash.events import AnyEvent, Ask, Done, Give, Got, LookLetters, Lose, Lost
from tests.crash.judging import CRASH, History, judge


def look(rows: list[int], letters: list[int], *, settled: int = 0, moved: int = -1) -> LookLetters:
    moved = len(letters) if moved < 0 else moved
    live = len(rows)
    counters = {"published": live + settled + moved, "live": live, "settled": settled}
    return LookLetters(rows, letters, counters | {"dead_lettered": moved}, len(letters))


GIVEN: list[AnyEvent] = [Give(1, [11, 12]), Done(1)]
LEASED: list[AnyEvent] = [*GIVEN, Ask(2), Got(2, [11, 12])]
DISCARD = Lose(3, [11], "discard")
DISCARDED: list[AnyEvent] = [*LEASED, DISCARD, Lost(3, [])]
SETTLE = Lose(4, [12], "settle")

GOOD: dict[str, History] = {
    "moved": [*DISCARDED, CRASH, look([12], [11])],
    "not moved yet": [*DISCARDED, CRASH, look([11, 12], []), CRASH, look([12], [11])],
    "failed or ran out": [*LEASED, Lose(3, [11], "fail"), Lost(3, []), CRASH, look([], [11, 12])],
    "a settle without an answer": [*LEASED, SETTLE, CRASH, look([11], [], settled=1)],
    "a settle that never came": [*LEASED, SETTLE, CRASH, look([11, 12], [])],
    "a discard without an answer": [*LEASED, DISCARD, CRASH, look([12, 11], [])],
    "a discard that was refused": [*LEASED, DISCARD, Lost(3, [11]), Ask(5), Got(5, [11])],
    "sent without an answer": [Give(1, [11]), CRASH, look([], [])],
    "settled": [*LEASED, SETTLE, Lost(4, []), CRASH, look([11], [], settled=1)],
}

BAD: list[tuple[str, str, History]] = [
    ("lost", "on its way", [*DISCARDED, CRASH, look([12], [], moved=1)]),
    ("lost", "before", [*GIVEN, CRASH, look([12], [], settled=1)]),
    ("lost", "later", [*DISCARDED, CRASH, look([12], [11]), CRASH, look([12], [], moved=1)]),
    ("doubled", "in both queues", [*DISCARDED, CRASH, look([11, 12], [11])]),
    ("doubled", "moved twice", [*DISCARDED, CRASH, look([12], [11, 11])]),
    ("revived", "handed out", [*DISCARDED, Ask(4), Got(4, [11])]),
    ("revived", "handed out later", [*LEASED, CRASH, look([12], [11]), Ask(3), Got(3, [11])]),
    ("revived", "back in its queue", [*LEASED, CRASH, look([12], [11]), CRASH, look([11, 12], [])]),
    ("revived", "settled", [*LEASED, SETTLE, Lost(4, []), CRASH, look([11], [12])]),
    ("revived", "over", [Give(1, [11]), CRASH, look([], []), CRASH, look([], [11])]),
    ("phantom", "never sent", [*GIVEN, CRASH, look([11, 12], [13])]),
    ("misjudged", "both", [*DISCARDED, Lose(4, [11], "settle"), Lost(4, [])]),
    ("miscounted", "went and did not arrive", [*DISCARDED, CRASH, look([12], [11], moved=2)]),
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert judge(GOOD[name]).findings.told == []


@pytest.mark.parametrize(("kind", "what", "history"), BAD, ids=[f"{k}: {w}" for k, w, _ in BAD])
def test_a_fault_is_named(kind: str, what: str, history: History) -> None:
    findings = judge(history).findings
    assert findings.counts[kind] > 0, (what, findings.told)
