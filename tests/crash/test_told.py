"""The ledger finds what is wrong with topics in histories made by hand, and nothing else."""

from __future__ import annotations

import pytest

from tests.crash.events import AnyEvent, Done, LookTopic, Refused, Tell
from tests.crash.judging import CRASH, History, judge


def look(*tags: int) -> LookTopic:
    return LookTopic(list(tags), [tag for tag in tags if tag % 3 == 0])


TOLD: list[AnyEvent] = [Tell(1, [11, 12]), Done(1)]

GOOD: dict[str, History] = {
    "forwarded": [*TOLD, CRASH, look(11, 12)],
    "without an answer, and there": [Tell(1, [11]), CRASH, look(11), CRASH, look(11)],
    "without an answer, and not": [Tell(1, [11]), CRASH, look(), CRASH, look()],
    "refused": [Tell(1, [11]), Refused(1, "full", ""), CRASH, look()],
    "more": [*TOLD, CRASH, look(11, 12), Tell(2, [13]), Done(2), CRASH, look(11, 12, 13)],
}

BAD: list[tuple[str, str, History]] = [
    ("lost", "acknowledged", [*TOLD, CRASH, look(11)]),
    ("lost", "later", [*TOLD, CRASH, look(11, 12), CRASH, look(12)]),
    ("lost", "by the filter", [*TOLD, CRASH, LookTopic([11, 12], [])]),
    ("doubled", "twice", [*TOLD, CRASH, look(11, 12, 12)]),
    ("doubled", "passed the filter", [*TOLD, CRASH, LookTopic([11, 12], [11, 12])]),
    ("phantom", "never sent", [*TOLD, CRASH, look(11, 12, 13)]),
    ("phantom", "refused", [Tell(1, [11]), Refused(1, "full", ""), CRASH, look(11)]),
    ("phantom", "had never come", [Tell(1, [11]), CRASH, look(), CRASH, look(11)]),
    ("skipped", "out of order", [*TOLD, CRASH, look(12, 11)]),
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert judge(GOOD[name]).findings.told == []


@pytest.mark.parametrize(("kind", "what", "history"), BAD, ids=[f"{k}: {w}" for k, w, _ in BAD])
def test_a_fault_is_named(kind: str, what: str, history: History) -> None:
    findings = judge(history).findings
    assert findings.counts[kind] > 0, (what, findings.told)
