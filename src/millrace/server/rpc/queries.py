"""Execution of admitted calls on an engine: commands, queries and streams.

The calls are authorized before, by `call_authorizer`.
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
from millrace.core.cells import SubscriptionCell
from millrace.core.commands import ApplyTransaction
from millrace.core.state.fold import Reader
from millrace.errors import Invalid
from millrace.instruments import Gauges
from millrace.rpc import calls
from millrace.rpc.calls import (
    BatchTaken,
    Call,
    Cancel,
    Heartbeat,
    Notify,
    ReadBatches,
    Submit,
)
from millrace.rpc.codec import FrameWriter
from millrace.rpc.frames import Buffer
from millrace.server.auth.access import VERBS
from millrace.server.counters import decode, encode, watched
from millrace.server.rpc.call_permissions import Caller


async def ask(engine: Engine, call: Submit) -> object:
    """Run a command on the engine and return its answer."""
    if isinstance(call.command, ApplyTransaction):
        return await engine.transact(call.command)
    return await engine.ask(call.shard, call.command, object, wait_ms=call.wait_ms)


async def answer_to(engine: Engine, caller: Caller, call: Call) -> object:
    """Return the answer to a query, a call that is neither a command nor a stream."""
    match call:
        case calls.ReadRows(shard=shard, seqs=seqs, size=size):
            return await engine.rows(shard, seqs, size)
        case calls.ReadLeased(shard=shard, seqs=seqs, size=size, lease=lease, history=history):
            return await engine.rows(shard, seqs, size, lease, history)
        case calls.Peek(shard=shard, after=after, upto=upto, count=count):
            return await engine.peek(shard, after, upto, count)
        case calls.ReadCells(shard=shard, kind=name):
            kind = calls.READABLE_CELL_KINDS[name]
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
        case calls.AwaitForwarding(shard=shard, first=first, count=count):
            return await engine.arrived(shard, first, count)
        case calls.ListForwardErrors(shard=shard):
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
            made = await engine.maintenance.backup(Path(into), _unheard, follow=follow)
            time_ms = round(made.time.timestamp() * 1000)
            return str(made.path), made.first_index, made.last_index, time_ms, made.bytes
        case calls.ReadBackup():
            return await engine.maintenance.backing_up()
        case calls.Unfollow():
            return await engine.maintenance.unfollow()
        case calls.Repair(shards=shards, export=export, drop=drop):
            done = await engine.maintenance.repair(
                shards, Path(export) if export else None, drop=drop
            )
            return done.readable, done.unreadable, done.dropped, done.is_open
        case calls.ReadGauges():
            return _watched(await engine.maintenance.gauges(), caller)
        case calls.ReadHealth():
            health = await engine.maintenance.health()
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
        case Submit() | Notify() | Heartbeat() | ReadBatches() | Cancel() | BatchTaken():
            raise Invalid(f"{type(call).__name__} is no question", field="call")
        case _:
            assert_never(call)


async def _spaces(engine: Engine, caller: Caller) -> list[str]:
    """Return the spaces with a queue or topic on which the caller has any right."""
    found: list[str] = []
    for space in await engine.spaces():
        names = [*await engine.queue_names(space), *await engine.topic_names(space)]
        if any(caller.may(VERBS, space, name) for name in names):
            found.append(space)
    return found


def _watched(gauges: Gauges, caller: Caller) -> Gauges:
    """Return gauges without the queues that the caller may not watch."""
    may = partial(caller.may, ("watch",))
    beside = tuple(encode(watched(decode(text), may)) for text in gauges.beside)
    return msgspec.structs.replace(gauges, beside=beside)


def _unheard(_: int, __: int) -> None:
    """Ignore the progress of a backup: other processes do not receive it."""


async def stream_of(engine: Engine, call: ReadBatches) -> AsyncIterator[list[Buffer]]:
    """Yield the frames of a stream of batches."""
    sheet = FrameWriter()
    shape = calls.CALLS[ReadBatches].answer
    found = engine.batches(call.shard, call.after, call.upto, Reader(call.pin, call.retain))
    async with aclosing(found) as batches:
        async for batch in batches:
            sheet.part(0, shape, batch)
            yield sheet.take()
    sheet.end(0)
    yield sheet.take()


def _told(cell: SubscriptionCell) -> SubscriptionCell:
    """Return a subscription without the notes that the server keeps secret."""
    notes = tuple(pair for pair in cell.notes if pair[0] != SECRET_NOTE)
    return cell if notes == cell.notes else msgspec.structs.replace(cell, notes=notes)
