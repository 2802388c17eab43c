"""One connection: requests in, answers out, in their order.

Rule 1: one request at a time is handled; those that were sent ahead wait, and beyond a bound
nothing more is read.
Rule 2: whoever sends too slowly, reads too slowly or says nothing is cut off.
Rule 3: what is not whole was never asked: a request is handled when its last byte is there, and
if whoever sent it may still ask then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from types import CoroutineType
from typing import cast

from millrace import limits
from millrace.errors import detached
from millrace.server.http.bodies import Kept, Pace
from millrace.server.http.large import BodyReader
from millrace.server.http.parser import BadRequest, Parser, Request
from millrace.server.http.response import BODILESS, Response, pieces_of
from millrace.server.http.site import Answer, Later, Site, Standing
from millrace.server.http.unsent import Sent
from millrace.server.network import network_of


class Connection(asyncio.Protocol):
    """Speaks HTTP/1.1 with one client."""

    def __init__(self, site: Site, *, has_place: bool = False) -> None:
        """`has_place`: it was seen that there is room before this was made."""
        self._site = site
        self._has_place = has_place
        self._loop = asyncio.get_running_loop()
        self._peer = ""
        self._network = ""
        """What the peer's address counts as."""
        most, spare = site.body_bytes_max, site.spare
        self._parser = Parser(self._admit, body_bytes_max=most, spare=spare)
        self._waiting: deque[Request] = deque()
        self._under: asyncio.Task[None] | Later | None = None
        """What handles the request that is being handled."""
        self._request: Request | None = None
        self._refusal: Response | None = None
        self._is_answering = False
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._is_tls = False
        self._is_reading = True
        self._is_in_body = False
        self._is_closing = False
        self._bad: BadRequest | None = None
        self._room: asyncio.Future[None] | None = None
        self._since = self._loop.time()
        self._has_asked = False
        self._is_known = False
        """Whether somebody is known to have sent the last request that was answered."""
        self._is_counted = False
        self._unsent = 0
        self._unsent_since = 0.0
        self._kept = Kept(site.bodies)
        self._sent = Sent(site.unsent)
        self._pace: Pace | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()

    # --- In -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
        self._network = network_of(self._peer)
        self._site.connections.add(self)
        self._site.awaited.add(self)
        self._count_stranger(1)
        if self._site.is_full and not self._has_place:
            most = self._site.connections_max
            self._send_away(f"there are {most} connections already; come again later")
        elif self._site.has_many(self._network):
            self._send_away(
                f"this address has {self._site.strangers_max} connections on which nobody is known "
                "already; close some"
            )

    def _send_away(self, detail: str) -> None:
        self._is_closing = True
        self._write(self._site.complain(BadRequest(503, detail)), keep_alive=False)
        self._transport.close()

    def _count_stranger(self, change: int) -> None:
        """Count this connection among those of its network on which nobody is known, or no more."""
        self._is_counted = change > 0
        strangers = self._site.strangers
        strangers[self._network] += change
        if not strangers[self._network]:
            del strangers[self._network]

    def data_received(self, data: bytes) -> None:
        if self._is_closing or self._bad is not None:
            return
        if self._parse(data) and self._site.begin is not None:
            self._site.turn(self)
        else:
            self.go_on()

    def _parse(self, data: bytes) -> bool:
        """Parse what has come, or waits to be parsed; whether a request is whole."""
        parser = self._parser
        was_between = parser.is_between
        try:
            found = parser.feed(data, limits.HTTP_AHEAD_MAX - len(self._waiting))
        except BadRequest as error:
            self._bad = detached(error)
            found = parser.last
        if found or (was_between and not parser.is_between and self._under is None):
            self._since = self._loop.time()
        if parser.rest and found[-1].is_stranger:
            # Of those who are not known nothing is kept, least of all what they ask next.
            found[-1].keep_alive = False
            parser.drop()
        self._take(found)
        if self._pace is None and parser.in_body:
            self._pace = Pace(self._loop.time())
            self._await_client()
        return bool(found)

    def body_received(self, size: int) -> None:
        """So many bytes of a large body have come."""
        if self._is_closing or self._bad is not None:
            return
        found = self._parser.filled(size)
        if found:
            self._since = self._loop.time()
            self._speak(self)
        self._take(found)
        if found and self._site.begin is not None:
            self._site.turn(self)
        else:
            self.go_on()

    def _take(self, found: list[Request]) -> None:
        parser = self._parser
        if found:
            self._has_asked = True
            self._pace = None
            self._waiting.extend(found)
        excess = self._kept.take(found, parser.held)
        if excess is not None and self._bad is None:
            self._bad = BadRequest(503, excess)
        if parser.large is not None and not self._is_in_body and self._bad is None:
            self._speak(BodyReader(self, parser.large))

    def _speak(self, protocol: asyncio.BaseProtocol) -> None:
        """Have what comes next handed to another."""
        self._is_in_body = protocol is not self
        # What is read into is chosen when reading begins.
        if self._is_reading:
            self._transport.pause_reading()
        self._transport.set_protocol(protocol)
        if self._is_reading:
            self._transport.resume_reading()

    def _admit(self, request: Request, length: int | None) -> Response | None:
        standing = self._site.standing
        if standing is not None:
            request.standing = standing.version()
        return self._site.admit(request, length, self._peer)

    def _look_ahead(self) -> None:
        """Read on only while few requests wait, and nothing that was read."""
        wanted = self._is_closing or (
            len(self._waiting) <= limits.HTTP_AHEAD_MAX
            and self._bad is None
            and not self._parser.rest
        )
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    @property
    def kind(self) -> str:
        """Of what kind the request is that comes next."""
        return self._waiting[0].kind if self._waiting else ""

    def go_on(self) -> None:
        """Handle what is next, if nothing is being handled, and it has not answered its last."""
        if not self._is_closing:
            self._go_on()
        self._look_ahead()

    def _go_on(self) -> None:
        if self._under is not None:
            return
        while not self._waiting and self._parser.rest and self._bad is None:
            self._parse(b"")
        if self._waiting:
            request = self._request = self._waiting.popleft()
            self._sent.owner = request.owner
            standing = self._site.standing
            if standing is not None and standing.version() != request.standing:
                request.refusal = request.refusal or standing.judge(request)
            has_room = self._site.unsent.has_room(request.owner)
            if self._site.begin is not None and request.refusal is None and has_room:
                later = self._site.begin(request)
                if later is not None:
                    self._under = later
                    later.then(partial(self._told, request))
                    return
            self._under = self._loop.create_task(self._serve(request))
        elif self._is_closing:
            self._transport.close()
        elif self._bad is not None:
            self._write(self._site.complain(self._bad), keep_alive=False)
            self._close()
        elif self._site.stopping and self._parser.is_between:
            self._transport.close()
        elif self._parser.expects:
            # Said in its turn: between two answers, never before those of requests ahead of it.
            self._parser.expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _close(self) -> None:
        """Answer nothing more; drop what still comes for a while, so that the answer arrives."""
        self._is_closing = True
        if self._transport.is_closing():
            return
        if self._parser.is_between and self._bad is None:
            self._transport.close()
            return
        if not self._is_reading:
            self._is_reading = True
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            # Whoever has gone hears of it no more.
            with suppress(OSError):
                self._transport.write_eof()
        self._loop.call_later(limits.HTTP_LINGER_SECONDS, self._transport.close)

    # --- Out ----------------------------------------------------------------------------------

    def _told(self, request: Request, answer: Answer) -> None:
        """What was begun without a task has come to an answer, or to something that takes one."""
        if not isinstance(answer, Response):
            self._under = self._loop.create_task(self._serve(request, answer))
            return
        if answer.parts is not None or self._is_stepped(request, answer):
            self._under = self._loop.create_task(self._serve(request, _given(answer)))
            return
        self._end(request)
        if not self._say(request, answer):
            self._close()
        elif self._room is not None:
            self._under = self._loop.create_task(self._rest(self._room))
        else:
            self._next()

    def _stays(self, request: Request) -> bool:
        """Whether the connection may be used again after this one."""
        return request.keep_alive and not self._site.stopping

    def _say(self, request: Request, response: Response) -> bool:
        """Write an answer that is there; whether the connection may be used again."""
        keep_alive = self._stays(request)
        self._write(response, keep_alive=keep_alive, head_only=request.method == "HEAD")
        return keep_alive

    async def _rest(self, room: asyncio.Future[None]) -> None:
        """Handle nothing before what was written has been taken in."""
        try:
            await room
        finally:
            self._under = None
            self._await_client()
        self._next()

    def _end(self, request: Request) -> None:
        self._under = self._request = self._refusal = None
        self._await_client()
        self._is_answering = False
        self._is_known = not request.is_stranger
        if self._is_known and self._is_counted:
            self._count_stranger(-1)
        self._kept.end()
        # They refer to each other; what they hold must not wait for a collection of garbage.
        request.body, request.context, request.call = b"", None, None

    def _next(self) -> None:
        self._since = self._loop.time()
        if not self._is_closing:
            self.go_on()

    async def _serve(self, request: Request, answer: Awaitable[Response] | None = None) -> None:
        try:
            refusal = cast("Response | None", request.refusal)
            if refusal is not None:
                response = refusal
            elif answer is not None:
                response = await answer
            else:
                await self._site.unsent.room(request.owner)
                response = await self._site.handle(request)
            self._is_answering = True
            if response.parts is not None and request.method != "HEAD":
                keep_alive = await self._stream(response, keep_alive=self._stays(request))
            elif self._is_stepped(request, response):
                keep_alive = await self._step(response, keep_alive=self._stays(request))
            else:
                keep_alive = self._say(request, response)
            if not keep_alive:
                self._close()
            elif self._room is not None:
                await self._room
        except asyncio.CancelledError:
            if self._refusal is None:
                raise
            self._refuse(self._refusal)
        finally:
            self._end(request)
        self._next()

    def _refuse(self, refusal: Response) -> None:
        """Answer this instead; where an answer has begun, nothing but the end can be said."""
        if self._is_answering:
            self.cut()
        elif not self._transport.is_closing():
            self._write(refusal, keep_alive=False)
            self._close()

    def _write(self, response: Response, *, keep_alive: bool, head_only: bool = False) -> None:
        head = response.head(keep_alive=keep_alive, date=self._site.date(), chunked=False)
        body = response.body
        if head_only or response.status in BODILESS or not body:
            self._transport.write(head)
        elif len(body) < limits.HTTP_JOIN_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines([head, body])
        self.count_unsent()

    def _is_stepped(self, request: Request, response: Response) -> bool:
        """Whether an answer is sent step by step: what TLS was handed is nowhere to be counted."""
        if not self._is_tls:
            return False
        is_large = len(response.body) > limits.HTTP_TLS_STEP_BYTES and response.parts is None
        return is_large and request.method != "HEAD" and response.status not in BODILESS

    async def _step(self, response: Response, *, keep_alive: bool) -> bool:
        transport, step = self._transport, limits.HTTP_TLS_STEP_BYTES
        transport.write(response.head(keep_alive=keep_alive, date=self._site.date(), chunked=False))
        body = memoryview(response.body)
        for at in range(0, len(body), step):
            transport.write(body[at : at + step])
            self._sent.rest = max(0, len(body) - at - step)
            self._since = self._loop.time()
            self.count_unsent()
            if self._room is not None:
                await self._room
            if transport.is_closing():
                return False
        return keep_alive

    async def _stream(self, response: Response, *, keep_alive: bool) -> bool:
        """Send the parts as they come; whether the connection may be used again."""
        assert response.parts is not None
        transport = self._transport
        transport.write(response.head(keep_alive=keep_alive, date=self._site.date(), chunked=True))
        try:
            async for part in response.parts:
                pieces = pieces_of(part)
                size = sum(map(len, pieces))
                if not size:
                    continue
                transport.writelines([b"%x\r\n" % size, *pieces, b"\r\n"])
                self._since = self._loop.time()
                self.count_unsent()
                if self._room is not None:
                    await self._room
                await self._site.unsent.room(self._sent.owner)
                if transport.is_closing():
                    return False
        except Exception:
            # Without the last chunk the other side knows that it is not the whole.
            transport.abort()
            raise
        finally:
            close = getattr(response.parts, "aclose", None)
            if close is not None:
                await close()
        transport.write(b"0\r\n\r\n")
        return keep_alive

    def pause_writing(self) -> None:
        if self._room is None:
            self._room = self._loop.create_future()
            self._since = self._unsent_since = self._loop.time()
            self._unsent = self._transport.get_write_buffer_size()
            self._await_client()

    def resume_writing(self) -> None:
        self.count_unsent()
        if self._room is not None:
            room, self._room = self._room, None
            if not room.done():
                room.set_result(None)

    def count_unsent(self) -> None:
        """Count what was answered and has not been taken in; at the end, until it has gone."""
        if self._transport.is_closing():
            return
        if self._sent.count(self._transport.get_write_buffer_size()):
            self._site.owed.add(self)
        else:
            self._site.owed.discard(self)

    # --- The end --------------------------------------------------------------------------------

    @property
    def is_waited_for(self) -> bool:
        """Whether it is the client's turn to send something, or to take it in."""
        return self._under is None or self._room is not None or self._pace is not None

    def _await_client(self) -> None:
        """It is the client's turn, if it is still there."""
        if not self.gone.done():
            self._site.awaited.add(self)

    def look(self, now: float) -> None:
        """Cut it off if it has kept us waiting for too long."""
        waited, parser, pace = now - self._since, self._parser, self._pace
        is_awaited = self._is_reading and (parser.body_bytes > 0 or not parser.expects)
        if pace and pace.is_too_slow(now, parser.body_bytes, is_awaited=is_awaited):
            self.cut()
        elif self._room is not None:
            over = now - self._unsent_since - limits.HTTP_WRITE_SECONDS_MAX
            taken = self._unsent - self._transport.get_write_buffer_size()
            if over > 0 and taken < over * limits.HTTP_WRITE_BYTES_PER_SECOND_MIN:
                self.cut()
        elif self._under is not None:
            return
        elif parser.is_between:
            most = limits.HTTP_STRANGER_IDLE_SECONDS_MAX
            if self._is_known:
                most = limits.HTTP_IDLE_SECONDS_MAX
            elif not self._has_asked:
                most = limits.HTTP_HEAD_SECONDS_MAX
            if waited > most:
                self._transport.close()
        elif parser.in_head and waited > limits.HTTP_HEAD_SECONDS_MAX:
            self.cut()

    def forgive(self, seconds: float) -> None:
        """Do not count so much time: nothing was read or sent meanwhile."""
        self._since += seconds
        self._unsent_since += seconds
        if self._pace is not None:
            self._pace.forgive(seconds)

    def judge(self, standing: Standing) -> None:
        """End what is being handled if whoever asked for it may not any more."""
        request, under = self._request, self._under
        if request is None or under is None or self._refusal is not None:
            return
        refusal = self._refusal = standing.judge(request)
        if refusal is None:
            return
        self._give_up(under)
        if not isinstance(under, asyncio.Task):
            # A task says so itself, when it has ended.
            self._end(request)
            self._refuse(refusal)

    def _give_up(self, under: asyncio.Task[None] | Later) -> None:
        """Nobody wants the answer any more."""
        if isinstance(under, asyncio.Task):
            work = cast("CoroutineType[object, object, None]", under.get_coro())
            if getcoroutinestate(work) == CORO_CREATED:
                # Cancelled before its first step, it would give back nothing of what it was handed.
                self._loop.call_soon(under.cancel)
                return
        under.cancel()

    def finish(self) -> None:
        """Handle what is whole, then close."""
        self._go_on()

    def cut(self) -> None:
        """End it at once."""
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        self._site.connections.discard(self)
        if self._is_counted:
            self._count_stranger(-1)
        self._site.awaited.discard(self)
        self._kept.let_go()
        self._waiting.clear()
        self._parser.close()
        self.resume_writing()
        self._sent.end()
        self._site.owed.discard(self)
        if self._under is not None:
            # Whoever asked has gone: what was handed out is given back, what was decided stays.
            self._give_up(self._under)
        if not self.gone.done():
            self.gone.set_result(None)


async def _given(response: Response) -> Response:
    """An answer that is there."""
    return response
