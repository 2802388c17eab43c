"""Sessions: messages as they come, as many at a time as the consumer has credit for."""

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
from millrace.core import check
from millrace.errors import Invalid, Refused
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.quota import NEVER_MS, Reservation
from millrace.server.rest.listing import listed
from millrace.server.rest.message import LeaseOut, lease_out
from millrace.server.rest.problem import Problem, problem_of
from millrace.server.rest.queues import WasThere
from millrace.server.rest.route import Ask, Nothing, encode, read_query
from millrace.server.rest.stream import QUIET, answer, event, media
from millrace.server.rest.table import QUEUE, ROUTES

SESSION = f"{QUEUE}/sessions/{{session}}"
Number = Annotated[int, msgspec.Meta(ge=0)]


class SessionAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a session is to be like, or which one goes on."""

    credit: int = 100
    """So many messages it holds at once; without `refill`, so many it is handed."""
    refill: bool = True
    """Settling lets more come."""
    lease: float | None = None
    """For how long it holds each message; null: as long as it lasts."""
    suspect: float = 60
    """For how long it keeps its messages while nobody speaks for it."""
    name: str | None = None
    resume: str | None = None
    """A session that goes on as it was opened; what it holds comes again."""


class SessionOut(msgspec.Struct, frozen=True):
    """A session that is open."""

    session: str
    """Its id. Who knows it, and may work on the queue, can resume it."""
    name: str
    idle_seconds: float
    """Ask for something, or send a heartbeat, well within this time: after it the session ends."""


class Delivered(LeaseOut, frozen=True, omit_defaults=True, kw_only=True):
    """A message of a session."""

    number: int
    """Deliveries are numbered 0, 1, 2… without gaps."""


def _delivered(lease: Lease) -> Delivered:
    fields = msgspec.structs.asdict(lease_out(lease))
    return Delivered(**fields, number=lease.number or 0)


def _owner(ask: Ask) -> tuple[str, str, str]:
    return ask.principal.name, ask.params["space"], ask.params["queue"]


def _use(ask: Ask) -> AbstractAsyncContextManager[Session]:
    return ask.server.sessions.use(ask.params["session"], _owner(ask))


@ROUTES.json(
    "POST", f"{QUEUE}/sessions", "work", SessionAsk, SessionOut, status=201, tag="sessions"
)
async def open_session(ask: Ask, told: SessionAsk) -> SessionOut:
    """Open a session, or resume one."""
    with ask.server.sessions.place(ask.principal):
        return await _open(ask, told)


async def _open(ask: Ask, told: SessionAsk) -> SessionOut:
    sessions = ask.server.sessions
    reserved = await ask.server.holding.reserve(ask.principal, "in_flight", told.credit)

    async def use(queue: Queue) -> Session:
        session = queue.session(
            credit=reserved.count,
            refill=told.refill,
            lease=told.lease,
            suspect=told.suspect,
            name=told.name,
            resume=told.resume,
        )
        return await session.open()

    try:
        session = await ask.queue(use)
        id = sessions.hold(session, _owner(ask), told.suspect)
        _count(ask, id, reserved, refill=told.refill)
    finally:
        reserved.cancel()
    return SessionOut(id, session.name, sessions.silence_seconds)


def _count(ask: Ask, id: str, reserved: Reservation, *, refill: bool) -> None:
    """Have credit that was given count as messages in flight for as long as the session lasts.

    Credit that is not refilled counts until what it was used for has ended.
    """
    quotas = ask.server.quotas
    at = object() if refill else _credit(id)
    if reserved.is_counted:
        reserved.keep(at, reserved.count, NEVER_MS)
    ask.server.sessions.note_end(
        id, lambda seconds: quotas.extend(at, now_ms() + int(seconds * 1000))
    )


def _credit(id: str) -> tuple[str, str]:
    """What the credit of a session is counted by that settling does not refill."""
    return "credit", id


class ReceiveAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many, and how long to wait for the first."""

    count: int = 100
    wait: float = 0


class DeliveredMany(msgspec.Struct, frozen=True):
    """Messages, in the order of their numbers."""

    messages: list[Delivered]
    over: bool = False
    """After a cancel: nothing more will come."""


@ROUTES.json("POST", f"{SESSION}/receive", "work", ReceiveAsk, DeliveredMany, tag="sessions")
async def receive(ask: Ask, told: ReceiveAsk) -> Response:
    """The next messages, waiting for the first one if need be."""
    count = check.count(told.count, "count", limits.LEASE_MESSAGES_MAX)
    wait_ms = check.millis(told.wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
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


async def _next(ask: Ask, session: Session, wait: float) -> Lease | None:
    """The next message; None if there is none in time."""

    async def use() -> Lease | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                return await anext(session)
        return None

    return await (ask.until(use) if wait else use())


class GrantAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much more may come."""

    credit: int
    drain: bool = False
    """What is there now is handed out, and the credit that is left after that is no more."""


class GrantedOut(msgspec.Struct, frozen=True):
    """What became of it."""

    drained: int
    """So much credit was taken back."""


@ROUTES.json("POST", f"{SESSION}/grant", "work", GrantAsk, GrantedOut, tag="sessions")
async def grant(ask: Ask, told: GrantAsk) -> GrantedOut:
    """Let more messages come to a session whose credit is not refilled."""
    reserved = await ask.server.holding.reserve(ask.principal, "in_flight", told.credit)
    try:
        async with _use(ask) as session:
            drained = await session.grant(reserved.count, drain=told.drain)
            quotas, at = ask.server.quotas, _credit(ask.params["session"])
            reserved.keep(at, quotas.count(at) + reserved.count, NEVER_MS)
            quotas.let_go(at, drained)
    finally:
        reserved.cancel()
    return GrantedOut(drained)


class NumbersAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which deliveries: some, or all up to one."""

    numbers: (
        Annotated[list[Number], msgspec.Meta(min_length=1, max_length=limits.LEASE_MESSAGES_MAX)]
        | None
    ) = None
    upto: Number | None = None


class RefusedNumber(msgspec.Struct, frozen=True):
    """A delivery of which something was refused."""

    number: int
    problem: Problem


class EndedNumbers(msgspec.Struct, frozen=True):
    """What became of the deliveries; those that the session does not hold are passed over."""

    done: int
    refused: list[RefusedNumber] = []


def _ended(ask: Ask, count: int, refused: dict[int, Refused]) -> EndedNumbers:
    found = [RefusedNumber(number, problem_of(error)) for number, error in refused.items()]
    done = count - len(found)
    ask.server.quotas.let_go(_credit(ask.params["session"]), done)
    return EndedNumbers(done, found)


@ROUTES.json("POST", f"{SESSION}/settle", "work", NumbersAsk, EndedNumbers, tag="sessions")
async def settle_numbers(ask: Ask, told: NumbersAsk) -> EndedNumbers:
    """The work on these deliveries is done."""
    async with _use(ask) as session:
        count = count_held(session, told.numbers, told.upto)
        return _ended(ask, count, await session.settle(told.numbers, upto=told.upto))


class ReleaseNumbersAsk(NumbersAsk, frozen=True, forbid_unknown_fields=True):
    """Which deliveries are given back, and how."""

    failed: bool = False
    """It counts as a failure."""
    delay: float = 0
    """Seconds before anybody gets them."""


@ROUTES.json("POST", f"{SESSION}/release", "work", ReleaseNumbersAsk, EndedNumbers, tag="sessions")
async def release_numbers(ask: Ask, told: ReleaseNumbersAsk) -> EndedNumbers:
    """Give deliveries back."""
    async with _use(ask) as session:
        count = count_held(session, told.numbers, told.upto)
        refused = await session.release(
            told.numbers, upto=told.upto, failed=told.failed, delay=told.delay
        )
        return _ended(ask, count, refused)


@ROUTES.json("POST", f"{SESSION}/discard", "work", NumbersAsk, EndedNumbers, tag="sessions")
async def discard_numbers(ask: Ask, told: NumbersAsk) -> EndedNumbers:
    """Make dead letters of deliveries."""
    async with _use(ask) as session:
        count = count_held(session, told.numbers, told.upto)
        return _ended(ask, count, await session.discard(told.numbers, upto=told.upto))


class RedeliverAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From where on."""

    number: Number = 0


class Done(msgspec.Struct, frozen=True):
    """It is so."""


@ROUTES.json("POST", f"{SESSION}/redeliver", "work", RedeliverAsk, Done, tag="sessions")
async def redeliver(ask: Ask, told: RedeliverAsk) -> Done:
    """Have what is held from a number on come again, because an answer was lost."""
    async with _use(ask) as session:
        await session.redeliver(told.number)
    return Done()


@ROUTES.json("POST", f"{SESSION}/heartbeat", "work", Nothing, Done, tag="sessions")
async def hear_session(ask: Ask, _: Nothing) -> Done:
    """Say that the session's client is there: without a word for `idle_seconds` it ends."""
    async with _use(ask):
        return Done()


@ROUTES.json("POST", f"{SESSION}/cancel", "work", Nothing, Done, tag="sessions")
async def cancel_session(ask: Ask, _: Nothing) -> Done:
    """Be handed nothing more; what the session holds it keeps until that is settled."""
    async with _use(ask) as session:
        await session.cancel()
    return Done()


@ROUTES.json("DELETE", SESSION, "work", Nothing, WasThere, tag="sessions")
async def close_session(ask: Ask, _: Nothing) -> WasThere:
    """End a session, and give back at once what it holds."""
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
async def receive_events(ask: Ask) -> Response:
    """The messages of a session as server-sent events; `Last-Event-ID` has those after it again."""
    read_query(ask, Nothing)
    last = ask.request.headers.get("last-event-id")
    if last is not None and not (last.isascii() and last.isdigit() and len(last) < 19):
        raise Invalid(f"Last-Event-ID is {last[:40]!r}, not a number", field="last-event-id")
    async with _use(ask) as session:
        if last is not None:
            await session.redeliver(int(last) + 1)
    return answer(ask, lambda: _events(ask))


async def _events(ask: Ask) -> AsyncGenerator[bytes, None]:
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
