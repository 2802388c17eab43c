"""One HTTP/1.1 connection: requests in, responses out, in order.

Rule 1: requests are handled one at a time; pipelined ones wait, and beyond a bound nothing more is
read.
Rule 2: connections that send or receive below the minimum rate, or stay idle, are closed.
Rule 3: an incomplete request has no effect: a request is handled when its last byte was received,
if its sender still has the right then.
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
from millrace.server.http.large_body import BodyReader
from millrace.server.http.listener_context import (
    Answer,
    DeferredAnswer,
    ListenerContext,
    RightsCheck,
)
from millrace.server.http.memory_limits import BodyRate, ConnectionBodies, SendProgress
from millrace.server.http.parser import BadRequest, Request, RequestParser
from millrace.server.http.proxy_headers import network_of
from millrace.server.http.response import BODILESS, Response, pieces_of


class ClientConnection(asyncio.Protocol):
    """Serves HTTP/1.1 to one client."""

    def __init__(self, site: ListenerContext, *, has_place: bool = False) -> None:
        """`has_place`: the caller has checked the connection limit already."""
        self._site = site
        self._has_place = has_place
        self._loop = asyncio.get_running_loop()
        self._peer = ""
        self._network = ""
        """Network that the peer's address counts as."""
        most, spare = site.body_bytes_max, site.spare
        self._parser = RequestParser(self._admit, body_bytes_max=most, spare=spare)
        self._waiting: deque[Request] = deque()
        self._under: asyncio.Task[None] | DeferredAnswer | None = None
        """The task or deferred answer of the request in progress."""
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
        """True if the sender of the last answered request was authenticated."""
        self._is_counted = False
        self._unsent = 0
        self._unsent_since = 0.0
        self._kept = ConnectionBodies(site.bodies)
        self._sent = SendProgress(site.unsent)
        self._pace: BodyRate | None = None
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
        """Add this connection to those of its network without an authenticated user, or remove
        it."""
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
        """Parse received and remaining bytes; return whether a request is complete."""
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
            # Nothing is buffered for unauthenticated clients, least of all their next requests.
            found[-1].keep_alive = False
            parser.drop()
        self._take(found)
        if self._pace is None and parser.in_body:
            self._pace = BodyRate(self._loop.time())
            self._await_client()
        return bool(found)

    def body_received(self, size: int) -> None:
        """Note `size` further bytes of a large body."""
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
        """Make another protocol receive the following bytes."""
        self._is_in_body = protocol is not self
        # asyncio chooses the read buffer when reading is resumed.
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
        """Pause reading while many requests, or unparsed bytes, wait."""
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
        """Kind of the next request, or an empty string."""
        return self._waiting[0].kind if self._waiting else ""

    def go_on(self) -> None:
        """Handle the next request, unless one is in progress."""
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
            # Sent in order: after the responses of all earlier requests.
            self._parser.expects = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _close(self) -> None:
        """Answer nothing more; discard further bytes for a while, so that the response arrives."""
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
            # The client may have closed the connection already.
            with suppress(OSError):
                self._transport.write_eof()
        self._loop.call_later(limits.HTTP_LINGER_SECONDS, self._transport.close)

    # --- Out ----------------------------------------------------------------------------------

    def _told(self, request: Request, answer: Answer) -> None:
        """Process the answer of a deferred request: a response, or an awaitable that needs a
        task."""
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
        """Return whether the connection stays open after this request."""
        return request.keep_alive and not self._site.stopping

    def _say(self, request: Request, response: Response) -> bool:
        """Write a complete response; return whether the connection stays open."""
        keep_alive = self._stays(request)
        self._write(response, keep_alive=keep_alive, head_only=request.method == "HEAD")
        return keep_alive

    async def _rest(self, room: asyncio.Future[None]) -> None:
        """Handle the next request only after the transport has room again."""
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
        # These refer to each other; their memory must not wait for a garbage collection.
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
        """Send this response instead; if another one has begun, abort the connection."""
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
        """Return whether a response is sent in steps: bytes that TLS has buffered cannot be
        counted."""
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
        """Send the parts as they are generated; return whether the connection stays open."""
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
            # The missing last chunk shows the client that the body is incomplete.
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
        """Count the unsent bytes; while the transport closes, they count until the connection is
        lost."""
        if self._transport.is_closing():
            return
        if self._sent.count(self._transport.get_write_buffer_size()):
            self._site.owed.add(self)
        else:
            self._site.owed.discard(self)

    # --- The end --------------------------------------------------------------------------------

    @property
    def is_waited_for(self) -> bool:
        """True if the client is expected to send or receive."""
        return self._under is None or self._room is not None or self._pace is not None

    def _await_client(self) -> None:
        """Have the client's timeouts checked, if it is still connected."""
        if not self.gone.done():
            self._site.awaited.add(self)

    def look(self, now: float) -> None:
        """Close the connection if a timeout of its client has expired."""
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
        """Do not count this time: the event loop stood still."""
        self._since += seconds
        self._unsent_since += seconds
        if self._pace is not None:
            self._pace.forgive(seconds)

    def judge(self, standing: RightsCheck) -> None:
        """End the request in progress if its user lost the right to it."""
        request, under = self._request, self._under
        if request is None or under is None or self._refusal is not None:
            return
        refusal = self._refusal = standing.judge(request)
        if refusal is None:
            return
        self._give_up(under)
        if not isinstance(under, asyncio.Task):
            # A task sends the refusal itself when it ends.
            self._end(request)
            self._refuse(refusal)

    def _give_up(self, under: asyncio.Task[None] | DeferredAnswer) -> None:
        """Cancel a request in progress: the answer is not needed any more."""
        if isinstance(under, asyncio.Task):
            work = cast("CoroutineType[object, object, None]", under.get_coro())
            if getcoroutinestate(work) == CORO_CREATED:
                # Cancelled before its first step, it would not return the resources that it was
                # passed.
                self._loop.call_soon(under.cancel)
                return
        under.cancel()

    def finish(self) -> None:
        """Handle the requests that are complete, then close."""
        self._go_on()

    def cut(self) -> None:
        """Abort the connection at once."""
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
            # The client is gone: leased messages are returned, committed changes stay.
            self._give_up(self._under)
        if not self.gone.done():
            self.gone.set_result(None)


async def _given(response: Response) -> Response:
    """Return a response that exists already."""
    return response
