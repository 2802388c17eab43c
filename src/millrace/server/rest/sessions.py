"""Sessions: push delivery of messages, limited by the consumer's credit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Annotated

import msgspec

from millrace import limits
from millrace.client.lease import Lease
from millrace.client.queue import Queue
from millrace.client.session import Session, count_held
from millrace.core import validate
from millrace.errors import Invalid, Refused
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.quota.quotas import NEVER_MS, Reservation
from millrace.server.rest.queues import WasThere
from millrace.server.rest.route_table import QUEUE, ROUTES
from millrace.server.web.event_stream import (
    QUIET,
    answer,
    event,
    media,
)
from millrace.server.web.message import LeaseOut, lease_out
from millrace.server.web.message_listing import listed
from millrace.server.web.problem import Problem, problem_of
from millrace.server.web.route import (
    Nothing,
    RequestContext,
    encode,
    read_query,
)

SESSION = f"{QUEUE}/sessions/{{session}}"
Number = Annotated[int, msgspec.Meta(ge=0)]


class SessionAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a new session, or the id of one to resume."""

    credit: int = 100
    """The maximum number of messages in flight; without `refill`, the number of deliveries in
    total.
    """
    refill: bool = True
    """Settling a message restores its credit."""
    lease: float | None = None
    """Seconds until the lease of each message ends; null: it lasts as long as the session."""
    suspect: float = 60
    """Seconds that the session keeps its messages without a sign of life from its client."""
    name: str | None = None
    resume: str | None = None
    """The id of a session to resume with its settings; messages that it holds are delivered
    again.
    """


class SessionOut(msgspec.Struct, frozen=True):
    """An open session."""

    session: str
    """The session's id. Anyone who knows it and has the right to work on the queue can resume
    it.
    """
    name: str
    idle_seconds: float
    """The idle timeout in seconds: send a request or heartbeat well within it, or the session
    ends.
    """


class Delivered(LeaseOut, frozen=True, omit_defaults=True, kw_only=True):
    """A message of a session."""

    number: int
    """The delivery's number: 0, 1, 2… without gaps."""


def _delivered(lease: Lease) -> Delivered:
    fields = msgspec.structs.asdict(lease_out(lease))
    return Delivered(**fields, number=lease.number or 0)


def _owner(ask: RequestContext) -> tuple[str, str, str]:
    return ask.principal.name, ask.params["space"], ask.params["queue"]


def _use(ask: RequestContext) -> AbstractAsyncContextManager[Session]:
    return ask.server.sessions.use(ask.params["session"], _owner(ask))


@ROUTES.json(
    "POST", f"{QUEUE}/sessions", "work", SessionAsk, SessionOut, status=201, tag="sessions"
)
async def open_session(ask: RequestContext, params: SessionAsk) -> SessionOut:
    """Open a session, or resume one."""
    with ask.server.sessions.place(ask.principal):
        return await _open(ask, params)


async def _open(ask: RequestContext, params: SessionAsk) -> SessionOut:
    sessions = ask.server.sessions
    reserved = await ask.server.holding.reserve(ask.principal, "in_flight", params.credit)

    async def use(queue: Queue) -> Session:
        session = queue.session(
            credit=reserved.count,
            refill=params.refill,
            lease=params.lease,
            suspect=params.suspect,
            name=params.name,
            resume=params.resume,
        )
        return await session.open()

    try:
        session = await ask.queue(use)
        id = sessions.hold(session, _owner(ask), params.suspect)
        _count(ask, id, reserved, refill=params.refill)
    finally:
        reserved.cancel()
    return SessionOut(id, session.name, sessions.silence_seconds)


def _count(ask: RequestContext, id: str, reserved: Reservation, *, refill: bool) -> None:
    """Count granted credit as messages in flight while the session lasts.

    Credit that is not refilled counts until the messages that used it have ended.
    """
    quotas = ask.server.quotas
    at = object() if refill else _credit(id)
    if reserved.is_counted:
        reserved.keep(at, reserved.count, NEVER_MS)
    ask.server.sessions.note_end(
        id, lambda seconds: quotas.extend(at, now_ms() + int(seconds * 1000))
    )


def _credit(id: str) -> tuple[str, str]:
    """Return the quota key of a session's credit that settling does not refill."""
    return "credit", id


class ReceiveAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of messages, and the seconds to wait for the first one."""

    count: int = 100
    wait: float = 0


class DeliveredMany(msgspec.Struct, frozen=True):
    """Messages in the order of their numbers."""

    messages: list[Delivered]
    over: bool = False
    """True if the session is cancelled and nothing more will be delivered."""


@ROUTES.json("POST", f"{SESSION}/receive", "work", ReceiveAsk, DeliveredMany, tag="sessions")
async def receive(ask: RequestContext, params: ReceiveAsk) -> Response:
    """Return the next messages, waiting for the first one if requested."""
    count = validate.count(params.count, "count", limits.LEASE_MESSAGES_MAX)
    wait_ms = validate.millis(params.wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
    found: list[Lease] = []
    size = 0
    async with _use(ask) as session:
        try:
            while len(found) < count and size < limits.LEASE_BYTES_MAX:
                lease = await _next(ask, session, 0 if found else wait_ms / 1000)
                if lease is None:
                    break
                found.append(lease)
                size += len(lease.body)
        except StopAsyncIteration:
            return _told(found, over=True)
    return _told(found)


def _told(found: list[Lease], *, over: bool = False) -> Response:
    after = b'],"over":%b}' % encode(over)
    return listed(b'{"messages":[', found, _delivered, after)


async def _next(ask: RequestContext, session: Session, wait: float) -> Lease | None:
    """Return the next message, or None if there is none in time."""

    async def use() -> Lease | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                return await anext(session)
        return None

    return await (ask.until(use) if wait else use())


class GrantAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The credit to add."""

    credit: int
    drain: bool = False
    """Deliver the messages that are available now, and then take back the unused credit."""


class GrantedOut(msgspec.Struct, frozen=True):
    """The result of a grant."""

    drained: int
    """The amount of credit that was taken back."""


@ROUTES.json("POST", f"{SESSION}/grant", "work", GrantAsk, GrantedOut, tag="sessions")
async def grant(ask: RequestContext, params: GrantAsk) -> GrantedOut:
    """Add credit to a session that is not refilled."""
    reserved = await ask.server.holding.reserve(ask.principal, "in_flight", params.credit)
    try:
        async with _use(ask) as session:
            drained = await session.grant(reserved.count, drain=params.drain)
            quotas, at = ask.server.quotas, _credit(ask.params["session"])
            reserved.keep(at, quotas.count(at) + reserved.count, NEVER_MS)
            quotas.let_go(at, drained)
    finally:
        reserved.cancel()
    return GrantedOut(drained)


class NumbersAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Deliveries by their numbers: a list, or all up to one."""

    numbers: (
        Annotated[list[Number], msgspec.Meta(min_length=1, max_length=limits.LEASE_MESSAGES_MAX)]
        | None
    ) = None
    upto: Number | None = None


class RefusedNumber(msgspec.Struct, frozen=True):
    """A delivery for which the operation was refused."""

    number: int
    problem: Problem


class EndedNumbers(msgspec.Struct, frozen=True):
    """The result for the deliveries; numbers that the session does not hold are ignored."""

    done: int
    refused: list[RefusedNumber] = []


def _ended(ask: RequestContext, count: int, refused: dict[int, Refused]) -> EndedNumbers:
    found = [RefusedNumber(number, problem_of(error)) for number, error in refused.items()]
    done = count - len(found)
    ask.server.quotas.let_go(_credit(ask.params["session"]), done)
    return EndedNumbers(done, found)


@ROUTES.json("POST", f"{SESSION}/settle", "work", NumbersAsk, EndedNumbers, tag="sessions")
async def settle_numbers(ask: RequestContext, params: NumbersAsk) -> EndedNumbers:
    """Settle deliveries: the work is done."""
    async with _use(ask) as session:
        count = count_held(session, params.numbers, params.upto)
        return _ended(ask, count, await session.settle(params.numbers, upto=params.upto))


class ReleaseNumbersAsk(NumbersAsk, frozen=True, forbid_unknown_fields=True):
    """The deliveries to release."""

    failed: bool = False
    """Count the deliveries as failures."""
    delay: float = 0
    """Seconds until the messages can be delivered again."""


@ROUTES.json("POST", f"{SESSION}/release", "work", ReleaseNumbersAsk, EndedNumbers, tag="sessions")
async def release_numbers(ask: RequestContext, params: ReleaseNumbersAsk) -> EndedNumbers:
    """Release deliveries, so that they can be delivered again."""
    async with _use(ask) as session:
        count = count_held(session, params.numbers, params.upto)
        refused = await session.release(
            params.numbers, upto=params.upto, failed=params.failed, delay=params.delay
        )
        return _ended(ask, count, refused)


@ROUTES.json("POST", f"{SESSION}/discard", "work", NumbersAsk, EndedNumbers, tag="sessions")
async def discard_numbers(ask: RequestContext, params: NumbersAsk) -> EndedNumbers:
    """Discard deliveries: they become dead letters."""
    async with _use(ask) as session:
        count = count_held(session, params.numbers, params.upto)
        return _ended(ask, count, await session.discard(params.numbers, upto=params.upto))


class RedeliverAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first delivery to repeat."""

    number: Number = 0


class SessionConfirmation(msgspec.Struct, frozen=True):
    """Confirmation without content."""


@ROUTES.json(
    "POST", f"{SESSION}/redeliver", "work", RedeliverAsk, SessionConfirmation, tag="sessions"
)
async def redeliver(ask: RequestContext, params: RedeliverAsk) -> SessionConfirmation:
    """Repeat the held deliveries from a number on, after a response was lost."""
    async with _use(ask) as session:
        await session.redeliver(params.number)
    return SessionConfirmation()


@ROUTES.json("POST", f"{SESSION}/heartbeat", "work", Nothing, SessionConfirmation, tag="sessions")
async def hear_session(ask: RequestContext, _: Nothing) -> SessionConfirmation:
    """Send a heartbeat: a session without requests for `idle_seconds` ends."""
    async with _use(ask):
        return SessionConfirmation()


@ROUTES.json("POST", f"{SESSION}/cancel", "work", Nothing, SessionConfirmation, tag="sessions")
async def cancel_session(ask: RequestContext, _: Nothing) -> SessionConfirmation:
    """Stop the deliveries; the session keeps the messages that it holds until they are settled."""
    async with _use(ask) as session:
        await session.cancel()
    return SessionConfirmation()


@ROUTES.json("DELETE", SESSION, "work", Nothing, WasThere, tag="sessions")
async def close_session(ask: RequestContext, _: Nothing) -> WasThere:
    """Close a session, and release the messages that it holds immediately."""
    async with _use(ask) as session:
        await session.close()
        ask.server.sessions.forget(ask.params["session"])
    return WasThere(was_there=True)


@ROUTES.raw(
    "GET",
    f"{SESSION}/events",
    "work",
    gives_media=media("The messages of a session as they come; an event's id is the number."),
    tag="sessions",
)
async def receive_events(ask: RequestContext) -> Response:
    """Stream a session's messages as server-sent events; `Last-Event-ID` repeats those after it."""
    read_query(ask, Nothing)
    last = ask.request.headers.get("last-event-id")
    if last is not None and not (last.isascii() and last.isdigit() and len(last) < 19):
        raise Invalid(f"Last-Event-ID is {last[:40]!r}, not a number", field="last-event-id")
    async with _use(ask) as session:
        if last is not None:
            await session.redeliver(int(last) + 1)
    return answer(ask, lambda: _events(ask))


async def _events(ask: RequestContext) -> AsyncGenerator[bytes, None]:
    async with _use(ask) as session:
        while not ask.server.is_stopping:
            try:
                lease = await _next(ask, session, limits.EVENT_SECONDS)
            except StopAsyncIteration:
                yield event("over", b"{}")
                return
            if lease is None:
                yield QUIET
            else:
                yield event("message", encode(_delivered(lease)), str(lease.number))
