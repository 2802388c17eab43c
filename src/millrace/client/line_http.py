"""A line to a server over HTTP.

Calls that do not wait share a few connections: what is called while all of them are busy goes in
one request as soon as one is free. A call that waits has a connection of its own, which is closed
when whoever called gives up: the server then takes back what it would have handed out.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.client.http_connection import Head, HttpConnection
from millrace.client.line import Answered, Lost, copy_of
from millrace.client.line_socket import Late
from millrace.client.speaking import Speaking
from millrace.decoding import decode_json
from millrace.errors import (
    Closed,
    Fatal,
    Invalid,
    MillraceError,
    Refused,
    Unauthenticated,
    detached,
)
from millrace.rpc.calls import (
    CALLS,
    Arrive,
    Ask,
    BackUp,
    Call,
    ReadBatches,
    Repair,
    Speak,
)
from millrace.rpc.codec import (
    ROWS,
    Sheet,
    Status,
    read_answers,
)
from millrace.rpc.failures import FAILURE
from millrace.rpc.frames import (
    NO_BLOBS,
    Buffer,
    Frame,
    Splitter,
)

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry

_TYPE = "application/vnd.millrace.calls"
_PROBLEM = "application/problem+json"
_ON_THE_WAY = (401, 500, 502, 503, 504)
"""What a proxy says by itself, in words of its own."""
_TIME_DIGITS_MAX = 16


class _Problem(msgspec.Struct, frozen=True):
    """As much of problem details as says what to do."""

    code: str = ""
    detail: str = ""
    field: str | None = None
    limit: int | None = None
    outcome: str = "unknown"
    retry_after_ms: int = 0


class _Waiting:
    """A call that is to be sent with others."""

    __slots__ = ("call", "carried", "future")

    def __init__(self, call: Call, future: asyncio.Future[Answered], carried: bytes) -> None:
        self.call = call
        self.carried = carried
        self.future = future


class HttpLine:
    """A line to a server."""

    def __init__(
        self,
        url: SplitResult,
        token: str | None,
        tls: ssl.SSLContext | None,
        late: Late,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry
        self._url = url
        self._tls = tls
        self._late = late
        self._loop = asyncio.get_running_loop()
        self._idle: list[HttpConnection] = []
        self._out: list[_Waiting] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._told: set[asyncio.Task[None]] = set()
        self._waiters = asyncio.Semaphore(limits.WIRE_POOL_WAITING_MAX)
        self._speaking = Speaking(self._say)
        self._is_closed = False
        self._ahead_ms = 0
        self._is_met = False
        lines = ["POST /v1/calls HTTP/1.1", f"host: {url.netloc.rpartition('@')[2]}"]
        lines += [f"content-type: {_TYPE}"]
        if token is not None:
            lines.append(f"authorization: Bearer {token}")
        self._head = "\r\n".join(lines).encode("latin-1")

    @property
    def where(self) -> str:
        url = self._url
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"

    @property
    def is_here(self) -> bool:
        return False

    def ahead_ms(self) -> int:
        return self._ahead_ms

    # --- Calls ----------------------------------------------------------------------------------

    async def call(self, call: Call) -> Answered:
        self._check_open()
        wait_ms = call.wait_ms if isinstance(call, Ask) else 0
        if wait_ms or isinstance(call, Arrive | BackUp | Repair):
            async with self._waiters:
                sheet = Sheet()
                sheet.call(1, call)
                seconds = None if isinstance(call, Arrive | BackUp | Repair) else wait_ms / 1000
                async with self._request(sheet.take(), seconds, self._carried()) as frames:
                    return await _only(call, frames)
        future: asyncio.Future[Answered] = self._loop.create_future()
        self._out.append(_Waiting(call, future, self._carried()))
        self._pump()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._late(call, future.result())
            raise
        finally:
            # An error in the future would hold this frame, and this frame the future.
            del future

    def begin(self, call: Call) -> None:
        # A connection may have to be made.
        return None

    def tell(self, call: Call) -> None:
        if not self._is_closed:
            self._speaking.noted(call)
            task = self._loop.create_task(self._tell(call))
            self._told.add(task)
            task.add_done_callback(self._told.discard)

    async def _tell(self, call: Call) -> None:
        sheet = Sheet()
        try:
            sheet.call(0, call)
            async with self._request(sheet.take(), 0) as frames:
                async for _ in frames:
                    continue
        except (Lost, MillraceError):
            # As if it had been lost with the line.
            return

    def _carried(self) -> bytes:
        """Headers of the trace that is going on, if there is one."""
        if self._telemetry is None:
            return b""
        pairs = self._telemetry.carried()
        return b"".join(b"\r\n%b: %b" % (name.encode(), value) for name, value in pairs)

    async def _say(self, calls: list[Speak]) -> None:
        sheet = Sheet()
        for call in calls:
            sheet.call(0, call)
        async with self._request(sheet.take(), 0) as frames:
            async for _ in frames:
                continue

    def _pump(self) -> None:
        if len(self._pumps) < limits.WIRE_POOL_MAX:
            task = self._loop.create_task(self._send())
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _send(self) -> None:
        """Send what waits, in one request; then what came meanwhile."""
        while self._out:
            most = limits.WIRE_REQUEST_CALLS_MAX
            burst, self._out = self._out[:most], self._out[most:]
            sheet = Sheet()
            under: dict[int, _Waiting] = {}
            for id_, waiting in enumerate(burst, 1):
                if waiting.future.done():
                    # Cancelled before it was sent.
                    continue
                try:
                    sheet.call(id_, waiting.call)
                except Refused as error:
                    waiting.future.set_exception(detached(error))
                else:
                    under[id_] = waiting
            if under:
                await self._exchange(sheet.take(), under)

    async def _exchange(self, body: list[Buffer], under: dict[int, _Waiting]) -> None:
        failure: Exception
        try:
            # Of several calls in one request the trace of the first one goes on.
            carried = next(iter(under.values())).carried
            async with self._request(body, 0, carried) as frames:
                async for frame in frames:
                    for item in _items(frame):
                        waiting = under.pop(cast("int", item[0]), None)
                        if waiting is not None:
                            self._take(waiting, item, frame)
            failure = Lost("the answer was cut off", sent=True)
        except (Lost, MillraceError) as error:
            failure = detached(error)
        for waiting in under.values():
            if not waiting.future.done():
                waiting.future.set_exception(copy_of(failure))

    def _take(self, waiting: _Waiting, item: list[object], frame: Frame) -> None:
        try:
            answered = _answered(waiting.call, item, frame)
        except MillraceError as error:
            if not waiting.future.done():
                waiting.future.set_exception(detached(error))
            return
        if waiting.future.done():
            self._late(waiting.call, answered)
        else:
            self._speaking.note(waiting.call, answered.value)
            waiting.future.set_result(answered)

    async def batches(self, call: ReadBatches) -> AsyncGenerator[pa.RecordBatch, None]:
        self._check_open()
        sheet = Sheet()
        sheet.call(1, call)
        shape = CALLS[ReadBatches].answer
        async with self._waiters, self._request(sheet.take(), None) as frames:
            async for frame in frames:
                for item in _items(frame):
                    status, value = item[1], item[2]
                    if status == Status.PART:
                        found = shape.unpack(value, "batch", frame.blobs)
                        yield cast("pa.RecordBatch", found)
                    elif status == Status.FAILED:
                        raise FAILURE.unpack(value, "error", frame.blobs)
                    else:
                        return
        raise Lost("the answer was cut off", sent=True)

    # --- Connections ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _request(
        self, body: list[Buffer], wait_seconds: float | None, carried: bytes = b""
    ) -> AsyncIterator[AsyncGenerator[Frame, None]]:
        """The frames of the answer to a request; None: however long it takes."""
        connection = await self._connection()
        length = sum(map(_size, body))
        head = self._head + carried + b"\r\ncontent-length: %d\r\n\r\n" % length
        seconds = None if wait_seconds is None else wait_seconds + limits.WIRE_ANSWER_SECONDS_MAX
        try:
            async with asyncio.timeout(seconds):
                got = await connection.ask(head, body)
                self._meet(got)
                if got.status != 200:
                    raise await _refusal(connection, got)
                self._note_time(got)
                async with aclosing(_frames(connection)) as frames:
                    yield frames
        except TimeoutError as error:
            raise Lost("no answer came in time", sent=True) from error
        finally:
            if connection.is_reusable and not self._is_closed:
                connection.idle_since = self._loop.time()
                self._idle.append(connection)
            else:
                connection.close()

    async def _connection(self) -> HttpConnection:
        now = self._loop.time()
        while self._idle:
            found = self._idle.pop()
            if found.is_open and now - found.idle_since < limits.WIRE_IDLE_SECONDS_MAX:
                return found
            found.close()
        return await HttpConnection.make(self._url, self._tls)

    def _meet(self, head: Head) -> None:
        """See that it is Millrace who answers, or someone on the way who speaks for it.

        Raises:
            Invalid: it never was.
            Lost: it was before.
        """
        kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in (_TYPE, _PROBLEM):
            self._is_met = True
        elif head.status not in _ON_THE_WAY:
            said = f"{self.where} does not answer as Millrace does (status {head.status})"
            if self._is_met:
                raise Lost(said, sent=True)
            raise Invalid(f"{said}; see that the address is right", field="url")

    def _note_time(self, head: Head) -> None:
        text = head.headers.get("millrace-now", "")
        if text.isascii() and text.isdigit() and len(text) < _TIME_DIGITS_MAX:
            self._ahead_ms = int(text) - time.time_ns() // 1_000_000

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self.where} was closed; connect again")

    async def close(self) -> None:
        self._is_closed = True
        self._speaking.close()
        tasks = [*self._pumps, *self._told]
        if tasks:
            await asyncio.wait(tasks, timeout=limits.WIRE_CONNECT_SECONDS_MAX)
        for task in tasks:
            task.cancel()
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def _size(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


async def _frames(connection: HttpConnection) -> AsyncGenerator[Frame, None]:
    splitter = Splitter(
        head_bytes_max=limits.WIRE_BLOB_BYTES_MAX, blob_bytes_max=2 * limits.WIRE_BLOB_BYTES_MAX
    )
    async with aclosing(connection.body()) as pieces:
        async for piece in pieces:
            try:
                found = splitter.feed(piece)
            except Refused as error:
                raise Fatal(f"the answer cannot be read: {error}") from error
            for frame in found:
                yield frame


def _items(frame: Frame) -> list[list[object]]:
    """The answers of a frame."""
    try:
        return read_answers(frame)
    except Refused as error:
        raise Fatal(f"the answer cannot be read: {error}") from error


async def _only(call: Call, frames: AsyncGenerator[Frame, None]) -> Answered:
    async for frame in frames:
        for item in _items(frame):
            answered = _answered(call, item, frame)
            async for _ in frames:
                # The end of the body, so that the connection may be used again.
                continue
            return answered
    raise Lost("the answer was cut off", sent=True)


def _answered(call: Call, item: list[object], frame: Frame) -> Answered:
    if item[1] == Status.FAILED:
        raise FAILURE.unpack(item[2], "error", frame.blobs)
    try:
        value = CALLS[type(call)].answer.unpack(item[2], "answer", frame.blobs)
        rows = None
        if item[1] == Status.WITH_ROWS:
            rows = ROWS.unpack(item[3], "rows", frame.blobs)
    except Refused as error:
        raise Fatal(f"an answer cannot be read: {error}") from error
    return Answered(value, rows)


async def _refusal(connection: HttpConnection, head: Head) -> MillraceError | Lost:
    """Why the whole request was not answered."""
    body = b""
    async with aclosing(connection.body()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > limits.HTTP_HEAD_BYTES_MAX:
                break
    return refusal_of(head.status, body)


def refusal_of(status: int, body: bytes) -> MillraceError | Lost:
    """What the problem that a server answers with means."""
    try:
        found = decode_json(body, _Problem)
    except msgspec.MsgspecError:
        found = _Problem()
    detail = found.detail or f"it was answered with the status {status}"
    if status == 401:
        return Unauthenticated(detail, field=found.field)
    if status >= 500 and found.outcome == "unknown":
        return Lost(detail, sent=True)
    way = {"refused": "r", "retry": "t"}.get(found.outcome, "r")
    raw = [way, found.code, detail, found.field, found.limit, found.retry_after_ms]
    return FAILURE.unpack(raw, "error", NO_BLOBS)
