"""Pools: good histories pass, and every kind of fault is named."""

from __future__ import annotations

import pytest

from tests.crash.events import AnyEvent, Done, Draw, Drawn, LookPool, Lost, Pour, Refused, Spill
from tests.crash.judging import CRASH, History, judge
from tests.crash.scene import BRIEF, DESK, RANKS


def look(*tags: int, settled: int = 0, expired: int = 0, pool: str = RANKS) -> LookPool:
    published = len(tags) + settled + expired
    counters = {"published": published, "live": len(tags), "settled": settled, "expired": expired}
    return LookPool(pool, list(tags), counters)


def draw(
    op: int, at: int, *tags: int, key: str = "g1", lease_ms: int = 100, pool: str = RANKS
) -> list[AnyEvent]:
    return [Draw(op, pool, at, lease_ms), Drawn(op, at, [(tag, key) for tag in tags])]


def end(op: int, *tags: int, settle: bool = True, pool: str = RANKS) -> list[AnyEvent]:
    return [Spill(op, pool, list(tags), settle), Lost(op, [])]


SENT: list[AnyEvent] = [Pour(1, RANKS, [11, 12]), Done(1)]
BRIEFLY: list[AnyEvent] = [Pour(1, BRIEF, [11, 12]), Done(1)]
AT_DESK: list[AnyEvent] = [Pour(1, DESK, [11, 12]), Done(1)]

GOOD: dict[str, History] = {
    "there": [*SENT, CRASH, look(11, 12), CRASH, look(11, 12)],
    "without an answer, and there": [Pour(1, RANKS, [11]), CRASH, look(11), CRASH, look(11)],
    "without an answer, and not": [Pour(1, RANKS, [11]), CRASH, look(), CRASH, look()],
    "refused": [Pour(1, RANKS, [11]), Refused(1, "full", ""), CRASH, look()],
    "settled": [*SENT, *draw(2, 0, 11), *end(3, 11), CRASH, look(12, settled=1)],
    "settled without an answer": [
        *(*SENT, *draw(2, 0, 11, 12), Spill(3, RANKS, [11, 12], is_settle=True), CRASH),
        *(look(12, settled=1), *draw(4, 100, 12)),
    ],
    "the lock is over": [*SENT, *draw(2, 0, 11), *draw(3, 100, 12)],
    "all has ended": [*SENT, *draw(2, 0, 11), *end(3, 11, settle=False), *draw(4, 1, 12, 11)],
    "another lock": [*SENT, *draw(2, 0, 11), *draw(3, 1, 12, key="g2")],
    "expired": [*BRIEFLY, CRASH, look(11, expired=1, pool=BRIEF)],
    "the session went with its process": [
        *(*AT_DESK, *draw(2, 0, 11, lease_ms=0, pool=DESK), CRASH, look(11, 12, pool=DESK)),
        *draw(3, 1, 11, lease_ms=0, pool=DESK),
    ],
}

BAD: list[tuple[str, str, History]] = [
    ("lost", "acknowledged", [*SENT, CRASH, look(11)]),
    ("lost", "does not expire", [*BRIEFLY, CRASH, look(12, expired=1, pool=BRIEF)]),
    ("doubled", "twice", [*SENT, CRASH, look(11, 12, 12)]),
    ("phantom", "never sent", [*SENT, CRASH, look(11, 12, 13)]),
    ("revived", "had never come", [Pour(1, RANKS, [11]), CRASH, look(), *draw(2, 0, 11)]),
    ("revived", "there again", [*SENT, *draw(2, 0, 11), *end(3, 11), CRASH, look(11, 12)]),
    ("revived", "handed out", [*SENT, *draw(2, 0, 11), *end(3, 11), *draw(4, 200, 11)]),
    ("shared", "a message", [*SENT, *draw(2, 0, 11), *draw(3, 99, 11)]),
    ("shared", "its group", [*SENT, *draw(2, 0, 11), *draw(3, 99, 12)]),
    (
        "shared",
        "after a crash",
        [*SENT, *draw(2, 0, 11), CRASH, look(11, 12), *draw(3, 99, 12)],
    ),
    (
        "shared",
        "a part was settled",
        [*SENT, *draw(2, 0, 11, 12), *end(3, 11), *draw(4, 99, 12)],
    ),
    (
        "shared",
        "two sessions",
        [*AT_DESK, *draw(2, 0, 11, lease_ms=0, pool=DESK), *draw(3, 1_000, 11, pool=DESK)],
    ),
    ("late", "over", [*BRIEFLY, Draw(2, BRIEF, 0, 9), Drawn(2, 0, [(12, "12")], [12])]),
    ("miscounted", "sum", [*SENT, LookPool(RANKS, [11, 12], {"published": 3, "live": 2})]),
    ("miscounted", "settled", [*SENT, CRASH, look(11, 12, settled=1)]),
    ("misjudged", "refused", [Pour(1, RANKS, [11]), Refused(1, "stale", "")]),
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert judge(GOOD[name]).findings.told == []


@pytest.mark.parametrize(("kind", "what", "history"), BAD, ids=[f"{k}: {w}" for k, w, _ in BAD])
def test_a_fault_is_named(kind: str, what: str, history: History) -> None:
    findings = judge(history).findings
    assert findings.counts[kind] > 0, (what, findings.told)
