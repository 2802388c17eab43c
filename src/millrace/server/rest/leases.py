"""Leases of messages: lease, settle, release, discard, extend, replace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from millrace import limits
from millrace.client.engine import CallbackEngine
from millrace.client.lease_calls import group_by_call
from millrace.client.leasing import LeaseResult, lease_command
from millrace.client.message import sort_by_turn
from millrace.client.queue import Queue, lease_with_result, read_leased
from millrace.core.answers import Leased, Outcome
from millrace.core.commands import LeaseMessages as Command
from millrace.core.commands import Settle
from millrace.core.format.receipt import read
from millrace.errors import Invalid, Refused
from millrace.server.clock import now_ms
from millrace.server.http.listener_context import Answer
from millrace.server.http.response import Response
from millrace.server.rest.route_table import QUEUE, ROUTES
from millrace.server.web.message import (
    LeaseOut,
    body_in,
    lease_out,
    leases_out,
    seq_out,
)
from millrace.server.web.message_listing import T, listed
from millrace.server.web.pending_request import LongPoll, PendingRequest
from millrace.server.web.problem import RefusedOut, answer_refused, problem_of
from millrace.server.web.route import RequestContext, encode

_MESSAGES = b'{"messages":['

Receipts = Annotated[list[str], msgspec.Meta(min_length=1, max_length=limits.LEASE_MESSAGES_MAX)]


class LeaseAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of messages to lease, and the duration."""

    count: int = 1
    seconds: float = 30
    """Seconds until the lease ends; until then, the messages are not delivered to anybody else."""
    wait: float = 0
    """Seconds to wait for the first message."""
    attempt: str | None = None
    """An idempotency key: a repeated call with the same key gets the same messages."""


class Leases(msgspec.Struct, frozen=True, omit_defaults=True):
    """The leased messages; empty if there were none in time."""

    messages: list[LeaseOut]
    bounded: bool = False
    """True if the list is empty because the limit `max_in_flight` is reached."""


def _lease_quick(
    ask: RequestContext, params: LeaseAsk, engine: CallbackEngine
) -> PendingRequest | None:
    queue = ask.known()
    if queue is None or ask.server.quotas.of(ask.principal).in_flight:
        return None
    command, wait_ms = lease_command(params.count, params.seconds, params.wait, params.attempt)
    if wait_ms and ask.server.stopping.is_set:
        return None
    asked = engine.submit(queue.shards.first, command, wait_ms)
    ask.waits = wait_ms > 0
    under = (_Polling if wait_ms else _Leasing)(ask, engine, asked)
    under.queue = queue
    under.command = command
    return under


class _Leasing(PendingRequest):
    __slots__ = ("command", "queue")

    queue: Queue
    command: Command

    def read(self, answer: object) -> Answer:
        assert isinstance(answer, Leased)
        engine, shards = self.engine, self.queue.shards
        shard, seqs = shards.first, answer.seqs
        if not seqs:
            return self._none(bounded=answer.bounded)
        rows = engine.rows_in_memory(shard, seqs, limits.LEASE_BYTES_MAX)
        if rows is None or len(rows) < len(seqs):
            # Some rows are not in memory, or fewer exist than were leased: read them in a task.
            return self._fetched(answer)
        turns = sort_by_turn(rows, answer.turns)
        return self._given(turns, leases_out(engine, shard, shards.key, answer, turns))

    async def _fetched(self, leased: Leased) -> Response:
        found = await read_leased(self.queue, self.command, leased)
        return self._given(found, lease_out)

    def none(self) -> Response:
        return self._none()

    def _none(self, *, bounded: bool = False) -> Response:
        self._note(0)
        return Response(200, encode(Leases([], bounded)))

    def _given(self, found: Sequence[T], out: Callable[[T], LeaseOut]) -> Response:
        self._note(len(found))
        return listed(_MESSAGES, found, out, b"]}")

    def _note(self, count: int) -> None:
        queue = self.queue
        self.ask.server.handed.note(queue.space, queue.name, self.command.count, count)


class _Polling(_Leasing, LongPoll):
    __slots__ = ()


@ROUTES.json("POST", f"{QUEUE}/leases", "work", LeaseAsk, Leases, tag="work", quick=_lease_quick)
async def lease(ask: RequestContext, params: LeaseAsk) -> Response | Leases:
    """Lease messages, waiting for the first one if requested."""

    holding = ask.server.holding
    reserved = await holding.reserve(ask.principal, "in_flight", params.count)

    async def use() -> LeaseResult:
        asked = lease_command(reserved.count, params.seconds, params.wait, params.attempt)
        return await ask.queue(lambda queue: lease_with_result(queue, *asked))

    try:
        handed = await (ask.until(use) if params.wait > 0 else use()) or LeaseResult(
            [], bounded=False
        )
        found = handed.leases
        if found:
            holding.keep(reserved, (one.receipt for one in found), found[0].deadline_ms)
    finally:
        reserved.cancel()
    ask.server.handed.note(ask.params["space"], ask.params["queue"], params.count, len(found))
    if not found:
        return Leases([], handed.bounded)
    return listed(_MESSAGES, found, lease_out, b"]}")


class ReceiptsAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages by the receipts of their leases."""

    receipts: Receipts


class SettleAsk(ReceiptsAsk, frozen=True, forbid_unknown_fields=True):
    """The messages to settle."""

    on_time: bool = False
    """Refuse messages whose deadline has passed, even if nobody else has leased them."""


class SettleResult(msgspec.Struct, frozen=True):
    """The result for each message.

    If every message is refused, regardless of their number, the response is the problem of the
    first refusal, with the same members.
    """

    done: int
    refused: list[RefusedOut] = []


def _let_go(ask: RequestContext, params: list[str], refused: dict[int, Refused]) -> Response:
    """Stop counting the messages as in flight, also the refused ones, and return the response."""
    ask.server.holding.let_go(params)
    return _ended(params, refused)


def _ended(receipts: list[str], refused: dict[int, Refused]) -> Response:
    found = [RefusedOut(seq_out(seq), problem_of(error)) for seq, error in refused.items()]
    done = len(receipts) - len(found)
    if not done:
        return answer_refused(found)
    return Response(200, encode(SettleResult(done, found)))


def _each(params: list[str]) -> list[str]:
    """Return the receipts without repetitions.

    Raises:
        Invalid: two receipts are of the same message, so that the response could not tell them
            apart.
        Forged: a receipt is invalid.
    """
    if len(params) == 1:
        return params
    each = list(dict.fromkeys(params))
    if len({(found.shard, found.seq) for found, _ in map(read, each)}) < len(each):
        raise Invalid("two receipts are of one message; send the newest of them", field="receipts")
    return each


def _settle_quick(
    ask: RequestContext, params: SettleAsk, engine: CallbackEngine
) -> PendingRequest | None:
    queue = ask.known()
    if queue is None:
        return None
    receipts = _each(params.receipts)
    calls = group_by_call(engine, queue.shards, queue.name, receipts)
    if len(calls) != 1:
        return None
    [call] = calls
    command = Settle(call.lease, call.seqs, call.history, params.on_time)
    under = _Settling(ask, engine, engine.submit(call.shard, command))
    under.receipts = receipts
    return under


class _Settling(PendingRequest):
    __slots__ = ("receipts",)

    receipts: list[str]

    def read(self, answer: object) -> Response:
        assert isinstance(answer, Outcome)
        return _let_go(self.ask, self.receipts, answer.refused)


@ROUTES.json(
    "POST", f"{QUEUE}/settle", "work", SettleAsk, SettleResult, tag="work", quick=_settle_quick
)
async def settle(ask: RequestContext, params: SettleAsk) -> Response:
    """Settle messages: the work is done, and they are not delivered again."""
    receipts = _each(params.receipts)
    refused = await ask.queue(lambda queue: queue.settle(receipts, on_time=params.on_time))
    return _let_go(ask, receipts, refused)


class ReleaseAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The messages to release."""

    receipts: Receipts
    failed: bool = False
    """Count the delivery as a failure."""
    delay: float = 0
    """Seconds until the messages can be delivered again."""
    on_time: bool = False
    """As for settling."""


@ROUTES.json("POST", f"{QUEUE}/release", "work", ReleaseAsk, SettleResult, tag="work")
async def release(ask: RequestContext, params: ReleaseAsk) -> Response:
    """Release messages, so that they can be delivered again."""
    receipts = _each(params.receipts)
    return _let_go(
        ask,
        receipts,
        await ask.queue(
            lambda queue: queue.release(
                receipts, failed=params.failed, delay=params.delay, on_time=params.on_time
            )
        ),
    )


@ROUTES.json("POST", f"{QUEUE}/discard", "work", ReceiptsAsk, SettleResult, tag="work")
async def discard(ask: RequestContext, params: ReceiptsAsk) -> Response:
    """Discard messages that can never be processed: they become dead letters."""
    receipts = _each(params.receipts)
    return _let_go(ask, receipts, await ask.queue(lambda queue: queue.discard(receipts)))


class ExtendAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The messages to extend, and their time in seconds from now."""

    receipts: Receipts
    seconds: float = 30
    on_time: bool = False
    """As for settling."""


@ROUTES.json("POST", f"{QUEUE}/extend", "work", ExtendAsk, SettleResult, tag="work")
async def extend(ask: RequestContext, params: ExtendAsk) -> Response:
    """Extend the leases of messages."""
    receipts = _each(params.receipts)
    refused = await ask.queue(
        lambda queue: queue.extend(receipts, params.seconds, on_time=params.on_time)
    )
    ask.server.holding.extend(receipts, now_ms() + int(params.seconds * 1000))
    return _ended(receipts, refused)


class ReplaceAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The successor of a message."""

    receipt: str
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    seconds: float = 30


@ROUTES.json("POST", f"{QUEUE}/replace", "work", ReplaceAsk, LeaseOut, tag="work")
async def replace(ask: RequestContext, params: ReplaceAsk) -> LeaseOut:
    """Replace a leased message by another one, and lease that to the caller."""
    body = body_in(params.body, params.body_base64)
    if body is None:
        raise Invalid("the message has no body; send body or body_base64", field="body")
    after = await ask.queue(
        lambda queue: queue.replace(params.receipt, body, seconds=params.seconds)
    )
    ask.server.holding.replace(params.receipt, after.receipt, after.deadline_ms)
    return lease_out(after)


class IdsAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages by their ids."""

    ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=limits.LEASE_MESSAGES_MAX)]


class DeleteResult(msgspec.Struct, frozen=True):
    """Number of messages that existed and were deleted."""

    count: int


@ROUTES.json("POST", f"{QUEUE}/delete", "work", IdsAsk, DeleteResult, tag="work")
async def delete_messages(ask: RequestContext, params: IdsAsk) -> DeleteResult:
    """Delete messages by their ids, even if leased; for queues with delivery `partitions`."""
    ids = [_id(text) for text in params.ids]

    async def use(queue: Queue) -> int:
        return await queue.delete(ids)

    return DeleteResult(await ask.queue(use))


def _id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Invalid(f"{text[:40]!r} is no id of a message", field="ids")
    return int(text)
