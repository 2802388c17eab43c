"""Priority and delay of messages that pass through a topic."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.commands import Publish, RowSchedule, RowTtl
from millrace.core.format.block import Block
from millrace.core.model import Headers, NewMessage
from millrace.core.publishing import life_headers

TURNS = st.tuples(
    st.integers(0, limits.PRIORITY_MAX),
    st.one_of(st.none(), st.integers(0, 10_000), st.just(limits.DELAY_MS_MAX)),
)
PLAIN = (limits.PRIORITY_DEFAULT, None)


def runs(turns: list[tuple[int, int | None]]) -> tuple[RowSchedule, ...]:
    out: list[RowSchedule] = []
    for at, turn in enumerate(turns):
        if turn == PLAIN:
            continue
        if out and turns[at - 1] == turn:
            out[-1] = RowSchedule(out[-1].at, out[-1].count + 1, *turn)
        else:
            out.append(RowSchedule(at, 1, *turn))
    return tuple(out)


@given(st.lists(TURNS, min_size=1, max_size=8))
def test_what_was_packed_is_unpacked(turns: list[tuple[int, int | None]]) -> None:
    given = Publish(Block.of_bodies([b"x"] * len(turns)), aside=runs(turns))
    packed = life_headers.pack(given).rows
    assert isinstance(packed, Block)
    assert packed.bodies.values(0, len(turns)) == [b"x"] * len(turns)
    assert life_headers.unpack(packed, [(len(turns), 50)], 50) == (runs(turns), ())


ROWS = st.lists(
    st.lists(
        st.sampled_from(
            [
                (life_headers.TOPIC_SEQ, life_headers.SEQ_ROOM),
                (life_headers.TOPIC_SEQ, b"0" * 19),
                (life_headers.TOPIC_SEQ, b"1" * 20),
                ("other", life_headers.SEQ_ROOM),
                (f"{life_headers.TOPIC_SEQ}-other", b""),
            ]
        ),
        max_size=3,
    ).map(tuple),
    min_size=1,
    max_size=6,
)


@given(ROWS, st.integers(0, 10**18))
def test_a_row_gets_its_seq_where_there_is_room_for_it(rows: list[Headers], after: int) -> None:
    block = Block.of_messages([NewMessage(b"x", None, headers) for headers in rows])
    numbered = life_headers.number(block, after)
    assert numbered.bodies.values(0, len(rows)) == [b"x"] * len(rows)
    for at, headers in enumerate(rows):
        seq = b"%020d" % (after + at + 1)
        room = (life_headers.TOPIC_SEQ, life_headers.SEQ_ROOM)
        filled = tuple((pair[0], seq) if pair == room else pair for pair in headers)
        assert tuple(numbered.headers_of(at)) == filled
        assert tuple(block.headers_of(at)) == headers, "what is read elsewhere stays as it is"


def test_a_delay_counts_from_the_publish() -> None:
    rows = (NewMessage(b"a"), NewMessage(b"b"))
    block = life_headers.pack(Publish(rows, aside=(RowSchedule(0, 2, delay_ms=1000),))).rows
    assert isinstance(block, Block)
    assert life_headers.unpack(block, [(1, 100), (1, 400)], 700) == (
        (RowSchedule(0, 1, delay_ms=400), RowSchedule(1, 1, delay_ms=700)),
        (),
    )
    assert life_headers.unpack(block, [(2, 100)], 9000) == ((RowSchedule(0, 2, delay_ms=0),), ())


def test_a_time_to_live_counts_from_the_publish() -> None:
    block = life_headers.pack(
        Publish((NewMessage(b"a"), NewMessage(b"b")), lives=(RowTtl(1, 1, 500),))
    ).rows
    assert isinstance(block, Block)
    assert life_headers.unpack(block, [(2, 100)], 300) == ((), (RowTtl(1, 1, 300),))
    # It has expired: the queue counts it.
    assert life_headers.unpack(block, [(2, 100)], 900) == ((), (RowTtl(1, 1, 1),))


def test_headers_that_say_nothing_of_the_kind_are_headers() -> None:
    odd = [b"", b"x", b"-1", b"10", b"9" * 5000, b"\xb2"]
    block = Block.of_messages(
        [NewMessage(b"a", None, ((life_headers.PRIORITY, value),)) for value in odd]
    )
    assert life_headers.unpack(block, [(len(odd), 0)], 0) == ((), ())
    assert life_headers.unpack(Block.of_bodies([b"a"]), [(1, 0)], 0) == ((), ())


def test_other_headers_of_a_topic_s_messages_cost_little() -> None:
    """All names were looked at one by one: 10,000 rows of 64 headers took half a second."""
    others = tuple((f"h{number}", b"v") for number in range(limits.HEADERS_MAX - 1))
    rows = [
        NewMessage(b"a", None, (*others, (life_headers.TOPIC_SEQ, life_headers.SEQ_ROOM)))
    ] * 1_000
    block = Block.of_messages(rows)
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = life_headers.number(block, 7)
    finally:
        sys.setprofile(None)
    assert found.headers_of(999)[-1] == (life_headers.TOPIC_SEQ, b"%020d" % 1_007)
    assert calls < len(rows)
