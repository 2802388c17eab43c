"""What calls ask for, and its answers: commands, facts and streams.

Who may ask is judged before (`admission`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import assert_never

import msgspec

from millrace.client.engine import Engine
from millrace.client.reserved import SECRET_NOTE
from millrace.core.commands import Transaction
from millrace.core.fold import Reader
from millrace.core.topic_cells import SubscriptionCell
from millrace.errors import Invalid
from millrace.meter import Gauges
from millrace.rpc import calls
from millrace.rpc.calls import (
    Ask,
    Call,
    Cancel,
    More,
    ReadBatches,
    Speak,
    Tell,
)
from millrace.rpc.codec import Sheet
from millrace.rpc.frames import Buffer
from millrace.server.access import VERBS
from millrace.server.counted import decode, encode, watched
from millrace.server.verbs import Caller


async def ask(engine: Engine, call: Ask) -> object:
    """Have a command decided."""
    if isinstance(call.command, Transaction):
        return await engine.transact(call.command)
    return await engine.ask(call.shard, call.command, object, wait_ms=call.wait_ms)


async def answer_to(engine: Engine, caller: Caller, call: Call) -> object:
    """The answer to a call that is neither a command nor a stream."""
    match call:
        case calls.ReadRows(shard=shard, seqs=seqs, size=size):
            return await engine.rows(shard, seqs, size)
        case calls.ReadLeased(shard=shard, seqs=seqs, size=size, lease=lease, history=history):
            return await engine.rows(shard, seqs, size, lease, history)
        case calls.Peek(shard=shard, after=after, upto=upto, count=count):
            return await engine.peek(shard, after, upto, count)
        case calls.ReadCells(shard=shard, kind=name):
            kind = calls.CELL_KINDS[name]
            return kind, await engine.cells(shard, kind)
        case calls.FindNumber(shard=shard, producer=producer):
            return await engine.producer_number(shard, producer)
        case calls.FindQueue(space=space, name=name):
            return await engine.find_queue(space, name)
        case calls.ListSpaces():
            return await _spaces(engine, caller)
        case calls.ListQueues(space=space):
            found = await engine.queue_names(space)
            return [name for name in found if caller.may(VERBS, space, name)]
        case calls.FindTopic(space=space, name=name):
            return await engine.find_topic(space, name)
        case calls.ListTopics(space=space):
            found = await engine.topic_names(space)
            return [name for name in found if caller.may(VERBS, space, name)]
        case calls.ListSubscriptions(shard=shard):
            cells = await engine.subscriptions(shard)
            return cells if caller.is_server else {n: _told(cell) for n, cell in cells.items()}
        case calls.ReadTopic(shard=shard):
            return await engine.topic_cell(shard)
        case calls.Arrive(shard=shard, first=first, count=count):
            return await engine.arrived(shard, first, count)
        case calls.ListTrouble(shard=shard):
            return await engine.trouble(shard)
        case calls.ReadSpec(shard=shard):
            return await engine.spec(shard)
        case calls.ReadMeta(shard=shard):
            return await engine.meta(shard)
        case calls.FindSeq(shard=shard, time_ms=time_ms):
            return await engine.seq_at(shard, time_ms)
        case calls.FindName(shard=shard):
            return await engine.name_of(shard)
        case calls.BackUp(into=into, follow=follow):
            made = await engine.care.backup(Path(into), _unheard, follow=follow)
            time_ms = round(made.time.timestamp() * 1000)
            return str(made.path), made.first_index, made.last_index, time_ms, made.bytes
        case calls.ReadBackup():
            return await engine.care.backing_up()
        case calls.Unfollow():
            return await engine.care.unfollow()
        case calls.Repair(shards=shards, export=export, drop=drop):
            done = await engine.care.repair(shards, Path(export) if export else None, drop=drop)
            return done.readable, done.unreadable, done.dropped, done.is_open
        case calls.ReadGauges():
            return _watched(await engine.care.gauges(), caller)
        case calls.ReadHealth():
            health = await engine.care.health()
            return (
                health.refuses,
                health.disk_free_bytes,
                health.scrubbed,
                health.damaged,
                health.archive,
                health.archive_behind_bytes,
                health.archive_gap,
                health.archive_error,
            )
        case Ask() | Tell() | Speak() | ReadBatches() | Cancel() | More():
            raise Invalid(f"{type(call).__name__} is no question", field="call")
        case _:
            assert_never(call)


async def _spaces(engine: Engine, caller: Caller) -> list[str]:
    """The spaces in which there is something that the caller may do something with."""
    found: list[str] = []
    for space in await engine.spaces():
        names = [*await engine.queue_names(space), *await engine.topic_names(space)]
        if any(caller.may(VERBS, space, name) for name in names):
            found.append(space)
    return found


def _watched(gauges: Gauges, caller: Caller) -> Gauges:
    """The same without the queues that the caller may not watch."""
    may = partial(caller.may, ("watch",))
    beside = tuple(encode(watched(decode(text), may)) for text in gauges.beside)
    return msgspec.structs.replace(gauges, beside=beside)


def _unheard(_: int, __: int) -> None:
    """How far a backup is, is not told to other processes."""


async def stream_of(engine: Engine, call: ReadBatches) -> AsyncIterator[list[Buffer]]:
    """The frames of a stream that is pulled."""
    sheet = Sheet()
    shape = calls.CALLS[ReadBatches].answer
    found = engine.batches(call.shard, call.after, call.upto, Reader(call.pin, call.retain))
    async with aclosing(found) as batches:
        async for batch in batches:
            sheet.part(0, shape, batch)
            yield sheet.take()
    sheet.end(0)
    yield sheet.take()


def _told(cell: SubscriptionCell) -> SubscriptionCell:
    """A subscription as clients are told of it: without what the server keeps secret."""
    notes = tuple(pair for pair in cell.notes if pair[0] != SECRET_NOTE)
    return cell if notes == cell.notes else msgspec.structs.replace(cell, notes=notes)
