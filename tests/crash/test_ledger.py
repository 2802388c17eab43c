"""The ledger is tried on histories made by hand: good ones pass, and every fault is named."""

from __future__ import annotations

import pytest

from tests.crash.events import (
    AnyEvent,
    Commit,
    Done,
    Drop,
    DropStage,
    End,
    Ended,
    Extend,
    Fill,
    Look,
    Make,
    Others,
    Purge,
    Read,
    Refused,
    Send,
    SendStage,
    Sent,
    Serving,
    Showed,
    Stage,
    Staged,
    Take,
    Took,
    Transact,
    body_of,
    events_in,
    frame,
    tag_of,
    whole_bytes,
)
from tests.crash.findings import KINDS
from tests.crash.judging import CRASH, History, judge
from tests.crash.scene import QUEUES
from tests.crash.test_pools import BAD as POOLS_BAD


def look(
    queue: str,
    rows: list[tuple[int, int]],
    *,
    published: int,
    live: int | None = None,
    cursor: int = 0,
    producers: dict[str, int] | None = None,
    stages: dict[str, int] | None = None,
) -> Look:
    live = len(rows) if live is None else live
    counters = {"published": published, "live": live, "settled": published - live}
    place = cursor if QUEUES[queue].followed else -1
    return Look(queue, counters, rows, place, producers or {}, stages or {})


SEND = Send(1, "plain", [11])
SENT = Sent(1, 1, 1)
KEYED: list[AnyEvent] = [
    Send(1, "keyed", [11], [5]),
    Sent(1, 1, 1),
    Send(2, "keyed", [12], [5]),
    Sent(2, 2, 1),
]
LEASED: list[AnyEvent] = [
    SEND,
    SENT,
    Take(2, "plain", 1_000, 500),
    Took(2, 1, 1_010, [(1, 11, 1)], ["r"]),
]
SETTLE = End(3, "plain", [(1, 1)], is_settle=True)
SETTLED: list[AnyEvent] = [*LEASED, SETTLE, Ended(3, 1_020, {})]
GIVE_BACK = End(3, "plain", [(1, 1)], is_settle=False)
NUMBERED = Send(1, "plain", [11], producer="dense-0", number=1)
INPUT: list[AnyEvent] = [
    Send(1, "input", [11]),
    Sent(1, 1, 1),
    Take(2, "input", 1_000, 500),
    Took(2, 1, 1_010, [(1, 11, 1)], ["r"]),
]
MOVE: list[AnyEvent] = [
    Transact(3),
    End(3, "input", [(1, 1)], is_settle=True),
    Send(3, "output", [12]),
]
READ: list[AnyEvent] = [SEND, SENT, Read(2, "plain"), Showed(2, 0, 1, [(1, 11)])]
STAGED: list[AnyEvent] = [Stage(1, "plain", "s", [11, 12]), Staged(1, 2)]
PUBLISH_STAGE = SendStage(2, "plain", "s", "range-0", 1)


GOOD: dict[str, History] = {
    "acknowledged and there": [SEND, SENT, CRASH, look("plain", [(1, 11)], published=1)],
    "unknown and there": [SEND, CRASH, look("plain", [(1, 11)], published=1)],
    "unknown and not there": [SEND, CRASH, look("plain", [], published=0)],
    "unknown, not there, sent again": [
        NUMBERED,
        CRASH,
        look("plain", [], published=0),
        NUMBERED,
        SENT,
        CRASH,
        look("plain", [(1, 11)], published=1, producers={"dense-0": 1}),
    ],
    "unknown, there, sent again": [
        NUMBERED,
        CRASH,
        look("plain", [(1, 11)], published=1, producers={"dense-0": 1}),
        NUMBERED,
        SENT,
    ],
    "refused and not there": [
        SEND,
        Refused(1, "full", ""),
        CRASH,
        look("plain", [], published=0),
    ],
    "replaced": [*KEYED, CRASH, look("keyed", [(2, 12)], published=2)],
    "replaced by what is unknown": [*KEYED[:3], CRASH, look("keyed", [(2, 12)], published=2)],
    "settled, kept for the cursor": [*SETTLED, CRASH, look("plain", [], published=1, live=1)],
    "settled or not": [*LEASED, SETTLE, CRASH, look("plain", [(1, 11)], published=1)],
    "given back, and leased before that was heard": [
        *LEASED,
        GIVE_BACK,
        Take(4, "plain", 1_020, 500),
        Took(4, 2, 1_030, [(1, 11, 2)], ["s"]),
        Ended(3, 1_040, {}),
    ],
    "settled twice": [*SETTLED, SETTLE, Ended(3, 1_030, {})],
    "leased again when the time was over": [
        *LEASED,
        Take(3, "plain", 1_600, 500),
        Took(3, 2, 1_610, [(1, 11, 2)], ["s"]),
    ],
    "a transaction that came too late: another call has settled its message": [
        *INPUT,
        *MOVE,
        Take(4, "input", 1_600, 500),
        Took(4, 2, 1_610, [(1, 11, 2)], ["s"]),
        End(5, "input", [(1, 2)], is_settle=True),
        Ended(5, 1_620, {}),
        CRASH,
        look("input", [], published=1),
        look("output", [], published=0),
        Serving(),
    ],
    "a transaction that came about": [
        *INPUT,
        *MOVE,
        CRASH,
        look("input", [], published=1),
        look("output", [(1, 12)], published=1),
        Serving(),
    ],
    "a transaction that did not": [
        *INPUT,
        *MOVE,
        CRASH,
        look("input", [(1, 11)], published=1),
        look("output", [], published=0),
        Serving(),
    ],
    "shown again, because it was not committed": [
        *READ,
        CRASH,
        look("plain", [(1, 11)], published=1),
        Read(1, "plain"),
        Showed(1, 0, 1, [(1, 11)]),
    ],
    "committed, or not": [
        *READ,
        Commit(3, "plain", 1),
        CRASH,
        look("plain", [(1, 11)], published=1, cursor=1),
    ],
    "a stage that was published": [
        *STAGED,
        PUBLISH_STAGE,
        Sent(2, 1, 2),
        CRASH,
        look("plain", [(1, 11), (2, 12)], published=2, producers={"range-0": 1}),
    ],
    "a stage that was dropped": [
        *STAGED,
        DropStage(2, "plain", "s"),
        Done(2),
        CRASH,
        look("plain", [], published=0),
    ],
    "purged, and perhaps once more": [
        Send(1, "archive", [11]),
        Sent(1, 1, 1),
        Purge(2, "archive"),
        Done(2),
        Send(3, "archive", [12]),
        Sent(3, 2, 1),
        Purge(4, "archive"),
        CRASH,
        look("archive", [(2, 12)], published=2),
    ],
    "made and dropped, or not": [
        Make(1, "other"),
        Done(1),
        Fill(2, "other", 3),
        Done(2),
        Drop(3, "other"),
        CRASH,
        Others({"other": 3}),
        CRASH,
        Others({"other": 3}),
    ],
    "extended": [
        *LEASED,
        Extend(3, "plain", [(1, 1)], 1_400, 500),
        Ended(3, 1_410, {}),
        Take(4, "plain", 1_950, 500),
        Took(4, 2, 1_960, [(1, 11, 2)], ["s"]),
    ],
    "extended to an earlier end, and nobody was told": [
        *LEASED,
        Extend(3, "plain", [(1, 1)], 1_200, 50),
        CRASH,
        look("plain", [(1, 11)], published=1),
        Take(4, "plain", 1_260, 500),
        Took(4, 2, 1_270, [(1, 11, 2)], ["s"]),
    ],
    "purged, or not": [
        Send(1, "archive", [11, 12]),
        Sent(1, 1, 2),
        Purge(2, "archive"),
        CRASH,
        look("archive", [], published=2),
    ],
}


BAD: list[tuple[str, str, History]] = [
    ("lost", "a message", [SEND, SENT, CRASH, look("plain", [], published=0)]),
    (
        "lost",
        "a part of a batch that nobody was told of",
        [Send(1, "plain", [11, 12]), CRASH, look("plain", [(1, 11)], published=1)],
    ),
    (
        "lost",
        "the newest revision",
        [*KEYED, CRASH, look("keyed", [], published=2, live=0)],
    ),
    (
        "doubled",
        "one message in two places",
        [SEND, SENT, CRASH, look("plain", [(1, 11), (2, 11)], published=2)],
    ),
    (
        "doubled",
        "a retry that came about again",
        [
            NUMBERED,
            CRASH,
            look("plain", [(1, 11)], published=1, producers={"dense-0": 1}),
            NUMBERED,
            Sent(1, 2, 1),
        ],
    ),
    ("phantom", "nobody sent it", [look("plain", [(1, 99)], published=1)]),
    ("phantom", "its body is another", [SEND, SENT, CRASH, look("plain", [(1, 0)], published=1)]),
    (
        "revived",
        "it was refused",
        [SEND, Refused(1, "full", ""), CRASH, look("plain", [(1, 11)], published=1)],
    ),
    (
        "revived",
        "it had not come about",
        [
            SEND,
            CRASH,
            look("plain", [], published=0),
            CRASH,
            look("plain", [(1, 11)], published=1),
        ],
    ),
    ("revived", "settled", [*SETTLED, CRASH, look("plain", [(1, 11)], published=1)]),
    (
        "revived",
        "settled, and leased again",
        [*SETTLED, Take(4, "plain", 2_000, 500), Took(4, 2, 2_010, [(1, 11, 2)], ["s"])],
    ),
    ("outdated", "both", [*KEYED, CRASH, look("keyed", [(1, 11), (2, 12)], published=2)]),
    (
        "outdated",
        "the old one was leased",
        [*KEYED, Take(3, "keyed", 1, 1), Took(3, 1, 2, [(1, 11, 1)], ["r"])],
    ),
    (
        "torn",
        "settled, not published",
        [
            *INPUT,
            *MOVE,
            CRASH,
            look("input", [], published=1),
            look("output", [], published=0),
            Serving(),
        ],
    ),
    (
        "torn",
        "published, not settled",
        [
            *INPUT,
            *MOVE,
            CRASH,
            look("input", [(1, 11)], published=1),
            look("output", [(1, 12)], published=1),
            Serving(),
        ],
    ),
    (
        "torn",
        "the number, not the message",
        [NUMBERED, CRASH, look("plain", [], published=0, producers={"dense-0": 1})],
    ),
    (
        "torn",
        "the message, not the number",
        [NUMBERED, SENT, CRASH, look("plain", [(1, 11)], published=1)],
    ),
    (
        "torn",
        "a stage that was published in part",
        [
            *STAGED,
            CRASH,
            look("plain", [], published=0, stages={"s": 1}),
        ],
    ),
    (
        "torn",
        "half a purge",
        [
            Send(1, "archive", [11, 12]),
            Sent(1, 1, 2),
            Purge(2, "archive"),
            CRASH,
            look("archive", [(2, 12)], published=2),
        ],
    ),
    (
        "skipped",
        "the cursor has moved by itself",
        [SEND, SENT, CRASH, look("plain", [(1, 11)], published=1, cursor=1)],
    ),
    (
        "skipped",
        "the cursor has fallen back",
        [
            *READ,
            Commit(3, "plain", 1),
            Done(3),
            CRASH,
            look("plain", [(1, 11)], published=1, cursor=0),
        ],
    ),
    (
        "skipped",
        "a row",
        [
            Send(1, "plain", [11, 12]),
            Sent(1, 1, 2),
            Read(2, "plain"),
            Showed(2, 0, 2, [(2, 12)]),
        ],
    ),
    (
        "skipped",
        "what was published before",
        [SEND, SENT, Read(2, "plain"), Showed(2, 0, 0, [])],
    ),
    (
        "skipped",
        "other rows than before",
        [
            Send(1, "keyed", [11, 12], [5, 6]),
            Sent(1, 1, 2),
            Read(2, "keyed"),
            Showed(2, 0, 2, [(1, 11), (2, 12)]),
            CRASH,
            look("keyed", [(1, 11), (2, 12)], published=2),
            Read(1, "keyed"),
            Showed(1, 0, 2, [(2, 12)]),
        ],
    ),
    (
        "skipped",
        "the newest revision of a key",
        [
            Send(1, "keyed", [11, 12], [5, 6]),
            Sent(1, 1, 2),
            Read(2, "keyed"),
            Showed(2, 0, 2, [(1, 11)]),
            CRASH,
            look("keyed", [(1, 11), (2, 12)], published=2),
        ],
    ),
    (
        "shared",
        "before the time was over",
        [*LEASED, Take(3, "plain", 1_300, 500), Took(3, 2, 1_400, [(1, 11, 2)], ["s"])],
    ),
    (
        "shared",
        "though it was extended",
        [
            *LEASED,
            Extend(3, "plain", [(1, 1)], 1_400, 500),
            Ended(3, 1_410, {}),
            Take(4, "plain", 1_600, 500),
            Took(4, 2, 1_610, [(1, 11, 2)], ["s"]),
        ],
    ),
    (
        "early",
        "before its delay was over",
        [
            Send(1, "turns", [11]),
            Sent(1, 1, 1),
            Take(2, "turns", 1_000, 500),
            Took(2, 1, 1_010, [(1, 11, 1)], ["r"], [(1, 40)]),
        ],
    ),
    ("lost", "a queue", [Make(1, "other"), Done(1), CRASH, Others({})]),
    (
        "lost",
        "rows of a queue",
        [Make(1, "other"), Done(1), Fill(2, "other", 3), Done(2), CRASH, Others({"other": 2})],
    ),
    (
        "torn",
        "half of what was published to a queue",
        [Make(1, "other"), Done(1), Fill(2, "other", 3), CRASH, Others({"other": 2})],
    ),
    (
        "revived",
        "a deleted queue",
        [Make(1, "other"), Done(1), Drop(2, "other"), Done(2), CRASH, Others({"other": 0})],
    ),
    ("phantom", "a queue that nobody made", [Others({"other": 0})]),
    (
        "misjudged",
        "a settle that was OK before",
        [*SETTLED, SETTLE, Ended(3, 1_030, {1: "stale"})],
    ),
    (
        "misjudged",
        "a receipt that was overtaken",
        [
            *LEASED,
            Take(3, "plain", 1_600, 500),
            Took(3, 2, 1_610, [(1, 11, 2)], ["s"]),
            SETTLE,
            Ended(3, 1_700, {}),
        ],
    ),
    (
        "misjudged",
        "given back by a receipt that was overtaken",
        [
            *LEASED,
            Take(4, "plain", 1_600, 500),
            Took(4, 2, 1_610, [(1, 11, 2)], ["s"]),
            GIVE_BACK,
            Ended(3, 1_700, {}),
        ],
    ),
    ("miscounted", "too few", [SEND, SENT, CRASH, look("plain", [(1, 11)], published=7)]),
]


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert judge(GOOD[name]).findings.told == []


@pytest.mark.parametrize(("kind", "what", "history"), BAD, ids=[f"{k}: {w}" for k, w, _ in BAD])
def test_a_fault_is_named(kind: str, what: str, history: History) -> None:
    findings = judge(history).findings
    assert findings.counts[kind] > 0, (what, findings.told)


def test_every_kind_of_fault_is_tried() -> None:
    assert {kind for kind, _, _ in [*BAD, *POOLS_BAD]} == set(KINDS)


def test_what_is_unknown_is_handed_on() -> None:
    ledger = judge([NUMBERED, Stage(2, "plain", "s", [12]), Staged(2, 1)])
    duty = ledger.end_life(seed=0)
    assert [send.tags for send in duty.sends] == [[11]]
    assert duty.numbers == {"plain/dense-0": 1}


def test_receipts_are_handed_on() -> None:
    duty = judge(LEASED).end_life(seed=0)
    assert duty.receipts == [("plain", "r", 1, 1, False)]
    duty = judge([*LEASED, SETTLE]).end_life(seed=0)
    assert duty.receipts == [("plain", "r", 1, 1, True)]


def test_a_frame_that_was_cut_off_was_not_said() -> None:
    data = frame(SEND) + frame(SENT)
    assert list(events_in(data)) == [SEND, SENT]
    for cut in range(1, len(frame(SENT))):
        assert list(events_in(data[:-cut])) == [SEND]
        assert whole_bytes(data[:-cut]) == len(frame(SEND))


def test_a_body_follows_from_its_tag() -> None:
    for tag in range(1, 500):
        body = body_of(tag)
        assert tag_of(body, ()) == tag
        assert tag_of(body + b"x", ()) == 0
        assert tag_of(body, (("tag", b"7777"),)) == 0
    assert tag_of(None, (("tag", b"7"),)) == 7


def test_what_is_sent_again_keeps_its_number() -> None:
    """Also where the next process was seen to lack it, and ended before it sent it again."""
    ledger = judge([NUMBERED])
    ledger.end_life(seed=0)
    ledger.hear(look("plain", [], published=0))
    duty = ledger.end_life(seed=0)
    assert [send.tags for send in duty.sends] == [[11]]
    assert duty.numbers == {"plain/dense-0": 1}


def test_the_number_of_a_transaction_that_is_done_again_is_not_given_away() -> None:
    """The power goes while the next life looks, and has shown only that the rows are not there."""
    send = Send(3, "output", [7], producer="dense-0", number=1)
    ledger = judge([Transact(3), send, CRASH, look("output", [], published=0)])
    duty = ledger.end_life(seed=0)
    assert [again.number for _, again in duty.transactions] == [1]
    assert duty.numbers["output/dense-0"] == 1


def test_a_transaction_is_done_again_by_the_receipts_that_it_had() -> None:
    """Its lease ran out while it was under way, and another call has the message."""
    send = Send(3, "output", [12], producer="dense-0", number=1)
    ledger = judge(
        [
            *INPUT,
            Transact(3),
            End(3, "input", [(1, 1)], is_settle=True),
            send,
            Take(4, "input", 1_600, 500),
            Took(4, 2, 1_610, [(1, 11, 2)], ["later"]),
        ]
    )
    duty = ledger.end_life(seed=0)
    assert [receipts for receipts, _ in duty.transactions] == [[("r", 1, 1)]]
