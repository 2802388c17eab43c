"""What a queue counts: over all of its shards, or for each of them."""

from __future__ import annotations

import msgspec

from millrace.client.engine import Engine
from millrace.client.shards import Shards
from millrace.core.holder import Holder, Holders, ListHolders
from millrace.core.model import CursorCell, Death, Kind
from millrace.core.stage_cells import StageCell


async def shard_counts(engine: Engine, shards: Shards) -> list[dict[str, int]]:
    """The durable counters of each shard."""
    found: list[dict[str, int]] = []
    for shard in shards.ids:
        meta = await engine.meta(shard)
        counts = {"published": meta.published, "live": meta.live}
        found.append(counts | {death.name.lower(): meta.died[death] for death in Death})
    return found


def sums(counts: list[dict[str, int]]) -> dict[str, int]:
    """The counters of all shards together."""
    return {name: sum(one[name] for one in counts) for name in counts[0]}


async def stage_rows(engine: Engine, shards: Shards) -> dict[str, int]:
    """The rows of each stage."""
    rows: dict[str, int] = {}
    for shard in shards.ids:
        for name, cell in (await engine.cells(shard, Kind.STAGE)).items():
            if isinstance(cell, StageCell):
                rows[name] = rows.get(name, 0) + cell.rows
    return rows


async def cursor_seqs(engine: Engine, shards: Shards) -> dict[str, int]:
    """How far each cursor has committed: the sum of its seqs."""
    seqs: dict[str, int] = {}
    for shard in shards.ids:
        for name, cell in (await engine.cells(shard, Kind.CURSOR)).items():
            if isinstance(cell, CursorCell):
                seqs[name] = seqs.get(name, 0) + cell.position.seq
    return seqs


async def all_holders(engine: Engine, shards: Shards) -> Holders:
    """Who keeps rows from going, on any shard; what is left, of the first one."""
    held: list[Holder] = []
    found = [await engine.ask(shard, ListHolders(), Holders) for shard in shards.ids]
    if shards.is_one:
        return found[0]
    for shard, holders in zip(shards.ids, found, strict=True):
        held += [
            msgspec.structs.replace(holder, seq=shards.place(shard, holder.seq))
            for holder in holders.held
        ]
    first, wanted = found[0].first, found[0].wanted
    return Holders(
        shards.place(shards.first, first),
        shards.place(shards.first, wanted),
        tuple(held),
        sum(holders.in_flight for holders in found),
        sum(holders.held_by_workers for holders in found),
        sum(holders.delayed for holders in found),
    )
