"""Routing of messages to shards: equal one by one and in bulk, and complete."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.core.commands import ProducerNumber, RowSchedule
from millrace.core.format.block import Block
from millrace.core.format.frozen_hash import hash_one
from millrace.core.model import GROUP_HEADER, NewMessage, Route
from millrace.core.publishing.shard_routing import (
    ranks,
    shard_of,
    shards_of,
    split,
    split_ids,
    split_runs,
    turn_of,
)

MESSAGES = st.lists(
    st.builds(
        NewMessage,
        st.one_of(st.none(), st.binary(max_size=5)),
        st.one_of(st.none(), st.binary(max_size=20)),
        st.lists(
            st.tuples(st.one_of(st.just(GROUP_HEADER), st.text(max_size=3)), st.binary(max_size=3)),
            max_size=3,
        ).map(tuple),
    ),
    max_size=20,
)
ROUTES = st.sampled_from(["key", "group", "spread"])


@given(MESSAGES, ROUTES, st.integers(1, 9), st.integers(0, 100))
def test_rows_are_placed_as_messages(
    messages: list[NewMessage], route: Route, count: int, turn: int
) -> None:
    block = Block.of_messages(messages)
    placed = shards_of(block, route, count, turn).tolist()
    assert placed == [shard_of(message, route, count, turn) for message in messages]


@given(MESSAGES, ROUTES, st.integers(1, 9), st.integers(0, 100))
def test_each_row_is_in_one_part_in_its_order(
    messages: list[NewMessage], route: Route, count: int, turn: int
) -> None:
    shards = shards_of(Block.of_messages(messages), route, count, turn)
    parts = split(Block.of_messages(messages), shards, count)
    assert len(parts) == count
    for shard, part in enumerate(parts):
        found = [(row.body, row.key, row.headers) for row in part.rows(0, part.count, 1, 0)]
        assert found == [
            (message.body, message.key, message.headers)
            for message, at in zip(messages, shards.tolist(), strict=True)
            if at == shard
        ]
    rank = ranks(shards, count).tolist()
    for at, shard in enumerate(shards.tolist()):
        row = parts[shard].rows(rank[at], rank[at] + 1, 1, 0)[0]
        assert (row.body, row.key) == (messages[at].body, messages[at].key)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2)), max_size=30))
def test_turns_and_ids_stay_with_their_rows(rows: list[tuple[int, int]]) -> None:
    messages = [NewMessage(b"", bytes([shard])) for shard, _ in rows]
    shards = shards_of(Block.of_messages(messages), "key", 4, 0)
    runs: list[RowSchedule] = []
    for at, (_, priority) in enumerate(rows):
        if priority < 0:
            continue
        if runs and runs[-1].at + runs[-1].count == at and runs[-1].priority == priority:
            runs[-1] = RowSchedule(runs[-1].at, runs[-1].count + 1, priority)
        else:
            runs.append(RowSchedule(at, 1, priority))
    ids = tuple(None if priority < 0 else f"{at}" for at, (_, priority) in enumerate(rows))
    asides, names = split_runs(runs, shards, 4), split_ids(ids, shards, 4)
    for shard in range(4):
        mine = [at for at, placed in enumerate(shards.tolist()) if placed == shard]
        wanted = {rank: rows[at][1] for rank, at in enumerate(mine) if rows[at][1] >= 0}
        found = {run.at + at: run.priority for run in asides[shard] for at in range(run.count)}
        assert found == wanted
        assert names[shard] == (tuple(ids[at] for at in mine) if ids else ())


def test_p4_a_number_decides_where_a_repeat_goes() -> None:
    first = turn_of(ProducerNumber("p", 7), 0)
    assert first == turn_of(ProducerNumber("p", 7), 99) == hash_one(b"p") + 7
    block = Block.of_bodies([b"x"])
    assert shards_of(block, "spread", 5, first).tolist() == [first % 5]


def test_repeats_of_an_id_meet() -> None:
    block = Block.of_bodies([b"x", b"y"])
    for turn in range(5):
        placed = shards_of(block, "spread", 5, turn, ("a", None)).tolist()
        assert placed == [hash_one(b"a") % 5, turn]


def test_names_that_are_nearly_that_of_the_group() -> None:
    name = GROUP_HEADER
    near = [name[:-1] + "x", "x" + name[1:], name[:7] + "x" + name[8:], name[:-1], name + "x", ""]
    rows = [NewMessage(b"", b"k", ((one, b"g"), ("", b""))) for one in near]
    for messages in (rows, [*rows, NewMessage(b"", b"k", ((near[0], b"x"), (name, b"g")))]):
        expected = [hash_one(b"k") % 97] * len(rows)
        expected += [hash_one(b"g") % 97] * (len(messages) - len(rows))
        assert shards_of(Block.of_messages(messages), "group", 97, 0).tolist() == expected


def test_a_group_decides_before_the_key() -> None:
    named = NewMessage(b"", b"key", (("other", b"x"), (GROUP_HEADER, b"g"), (GROUP_HEADER, b"h")))
    plain = NewMessage(b"", b"key")
    rows = Block.of_messages([named, plain])
    assert shards_of(rows, "group", 7, 0).tolist() == [hash_one(b"g") % 7, hash_one(b"key") % 7]
    assert shards_of(rows, "key", 7, 0).tolist() == [hash_one(b"key") % 7] * 2
