"""Messages by their seqs, and by their ids where a queue has partitions."""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap64

from millrace.client.engine import Engine
from millrace.client.shards import Shards
from millrace.core import bounds, check, exact
from millrace.core.answers import Explanation
from millrace.core.commands import Explain
from millrace.core.message_id import IDS, seq_of
from millrace.core.model import Kind, Row
from millrace.core.partition_cells import PartitionCell
from millrace.core.partition_commands import Delete
from millrace.errors import Invalid, TooLarge


async def get_named(engine: Engine, shards: Shards, seq: object, id_: object) -> Row | None:
    """A message by its seq or by its id."""
    if (seq is None) == (id_ is None):
        raise Invalid("a message is named by its seq or by its id", field="seq")
    if id_ is not None:
        shard, found = shards.first, _seq(shards, id_, "id")
        if found == 0:
            return None
    else:
        shard, found = shards.find(seq, "seq")
    rows = await engine.peek(shard, found - 1, found, 1)
    return shards.placed(shard, rows)[0] if rows else None


async def explain_at(engine: Engine, shards: Shards, seq: int) -> Explanation:
    """Why a message is not to be had; where that depends on its group, the group is looked up."""
    shard, found = shards.find(seq, "seq")
    answer = await engine.ask(shard, Explain(found), Explanation)
    row = await get_named(engine, shards, seq, None) if answer.state == "ready" else None
    if row is not None:
        answer = await engine.ask(shard, Explain(found, row.group), Explanation)
    return shards.explained(shard, answer)


async def delete_named(engine: Engine, shards: Shards, ids: Sequence[int] | int) -> int:
    """End messages by their ids; returns how many were there."""
    listed = [ids] if exact.whole(ids) is not None else ids
    if not isinstance(listed, list | tuple | range):
        raise Invalid(f"ids are {type(ids).__name__}, not a list of ids", field="ids")
    if len(listed) > bounds.DELETE_IDS_MAX:
        raise TooLarge(
            f"{len(listed)} ids at once, up to {bounds.DELETE_IDS_MAX} are allowed; split them",
            field="ids",
            limit=bounds.DELETE_IDS_MAX,
        )
    seqs = BitMap64([_seq(shards, one, "ids") for one in listed])
    return await engine.ask(shards.first, Delete(seqs), int) if seqs else 0


async def count_partitions(engine: Engine, shards: Shards) -> int:
    """How many partitions a queue has now; 0 if that is not its delivery."""
    cells = await engine.cells(shards.first, Kind.PARTITION)
    cell = cells.get("")
    return cell.size if isinstance(cell, PartitionCell) else 0


def _seq(shards: Shards, id_: object, field: str) -> int:
    if not shards.key:
        raise Invalid(
            "messages have ids where the queue's delivery is 'partitions'; name a seq", field=field
        )
    number = exact.whole(id_)
    if number is None or not 0 <= number < IDS:
        raise Invalid(f"{field} is {check.shown(id_)}, not an id of 63 bits", field=field)
    return seq_of(shards.key, number)
