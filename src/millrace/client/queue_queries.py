"""Reads of one queue over all of its shards: counters, holders, and messages by seq or id."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyroaring import BitMap64

from millrace.client.engine import Engine
from millrace.client.shards import Shards
from millrace.core import bounds, plain_types, validate
from millrace.core.answers import Explanation, Holder, Holders
from millrace.core.cells import CursorCell, Kind, PartitionCell, StageCell
from millrace.core.commands import Delete, Explain, ListHolders
from millrace.core.format.message_id import IDS, seq_of
from millrace.core.model import Death, Row
from millrace.errors import Invalid, TooLarge


async def shard_counts(engine: Engine, shards: Shards) -> list[dict[str, int]]:
    """Return the durable counters of each shard."""
    by_shard: list[dict[str, int]] = []
    for shard in shards.ids:
        meta = await engine.meta(shard)
        counts = {"published": meta.published, "live": meta.live}
        by_shard.append(counts | {death.name.lower(): meta.died[death] for death in Death})
    return by_shard


def sums(counts: list[dict[str, int]]) -> dict[str, int]:
    """Return the sums of the counters over all shards."""
    return {name: sum(shard[name] for shard in counts) for name in counts[0]}


async def stage_rows(engine: Engine, shards: Shards) -> dict[str, int]:
    """Return the number of rows of each stage."""
    rows: dict[str, int] = {}
    for shard in shards.ids:
        for name, cell in (await engine.cells(shard, Kind.STAGE)).items():
            if isinstance(cell, StageCell):
                rows[name] = rows.get(name, 0) + cell.rows
    return rows


async def cursor_seqs(engine: Engine, shards: Shards) -> dict[str, int]:
    """Return the committed seq of each cursor, summed over all shards."""
    seqs: dict[str, int] = {}
    for shard in shards.ids:
        for name, cell in (await engine.cells(shard, Kind.CURSOR)).items():
            if isinstance(cell, CursorCell):
                seqs[name] = seqs.get(name, 0) + cell.position.seq
    return seqs


async def all_holders(engine: Engine, shards: Shards) -> Holders:
    """Return what holds back removable rows on any shard; what else is left, of the first shard."""
    held: list[Holder] = []
    answers = [await engine.ask(shard, ListHolders(), Holders) for shard in shards.ids]
    if shards.is_one:
        return answers[0]
    for shard, holders in zip(shards.ids, answers, strict=True):
        held += [
            msgspec.structs.replace(holder, seq=shards.place(shard, holder.seq))
            for holder in holders.held
        ]
    first, wanted = answers[0].first, answers[0].wanted
    return Holders(
        shards.place(shards.first, first),
        shards.place(shards.first, wanted),
        tuple(held),
        sum(holders.in_flight for holders in answers),
        sum(holders.held_by_workers for holders in answers),
        sum(holders.delayed for holders in answers),
    )


async def get_message(engine: Engine, shards: Shards, seq: object, id_: object) -> Row | None:
    """Return a message by its seq or by its id; None if it does not exist."""
    if (seq is None) == (id_ is None):
        raise Invalid("a message is named by its seq or by its id", field="seq")
    if id_ is not None:
        shard, target_seq = shards.first, _seq(shards, id_, "id")
        if target_seq == 0:
            return None
    else:
        shard, target_seq = shards.find(seq, "seq")
    rows = await engine.peek(shard, target_seq - 1, target_seq, 1)
    return shards.placed(shard, rows)[0] if rows else None


async def explain_message(engine: Engine, shards: Shards, seq: int) -> Explanation:
    """Explain why a message is not delivered; if that depends on its group, look the group up."""
    shard, target_seq = shards.find(seq, "seq")
    answer = await engine.ask(shard, Explain(target_seq), Explanation)
    row = await get_message(engine, shards, seq, None) if answer.state == "ready" else None
    if row is not None:
        answer = await engine.ask(shard, Explain(target_seq, row.group), Explanation)
    return shards.explained(shard, answer)


async def delete_by_ids(engine: Engine, shards: Shards, ids: Sequence[int] | int) -> int:
    """Delete messages by their ids; return how many existed."""
    listed = [ids] if plain_types.whole(ids) is not None else ids
    if not isinstance(listed, list | tuple | range):
        raise Invalid(f"ids are {type(ids).__name__}, not a list of ids", field="ids")
    if len(listed) > bounds.DELETE_IDS_MAX:
        raise TooLarge(
            f"{len(listed)} ids at once, up to {bounds.DELETE_IDS_MAX} are allowed; split them",
            field="ids",
            limit=bounds.DELETE_IDS_MAX,
        )
    seqs = BitMap64([_seq(shards, item, "ids") for item in listed])
    return await engine.ask(shards.first, Delete(seqs), int) if seqs else 0


async def count_partitions(engine: Engine, shards: Shards) -> int:
    """Return the number of partitions of a queue; 0 if its delivery is "messages"."""
    cells = await engine.cells(shards.first, Kind.PARTITION)
    cell = cells.get("")
    return cell.size if isinstance(cell, PartitionCell) else 0


def _seq(shards: Shards, id_: object, field: str) -> int:
    if not shards.key:
        raise Invalid(
            "messages have ids where the queue's delivery is 'partitions'; name a seq", field=field
        )
    number = plain_types.whole(id_)
    if number is None or not 0 <= number < IDS:
        raise Invalid(f"{field} is {validate.shown(id_)}, not an id of 63 bits", field=field)
    return seq_of(shards.key, number)
