"""Leasing messages, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from millrace import limits
from millrace.client.calls import calls_of
from millrace.client.leasing import Handed, lease_command
from millrace.client.message import by_turns
from millrace.client.queue import Queue, lease_handed, read_leased
from millrace.client.submitting import Submits
from millrace.core.answers import Leased, Outcome
from millrace.core.commands import Lease as Command
from millrace.core.commands import Settle
from millrace.core.receipt import read
from millrace.errors import Invalid, Refused
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.http.site import Answer
from millrace.server.rest.listing import T, listed
from millrace.server.rest.message import LeaseOut, body_in, lease_out, leases_out, seq_out
from millrace.server.rest.problem import RefusedOut, answer_refused, problem_of
from millrace.server.rest.route import Ask, encode
from millrace.server.rest.table import QUEUE, ROUTES
from millrace.server.rest.under import Poll, Under

_MESSAGES = b'{"messages":['

Receipts = Annotated[list[str], msgspec.Meta(min_length=1, max_length=limits.LEASE_MESSAGES_MAX)]


class LeaseAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wanted, and for how long."""

    count: int = 1
    seconds: float = 30
    """For how long nobody else gets them."""
    wait: float = 0
    """For how long to wait for the first one."""
    attempt: str | None = None
    """An id of the caller's own: the same call again is given the same messages."""


class Leases(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages that are the caller's now; none, if none came."""

    messages: list[LeaseOut]
    bounded: bool = False
    """There are none because as many are with workers as `max_in_flight` allows."""


def _lease_quick(ask: Ask, told: LeaseAsk, engine: Submits) -> Under | None:
    queue = ask.known()
    if queue is None or ask.server.quotas.of(ask.principal).in_flight:
        return None
    command, wait_ms = lease_command(told.count, told.seconds, told.wait, told.attempt)
    if wait_ms and ask.server.stopping.is_set:
        return None
    asked = engine.submit(queue.shards.first, command, wait_ms)
    ask.waits = wait_ms > 0
    under = (_Polling if wait_ms else _Leasing)(ask, engine, asked)
    under.queue = queue
    under.command = command
    return under


class _Leasing(Under):
    __slots__ = ("command", "queue")

    queue: Queue
    command: Command

    def read(self, answer: object) -> Answer:
        assert isinstance(answer, Leased)
        engine, shards = self.engine, self.queue.shards
        shard, seqs = shards.first, answer.seqs
        if not seqs:
            return self._none(bounded=answer.bounded)
        rows = engine.rows_at_hand(shard, seqs, limits.LEASE_BYTES_MAX)
        if rows is None or len(rows) < len(seqs):
            # They have to be fetched; or are fewer than were leased.
            return self._fetched(answer)
        turns = by_turns(rows, answer.turns)
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


class _Polling(_Leasing, Poll):
    __slots__ = ()


@ROUTES.json("POST", f"{QUEUE}/leases", "work", LeaseAsk, Leases, tag="work", quick=_lease_quick)
async def lease(ask: Ask, told: LeaseAsk) -> Response | Leases:
    """Lease messages, waiting for the first one if need be."""

    holding = ask.server.holding
    reserved = await holding.reserve(ask.principal, "in_flight", told.count)

    async def use() -> Handed:
        asked = lease_command(reserved.count, told.seconds, told.wait, told.attempt)
        return await ask.queue(lambda queue: lease_handed(queue, *asked))

    try:
        handed = await (ask.until(use) if told.wait > 0 else use()) or Handed([], bounded=False)
        found = handed.leases
        if found:
            holding.keep(reserved, (one.receipt for one in found), found[0].deadline_ms)
    finally:
        reserved.cancel()
    ask.server.handed.note(ask.params["space"], ask.params["queue"], told.count, len(found))
    if not found:
        return Leases([], handed.bounded)
    return listed(_MESSAGES, found, lease_out, b"]}")


class ReceiptsAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages, by the receipts of their leases."""

    receipts: Receipts


class SettleAsk(ReceiptsAsk, frozen=True, forbid_unknown_fields=True):
    """Which messages are done."""

    on_time: bool = False
    """Those whose deadline is over are refused, although nobody else has leased them."""


class Ended(msgspec.Struct, frozen=True):
    """What became of the messages: each is judged alone.

    Where all of them were refused, however many there are, the answer is the problem of the first
    one, with the same members.
    """

    done: int
    refused: list[RefusedOut] = []


def _let_go(ask: Ask, told: list[str], refused: dict[int, Refused]) -> Response:
    """Whatever became of them, they are no longer the caller's."""
    ask.server.holding.let_go(told)
    return _ended(told, refused)


def _ended(receipts: list[str], refused: dict[int, Refused]) -> Response:
    found = [RefusedOut(seq_out(seq), problem_of(error)) for seq, error in refused.items()]
    done = len(receipts) - len(found)
    if not done:
        return answer_refused(found)
    return Response(200, encode(Ended(done, found)))


def _each(told: list[str]) -> list[str]:
    """The receipts, each once.

    Raises:
        Invalid: two are of one message, so that nobody could tell which of them was refused.
        Forged: one of them is no receipt.
    """
    if len(told) == 1:
        return told
    each = list(dict.fromkeys(told))
    if len({(found.shard, found.seq) for found, _ in map(read, each)}) < len(each):
        raise Invalid("two receipts are of one message; send the newest of them", field="receipts")
    return each


def _settle_quick(ask: Ask, told: SettleAsk, engine: Submits) -> Under | None:
    queue = ask.known()
    if queue is None:
        return None
    receipts = _each(told.receipts)
    calls = calls_of(engine, queue.shards, queue.name, receipts)
    if len(calls) != 1:
        return None
    [call] = calls
    command = Settle(call.lease, call.seqs, call.history, told.on_time)
    under = _Settling(ask, engine, engine.submit(call.shard, command))
    under.receipts = receipts
    return under


class _Settling(Under):
    __slots__ = ("receipts",)

    receipts: list[str]

    def read(self, answer: object) -> Response:
        assert isinstance(answer, Outcome)
        return _let_go(self.ask, self.receipts, answer.refused)


@ROUTES.json("POST", f"{QUEUE}/settle", "work", SettleAsk, Ended, tag="work", quick=_settle_quick)
async def settle(ask: Ask, told: SettleAsk) -> Response:
    """The work on these messages is done: nobody gets them again."""
    receipts = _each(told.receipts)
    refused = await ask.queue(lambda queue: queue.settle(receipts, on_time=told.on_time))
    return _let_go(ask, receipts, refused)


class ReleaseAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages are given back, and how."""

    receipts: Receipts
    failed: bool = False
    """It counts as a failure."""
    delay: float = 0
    """Seconds before anybody gets them."""
    on_time: bool = False
    """As for settling."""


@ROUTES.json("POST", f"{QUEUE}/release", "work", ReleaseAsk, Ended, tag="work")
async def release(ask: Ask, told: ReleaseAsk) -> Response:
    """Give messages back."""
    receipts = _each(told.receipts)
    return _let_go(
        ask,
        receipts,
        await ask.queue(
            lambda queue: queue.release(
                receipts, failed=told.failed, delay=told.delay, on_time=told.on_time
            )
        ),
    )


@ROUTES.json("POST", f"{QUEUE}/discard", "work", ReceiptsAsk, Ended, tag="work")
async def discard(ask: Ask, told: ReceiptsAsk) -> Response:
    """Make dead letters of messages that nobody will ever be able to work on."""
    receipts = _each(told.receipts)
    return _let_go(ask, receipts, await ask.queue(lambda queue: queue.discard(receipts)))


class ExtendAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages are held on to, and for how long from now."""

    receipts: Receipts
    seconds: float = 30
    on_time: bool = False
    """As for settling."""


@ROUTES.json("POST", f"{QUEUE}/extend", "work", ExtendAsk, Ended, tag="work")
async def extend(ask: Ask, told: ExtendAsk) -> Response:
    """Hold messages for longer."""
    receipts = _each(told.receipts)
    refused = await ask.queue(
        lambda queue: queue.extend(receipts, told.seconds, on_time=told.on_time)
    )
    ask.server.holding.extend(receipts, now_ms() + int(told.seconds * 1000))
    return _ended(receipts, refused)


class ReplaceAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message's successor."""

    receipt: str
    body: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    seconds: float = 30


@ROUTES.json("POST", f"{QUEUE}/replace", "work", ReplaceAsk, LeaseOut, tag="work")
async def replace(ask: Ask, told: ReplaceAsk) -> LeaseOut:
    """Put another message in the place of a leased one, and hold that one instead."""
    body = body_in(told.body, told.body_base64)
    if body is None:
        raise Invalid("the message has no body; send body or body_base64", field="body")
    after = await ask.queue(lambda queue: queue.replace(told.receipt, body, seconds=told.seconds))
    ask.server.holding.replace(told.receipt, after.receipt, after.deadline_ms)
    return lease_out(after)


class IdsAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages, by their ids."""

    ids: Annotated[list[str], msgspec.Meta(min_length=1, max_length=limits.LEASE_MESSAGES_MAX)]


class Deleted(msgspec.Struct, frozen=True):
    """How many were there."""

    count: int


@ROUTES.json("POST", f"{QUEUE}/delete", "work", IdsAsk, Deleted, tag="work")
async def delete_messages(ask: Ask, told: IdsAsk) -> Deleted:
    """End messages by their ids, whoever holds them, where the delivery is "partitions"."""
    ids = [_id(text) for text in told.ids]

    async def use(queue: Queue) -> int:
        return await queue.delete(ids)

    return Deleted(await ask.queue(use))


def _id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Invalid(f"{text[:40]!r} is no id of a message", field="ids")
    return int(text)
