"""The SQS actions that delete messages and change their visibility timeouts.

Rule 1: on a standard queue every receipt of a message is valid, also after the message was received
again (ADR 0075).
Rule 2: on a FIFO queue a delete after the visibility timeout is refused (ADR 0057).
Rule 3: a change of a visibility timeout that has expired succeeds without effect. It is refused if
the message no longer exists.
"""

from __future__ import annotations

import asyncio
from typing import Any

from millrace.client.engine import CallbackEngine
from millrace.client.lease import LeaseCall as ReceiptCall
from millrace.client.lease_calls import group_by_call
from millrace.client.queue import extend_within, settle_any_delivery
from millrace.core.answers import Outcome
from millrace.core.commands import Settle
from millrace.core.format.receipt import read
from millrace.errors import Forged, Gone, Late, Refused, Stale, TooLarge
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.fault import Fault, bad_value
from millrace.server.aws.queue_info import QueueInfo
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.sqs.faults import bad_receipt, failed_entry, see_entries
from millrace.server.sqs.queue_lookup import known_at, use_at
from millrace.server.sqs.schemas import (
    BatchOut,
    ChangeVisibilityBatchIn,
    ChangeVisibilityIn,
    DeleteMessageBatchIn,
    DeleteMessageIn,
    DoneEntry,
    ReceiptEntry,
    SqsFailedEntry,
)
from millrace.server.sqs.service import SQS
from millrace.server.web.pending_request import PendingRequest

_ENTRY = "DeleteMessageBatchRequestEntry"


def _settle(known: QueueInfo, call: ReceiptCall) -> Settle:
    """Return the command that deletes messages of one receive."""
    is_fifo = known.is_fifo
    return Settle(call.lease, call.seqs, call.history, on_time=is_fifo, any_delivery=not is_fifo)


def _deleted(known: QueueInfo, receipt: str, error: Refused | None) -> None:
    """Translate the outcome of a delete.

    Raises:
        Fault: the delete was refused, and AWS reports that too.
    """
    if error is None:
        return
    if isinstance(error, Stale | Gone):
        if known.is_fifo:
            raise bad_value(receipt, "ReceiptHandle", "The receipt handle has expired.")
        return
    raise error


# --- Deleting ------------------------------------------------------------------------------------


def _begin_delete(call: AwsCall[DeleteMessageIn], engine: CallbackEngine) -> PendingRequest | None:
    known = known_at(call, call.told.queue_url, "work")
    if known is None:
        return None
    queue = known.queue
    receipt = call.told.receipt_handle
    try:
        [one] = group_by_call(engine, queue.shards, queue.name, [receipt])
    except Forged as error:
        raise bad_receipt(receipt) from error
    command = _settle(known, one)
    under = _Deleting(call.ask, engine, engine.submit(one.shard, command))
    under.call, under.known = call, known
    return under


class _Deleting(PendingRequest):
    __slots__ = ("call", "known")

    call: AwsCall[DeleteMessageIn]
    known: QueueInfo

    def read(self, answer: object) -> Response:
        assert isinstance(answer, Outcome)
        receipt = self.call.told.receipt_handle
        self.ask.server.holding.let_go([receipt])
        _deleted(self.known, receipt, next(iter(answer.refused.values()), None))
        return self.call.answer(None)


@SQS.action("DeleteMessage", DeleteMessageIn, begins=_begin_delete)
async def delete_message(call: AwsCall[DeleteMessageIn]) -> None:
    """Delete a message: settle it by its receipt."""

    async def use(known: QueueInfo) -> None:
        await _delete(call, known, call.told.receipt_handle)

    await use_at(call, call.told.queue_url, "work", use)


async def _delete(call: AwsCall[Any], known: QueueInfo, receipt: str) -> None:
    try:
        if known.is_fifo:
            await known.queue.settle(receipt, on_time=True)
        else:
            await settle_any_delivery(known.queue, receipt)
    except Forged as error:
        raise bad_receipt(receipt) from error
    except (Stale, Gone) as error:
        _deleted(known, receipt, error)
    finally:
        call.ask.server.holding.let_go([receipt])


def _begin_batch(
    call: AwsCall[DeleteMessageBatchIn], engine: CallbackEngine
) -> PendingRequest | None:
    """Settle the messages of one receive with one command.

    Return None if the entries belong to several receives: `delete_message_batch` handles those.
    """
    known = known_at(call, call.told.queue_url, "work")
    if known is None:
        return None
    entries, queue = call.told.entries, known.queue
    see_entries([entry.id for entry in entries], _ENTRY, known.bounds.batch)
    try:
        calls = group_by_call(
            engine, queue.shards, queue.name, [entry.receipt_handle for entry in entries]
        )
    except Forged:
        return None
    one = calls[0]
    if len(calls) > 1 or len(one.seqs) < len(entries):
        return None
    command = _settle(known, one)
    under = _DeletingBatch(call.ask, engine, engine.submit(one.shard, command))
    under.call, under.known = call, known
    return under


class _DeletingBatch(PendingRequest):
    __slots__ = ("call", "known")

    call: AwsCall[DeleteMessageBatchIn]
    known: QueueInfo

    def read(self, answer: object) -> Response:
        assert isinstance(answer, Outcome)
        entries, refused = self.call.told.entries, answer.refused
        self.ask.server.holding.let_go([entry.receipt_handle for entry in entries])
        if not refused:
            return self.call.answer(BatchOut([DoneEntry(entry.id) for entry in entries]))
        done: list[DoneEntry] = []
        failed: list[SqsFailedEntry] = []
        for entry in entries:
            receipt = entry.receipt_handle
            try:
                _deleted(self.known, receipt, refused.get(read(receipt)[0].seq))
            except Fault as fault:
                failed.append(failed_entry(entry.id, fault))
            else:
                done.append(DoneEntry(entry.id))
        return self.call.answer(BatchOut(done, failed))


@SQS.action("DeleteMessageBatch", DeleteMessageBatchIn, BatchOut, begins=_begin_batch)
async def delete_message_batch(call: AwsCall[DeleteMessageBatchIn]) -> BatchOut:
    """Delete up to ten messages; each entry has its own result."""
    entries = call.told.entries
    most = call.aws.directory.bounds.batch
    see_entries([entry.id for entry in entries], _ENTRY, most)

    async def one(known: QueueInfo, entry: ReceiptEntry) -> DoneEntry | SqsFailedEntry:
        try:
            await _delete(call, known, entry.receipt_handle)
        except Fault as fault:
            return failed_entry(entry.id, fault)
        return DoneEntry(entry.id)

    async def use(known: QueueInfo) -> BatchOut:
        # Concurrently: all entries share one sync instead of each waiting for its own.
        tried = (one(known, entry) for entry in entries)
        done: list[DoneEntry] = []
        failed: list[SqsFailedEntry] = []
        for found in await asyncio.gather(*tried, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
            if isinstance(found, DoneEntry):
                done.append(found)
            else:
                failed.append(found)
        return BatchOut(done, failed)

    return await use_at(call, call.told.queue_url, "work", use)


# --- Holding -------------------------------------------------------------------------------------


async def _change(call: AwsCall[Any], known: QueueInfo, receipt: str, seconds: int) -> None:
    most = known.bounds.visibility_seconds
    if not 0 <= seconds <= most:
        why = f"VisibilityTimeout must be an integer between 0 and {most}."
        raise bad_value(seconds, "VisibilityTimeout", why)
    queue, holding = known.queue, call.ask.server.holding
    try:
        # 0: the visibility timeout ends now, but the receipt stays valid until the next receive.
        await extend_within(queue, receipt, seconds, most, any_delivery=not known.is_fifo)
        if seconds:
            holding.extend([receipt], now_ms() + seconds * 1000)
        else:
            holding.let_go([receipt])
    except Forged as error:
        raise bad_receipt(receipt) from error
    except TooLarge as error:
        raise bad_value(
            seconds,
            "VisibilityTimeout",
            f"Total VisibilityTimeout for the message is beyond the limit [{most} seconds]",
        ) from error
    except (Stale, Gone) as error:
        # The visibility timeout has expired: as in AWS this succeeds without effect as long as the
        # message exists.
        if not isinstance(error, Late) and not await _is_there(known, receipt):
            why = "Message does not exist or is not available for visibility timeout change."
            raise bad_value(receipt, "ReceiptHandle", why) from error


async def _is_there(known: QueueInfo, receipt: str) -> bool:
    """Return whether the message of a receipt exists and is not finished by any worker."""
    one, _ = read(receipt)
    about = await known.queue.explain(known.queue.shards.place(one.shard, one.seq))
    return about.state not in ("settled", "dead", "unknown")


@SQS.action("ChangeMessageVisibility", ChangeVisibilityIn)
async def change_message_visibility(call: AwsCall[ChangeVisibilityIn]) -> None:
    """Set the visibility timeout of a message, counted from now; 0 returns it to the queue."""
    told = call.told

    async def use(known: QueueInfo) -> None:
        await _change(call, known, told.receipt_handle, told.visibility_timeout)

    await use_at(call, told.queue_url, "work", use)


@SQS.action("ChangeMessageVisibilityBatch", ChangeVisibilityBatchIn, BatchOut)
async def change_message_visibility_batch(call: AwsCall[ChangeVisibilityBatchIn]) -> BatchOut:
    """Set the visibility timeouts of up to ten messages; each entry has its own result."""
    entries = call.told.entries
    most = call.aws.directory.bounds.batch
    see_entries([entry.id for entry in entries], "ChangeMessageVisibilityBatchRequestEntry", most)

    async def use(known: QueueInfo) -> BatchOut:
        done: list[DoneEntry] = []
        failed: list[SqsFailedEntry] = []
        for entry in entries:
            seconds = entry.visibility_timeout
            if seconds is None:
                seconds = known.visibility_seconds
            try:
                await _change(call, known, entry.receipt_handle, seconds)
            except Fault as fault:
                failed.append(failed_entry(entry.id, fault))
            else:
                done.append(DoneEntry(entry.id))
        return BatchOut(done, failed)

    return await use_at(call, call.told.queue_url, "work", use)
