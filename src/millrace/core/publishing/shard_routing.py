"""Routes messages to the shards of a queue.

Rule 1: a message with a key (or a group) is placed by its frozen hash, in every version, for ever.
Rule 2: all others, and everything on a queue with the route `spread`, are placed by a number of the
caller: that of the producer, so that a repeat reaches the shard of the first one (P4), or one that
rises with each call. All such messages of one call stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.core.commands import ProducerNumber, RowSchedule, RowTtl
from millrace.core.format.block import Block
from millrace.core.format.column import Column
from millrace.core.format.frozen_hash import hash_one, hash_slices, place
from millrace.core.model import GROUP_HEADER, NewMessage, Route

Shards = npt.NDArray[np.int64]
R = TypeVar("R", RowSchedule, RowTtl)


def turn_of(numbered: ProducerNumber | None, turn: int) -> int:
    """Return the number by which messages without a key are placed."""
    if numbered is None:
        return turn
    return hash_one(numbered.producer.encode()) + numbered.number


def shard_of(message: NewMessage, route: Route, count: int, turn: int) -> int:
    """Return the shard of a message, from 0, among `count`."""
    name = message.key
    if route == "group":
        name = next((value for word, value in message.headers if word == GROUP_HEADER), name)
    if name is None or route == "spread":
        return turn % count
    return place(hash_one(name), count)


def shards_of(
    block: Block, route: Route, count: int, turn: int, ids: Sequence[str | None] = ()
) -> Shards:
    """Return the shard of each row, from 0, as `shard_of`.

    A row that is not placed by its key is placed by its deduplication id, if it has one: repeats
    must reach the same shard.
    """
    keys = _named(block) if route == "group" else block.keys
    turns = np.full(block.count, turn % count, np.int64)
    for at, message_id in enumerate(ids):
        if message_id is not None:
            turns[at] = place(hash_one(message_id.encode()), count)
    if keys is None or route == "spread":
        return turns
    bounds = keys.bounds().astype(np.int64)
    placed = hash_slices(keys.data, bounds[:-1], np.diff(bounds)) % np.uint64(count)
    shards = placed.astype(np.int64)
    absent = keys.absent(block.count)
    if absent is not None:
        shards[absent] = turns[absent]
    return shards


def _named(block: Block) -> Column | None:
    """Return the group of each row, else its key."""
    names, values, lists = block.header_names, block.header_values, block.header_lists
    if names is None or values is None or lists is None:
        return block.keys
    ends = np.frombuffer(lists, np.int32)
    found = _equal(names, int(ends[-1]), GROUP_HEADER.encode())
    if not len(found):
        return block.keys
    groups = list(block.key_list())
    # The first group header of a row counts.
    rows, first = np.unique(np.searchsorted(ends, found, side="right") - 1, return_index=True)
    for row, at in zip(rows.tolist(), found[first].tolist(), strict=True):
        groups[row] = values.values(at, at + 1)[0]
    return Column.of_optional(groups)


def _equal(names: Column, count: int, wanted: bytes) -> Shards:
    """Return a mask of the first `count` values that equal `wanted`; there may be millions of
    them."""
    bounds = names.bounds()[: count + 1].astype(np.int64)
    candidates = np.flatnonzero(np.diff(bounds) == len(wanted))
    if not len(candidates):
        return candidates
    # Eight bytes at a time, at any offset: the last ones overlap those before.
    words: np.ndarray[tuple[int], np.dtype[np.uint64]] = np.ndarray(
        (len(names.data) - 7,), "<u8", names.data, strides=(1,)
    )
    for at in (*range(0, len(wanted) - 8, 8), len(wanted) - 8):
        word = int.from_bytes(wanted[at : at + 8], "little")
        candidates = candidates[words[bounds[candidates] + at] == word]
    return candidates


def split(block: Block, shards: Shards, count: int) -> list[Block]:
    """Split a block into the rows of each shard, in their order; at a cost per shard rather than
    per row."""
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
    """Return the runs of rows of each shard."""
    if not runs:
        return [()] * count
    number = np.full(len(shards), -1, np.int64)
    for at, run in enumerate(runs):
        number[run.at : run.at + run.count] = at
    return [_runs(runs, number[shards == shard]) for shard in range(count)]


def split_ids(
    ids: Sequence[str | None], shards: Shards, count: int
) -> list[tuple[str | None, ...]]:
    """Split deduplication ids by the shards of their rows."""
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
    """Return the index of each row among those of its shard, from 0."""
    out = np.zeros(len(shards), np.int64)
    for shard in range(count):
        in_shard = shards == shard
        out[in_shard] = np.arange(np.count_nonzero(in_shard))
    return out
