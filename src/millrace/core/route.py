"""How messages find their shard, where a queue has several.

Rule 1: what has a key (or a group) is placed by its frozen hash, in every version, for ever.
Rule 2: what has none, and everything on a queue that spreads, is placed by a number that the caller
gives: that of the producer, so that a repeat goes where the first one went (P4), or one that rises
with each call. Those of one call stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.core.block import Block
from millrace.core.column import Column
from millrace.core.commands import Aside, Numbered
from millrace.core.frozen_hash import hash_one, hash_slices, place
from millrace.core.leased_commands import Life
from millrace.core.model import Message
from millrace.core.place import GROUP_HEADER, Route

Shards = npt.NDArray[np.int64]
R = TypeVar("R", Aside, Life)


def turn_of(numbered: Numbered | None, turn: int) -> int:
    """The number by which messages without a key are placed."""
    if numbered is None:
        return turn
    return hash_one(numbered.producer.encode()) + numbered.number


def shard_of(message: Message, route: Route, count: int, turn: int) -> int:
    """Which of `count` shards a message belongs to, from 0."""
    name = message.key
    if route == "group":
        name = next((value for word, value in message.headers if word == GROUP_HEADER), name)
    if name is None or route == "spread":
        return turn % count
    return place(hash_one(name), count)


def shards_of(
    block: Block, route: Route, count: int, turn: int, ids: Sequence[str | None] = ()
) -> Shards:
    """Which of `count` shards each row belongs to, from 0; as `shard_of`.

    A row that is not placed by its key is placed by its de-duplication id, if it has one: repeats
    must meet.
    """
    keys = _named(block) if route == "group" else block.keys
    turns = np.full(block.count, turn % count, np.int64)
    for at, one in enumerate(ids):
        if one is not None:
            turns[at] = place(hash_one(one.encode()), count)
    if keys is None or route == "spread":
        return turns
    bounds = keys.bounds().astype(np.int64)
    found = hash_slices(keys.data, bounds[:-1], np.diff(bounds)) % np.uint64(count)
    shards = found.astype(np.int64)
    absent = keys.absent(block.count)
    if absent is not None:
        shards[absent] = turns[absent]
    return shards


def _named(block: Block) -> Column | None:
    """The group of each row, else its key."""
    names, values, lists = block.header_names, block.header_values, block.header_lists
    if names is None or values is None or lists is None:
        return block.keys
    ends = np.frombuffer(lists, np.int32)
    found = _equal(names, int(ends[-1]), GROUP_HEADER.encode())
    if not len(found):
        return block.keys
    groups = list(block.key_list())
    # The first one of a row counts.
    rows, first = np.unique(np.searchsorted(ends, found, side="right") - 1, return_index=True)
    for row, at in zip(rows.tolist(), found[first].tolist(), strict=True):
        groups[row] = values.values(at, at + 1)[0]
    return Column.of_optional(groups)


def _equal(names: Column, count: int, wanted: bytes) -> Shards:
    """Which of the first `count` values are `wanted`; there may be millions of them."""
    bounds = names.bounds()[: count + 1].astype(np.int64)
    found = np.flatnonzero(np.diff(bounds) == len(wanted))
    if not len(found):
        return found
    # Eight bytes at a time, wherever they begin: the last ones overlap those before.
    words: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.ndarray(
        (len(names.data) - 7,), "<u8", names.data, strides=(1,)
    )
    for at in (*range(0, len(wanted) - 8, 8), len(wanted) - 8):
        word = int.from_bytes(wanted[at : at + 8], "little")
        found = found[words[bounds[found] + at] == word]
    return found


def split(block: Block, shards: Shards, count: int) -> list[Block]:
    """The rows of each shard, in their order; at a cost per shard rather than per row."""
    if block.count and (shards == shards[0]).all():
        parts = [Block(0, Column(bytes(4), b""))] * count
        parts[int(shards[0])] = block
        return parts
    rows = block.arrow(0, 1, 0).select(["value", *_columns(block)])
    return [Block.of_arrow(rows.take(np.flatnonzero(shards == shard))) for shard in range(count)]


def _columns(block: Block) -> list[str]:
    names = ["key"] if block.keys is not None else []
    return [*names, "headers"] if block.header_lists is not None else names


def split_runs(runs: Sequence[R], shards: Shards, count: int) -> list[tuple[R, ...]]:
    """What is said of some rows, of those of each shard."""
    if not runs:
        return [()] * count
    number = np.full(len(shards), -1, np.int64)
    for at, run in enumerate(runs):
        number[run.at : run.at + run.count] = at
    return [_runs(runs, number[shards == shard]) for shard in range(count)]


def split_ids(
    ids: Sequence[str | None], shards: Shards, count: int
) -> list[tuple[str | None, ...]]:
    """The de-duplication ids of each shard's rows, row by row."""
    if not ids:
        return [()] * count
    return [
        tuple(ids[at] for at in np.flatnonzero(shards == shard).tolist()) for shard in range(count)
    ]


def _runs(runs: Sequence[R], number: Shards) -> tuple[R, ...]:
    if not len(number):
        return ()
    starts: list[int] = np.flatnonzero(np.diff(number, prepend=-2)).tolist()
    ends = [*starts[1:], len(number)]
    return tuple(
        msgspec.structs.replace(runs[which], at=begin, count=end - begin)
        for begin, end in zip(starts, ends, strict=True)
        if (which := int(number[begin])) >= 0
    )


def ranks(shards: Shards, count: int) -> Shards:
    """The place of each row among those of its shard, from 0."""
    out = np.zeros(len(shards), np.int64)
    for shard in range(count):
        mine = shards == shard
        out[mine] = np.arange(np.count_nonzero(mine))
    return out
