"""Calls to a server over HTTP, with a connection pool.

Calls that do not wait share a few connections: those made while all are busy are sent together in
the next request. A call that waits has its own connection, which is closed if the caller is
cancelled: the server then takes back what it would have granted.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.core.model import ShardId
from millrace.core.session_commands import Claim, CloseSession, SessionRef, SuspectSession
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
    AwaitForwarding,
    BackUp,
    Call,
    Heartbeat,
    Notify,
    ReadBatches,
    Repair,
    Submit,
)
from millrace.rpc.codec import ROWS, AnswerStatus, FrameWriter, read_answers
from millrace.rpc.error_codec import ERROR
from millrace.rpc.frames import NO_BLOBS, Buffer, Frame, FrameReader
from millrace.rpc.http_connection import HttpConnection, ResponseHead
from millrace.rpc.socket_transport import Late
from millrace.rpc.transport import CallResult, ConnectionLost, copy_of

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry


_TYPE = "application/vnd.millrace.calls"
_PROBLEM = "application/problem+json"
_ON_THE_WAY = (401, 500, 502, 503, 504)
"""Statuses that a proxy may answer by itself, with a body of its own."""
_TIME_DIGITS_MAX = 16


class _Problem(msgspec.Struct, frozen=True):
    """The fields of problem details (RFC 9457) that are used here."""

    code: str = ""
    detail: str = ""
    field: str | None = None
    limit: int | None = None
    outcome: str = "unknown"
    retry_after_ms: int = 0


class _Waiting:
    """A call that waits to be sent with others."""

    __slots__ = ("call", "carried", "future")

    def __init__(self, call: Call, future: asyncio.Future[CallResult], carried: bytes) -> None:
        self.call = call
        self.carried = carried
        self.future = future


class HttpTransport:
    """Carries calls to a server."""

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
        self._notifying: set[asyncio.Task[None]] = set()
        self._waiters = asyncio.Semaphore(limits.WIRE_POOL_WAITING_MAX)
        self._heartbeat = SessionHeartbeat(self._say)
        self._is_closed = False
        self._clock_ahead_ms = 0
        self._is_verified = False
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

    def clock_ahead_ms(self) -> int:
        return self._clock_ahead_ms

    # --- Calls ----------------------------------------------------------------------------------

    async def call(self, call: Call) -> CallResult:
        self._check_open()
        wait_ms = call.wait_ms if isinstance(call, Submit) else 0
        if wait_ms or isinstance(call, AwaitForwarding | BackUp | Repair):
            async with self._waiters:
                sheet = FrameWriter()
                sheet.call(1, call)
                seconds = (
                    None if isinstance(call, AwaitForwarding | BackUp | Repair) else wait_ms / 1000
                )
                async with self._request(sheet.take(), seconds, self._trace_headers()) as frames:
                    return await _only(call, frames)
        future: asyncio.Future[CallResult] = self._loop.create_future()
        self._out.append(_Waiting(call, future, self._trace_headers()))
        self._pump()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._late(call, future.result())
            raise
        finally:
            # Break the reference cycle: future, its error, the traceback, this frame.
            del future

    def begin(self, call: Call) -> None:
        # Always needs waiting: a connection may have to be made.
        return None

    def tell(self, call: Call) -> None:
        if not self._is_closed:
            self._heartbeat.noted(call)
            task = self._loop.create_task(self._tell(call))
            self._notifying.add(task)
            task.add_done_callback(self._notifying.discard)

    async def _tell(self, call: Call) -> None:
        sheet = FrameWriter()
        try:
            sheet.call(0, call)
            async with self._request(sheet.take(), 0) as frames:
                async for _ in frames:
                    continue
        except (ConnectionLost, MillraceError):
            # Treated like the loss of the connection.
            return

    def _trace_headers(self) -> bytes:
        """Return headers of the current trace, if there is one."""
        if self._telemetry is None:
            return b""
        pairs = self._telemetry.carried()
        return b"".join(b"\r\n%b: %b" % (name.encode(), value) for name, value in pairs)

    async def _say(self, calls: list[Heartbeat]) -> None:
        sheet = FrameWriter()
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
        """Send the waiting calls in one request, and repeat while more are waiting."""
        while self._out:
            limit = limits.WIRE_REQUEST_CALLS_MAX
            burst, self._out = self._out[:limit], self._out[limit:]
            sheet = FrameWriter()
            pending: dict[int, _Waiting] = {}
            for id_, waiting in enumerate(burst, 1):
                if waiting.future.done():
                    # Cancelled before it was sent.
                    continue
                try:
                    sheet.call(id_, waiting.call)
                except Refused as error:
                    waiting.future.set_exception(detached(error))
                else:
                    pending[id_] = waiting
            if pending:
                await self._exchange(sheet.take(), pending)

    async def _exchange(self, body: list[Buffer], pending: dict[int, _Waiting]) -> None:
        failure: Exception
        try:
            # One request has one trace context: that of its first call.
            carried = next(iter(pending.values())).carried
            async with self._request(body, 0, carried) as frames:
                async for frame in frames:
                    for item in _items(frame):
                        waiting = pending.pop(cast("int", item[0]), None)
                        if waiting is not None:
                            self._take(waiting, item, frame)
            failure = ConnectionLost("the answer was cut off", sent=True)
        except (ConnectionLost, MillraceError) as error:
            failure = detached(error)
        for waiting in pending.values():
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
            self._heartbeat.note(waiting.call, answered.value)
            waiting.future.set_result(answered)

    async def batches(self, call: ReadBatches) -> AsyncGenerator[pa.RecordBatch, None]:
        self._check_open()
        sheet = FrameWriter()
        sheet.call(1, call)
        shape = CALLS[ReadBatches].answer
        async with self._waiters, self._request(sheet.take(), None) as frames:
            async for frame in frames:
                for item in _items(frame):
                    status, value = item[1], item[2]
                    if status == AnswerStatus.PART:
                        batch = shape.unpack(value, "batch", frame.blobs)
                        yield cast("pa.RecordBatch", batch)
                    elif status == AnswerStatus.FAILED:
                        raise ERROR.unpack(value, "error", frame.blobs)
                    else:
                        return
        raise ConnectionLost("the answer was cut off", sent=True)

    # --- Connections ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _request(
        self, body: list[Buffer], wait_seconds: float | None, carried: bytes = b""
    ) -> AsyncIterator[AsyncGenerator[Frame, None]]:
        """Send a request; yield the frames of the response. The timeout is `wait_seconds` plus a
        constant; None: no timeout."""
        connection = await self._connection()
        length = sum(map(_size, body))
        head = self._head + carried + b"\r\ncontent-length: %d\r\n\r\n" % length
        seconds = None if wait_seconds is None else wait_seconds + limits.WIRE_ANSWER_SECONDS_MAX
        try:
            async with asyncio.timeout(seconds):
                response = await connection.ask(head, body)
                self._check_server(response)
                if response.status != 200:
                    raise await _refusal(connection, response)
                self._note_time(response)
                async with aclosing(_frames(connection)) as frames:
                    yield frames
        except TimeoutError as error:
            raise ConnectionLost("no answer came in time", sent=True) from error
        finally:
            if connection.is_reusable and not self._is_closed:
                connection.idle_since = self._loop.time()
                self._idle.append(connection)
            else:
                connection.close()

    async def _connection(self) -> HttpConnection:
        now = self._loop.time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now - connection.idle_since < limits.WIRE_IDLE_SECONDS_MAX:
                return connection
            connection.close()
        return await HttpConnection.make(self._url, self._tls)

    def _check_server(self, head: ResponseHead) -> None:
        """Check that Millrace responds, or a proxy on its behalf.

        Raises:
            Invalid: it never did.
            ConnectionLost: it did before.
        """
        kind = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in (_TYPE, _PROBLEM):
            self._is_verified = True
        elif head.status not in _ON_THE_WAY:
            text = f"{self.where} does not answer as Millrace does (status {head.status})"
            if self._is_verified:
                raise ConnectionLost(text, sent=True)
            raise Invalid(f"{text}; see that the address is right", field="url")

    def _note_time(self, head: ResponseHead) -> None:
        text = head.headers.get("millrace-now", "")
        if text.isascii() and text.isdigit() and len(text) < _TIME_DIGITS_MAX:
            self._clock_ahead_ms = int(text) - time.time_ns() // 1_000_000

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"{self.where} was closed; connect again")

    async def close(self) -> None:
        self._is_closed = True
        self._heartbeat.close()
        tasks = [*self._pumps, *self._notifying]
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
    splitter = FrameReader(
        head_bytes_max=limits.WIRE_BLOB_BYTES_MAX, blob_bytes_max=2 * limits.WIRE_BLOB_BYTES_MAX
    )
    async with aclosing(connection.body()) as pieces:
        async for piece in pieces:
            try:
                frames = splitter.feed(piece)
            except Refused as error:
                raise Fatal(f"the answer cannot be read: {error}") from error
            for frame in frames:
                yield frame


def _items(frame: Frame) -> list[list[object]]:
    """Parse the answers of a frame."""
    try:
        return read_answers(frame)
    except Refused as error:
        raise Fatal(f"the answer cannot be read: {error}") from error


async def _only(call: Call, frames: AsyncGenerator[Frame, None]) -> CallResult:
    async for frame in frames:
        for item in _items(frame):
            answered = _answered(call, item, frame)
            async for _ in frames:
                # Read to the end of the body, so that the connection can be reused.
                continue
            return answered
    raise ConnectionLost("the answer was cut off", sent=True)


def _answered(call: Call, item: list[object], frame: Frame) -> CallResult:
    if item[1] == AnswerStatus.FAILED:
        raise ERROR.unpack(item[2], "error", frame.blobs)
    try:
        value = CALLS[type(call)].answer.unpack(item[2], "answer", frame.blobs)
        rows = None
        if item[1] == AnswerStatus.WITH_ROWS:
            rows = ROWS.unpack(item[3], "rows", frame.blobs)
    except Refused as error:
        raise Fatal(f"an answer cannot be read: {error}") from error
    return CallResult(value, rows)


async def _refusal(
    connection: HttpConnection, head: ResponseHead
) -> MillraceError | ConnectionLost:
    """Return the error of a request that was refused as a whole."""
    body = b""
    async with aclosing(connection.body()) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > limits.HTTP_HEAD_BYTES_MAX:
                break
    return refusal_of(head.status, body)


def refusal_of(status: int, body: bytes) -> MillraceError | ConnectionLost:
    """Return the error for a status and a body with problem details."""
    try:
        problem = decode_json(body, _Problem)
    except msgspec.MsgspecError:
        problem = _Problem()
    detail = problem.detail or f"it was answered with the status {status}"
    if status == 401:
        return Unauthenticated(detail, field=problem.field)
    if status >= 500 and problem.outcome == "unknown":
        return ConnectionLost(detail, sent=True)
    outcome = {"refused": "r", "retry": "t"}.get(problem.outcome, "r")
    raw = [outcome, problem.code, detail, problem.field, problem.limit, problem.retry_after_ms]
    return ERROR.unpack(raw, "error", NO_BLOBS)


# --- Heartbeats for sessions over HTTP, where no connection lasts --------------------------------

Send = Callable[[list[Heartbeat]], Awaitable[None]]


class SessionHeartbeat:
    """Sends heartbeats for all sessions that this client has opened."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._claims: dict[tuple[ShardId, int], Claim] = {}
        self._task: asyncio.Task[None] | None = None

    def note(self, call: Call, answer: object) -> None:
        """Record the answer of a call: heartbeats start when a session is opened, and end when it
        is closed."""
        if not isinstance(call, Submit):
            return
        if isinstance(answer, SessionRef):
            self._claims[call.shard, answer.claim.session] = answer.claim
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._speak())
        elif isinstance(call.command, CloseSession) and not call.command.keep:
            self._claims.pop((call.shard, call.command.claim.session), None)

    def noted(self, call: Call) -> None:
        """Record a call without answer that ends a session."""
        if isinstance(call, Notify) and isinstance(call.command, CloseSession | SuspectSession):
            self._claims.pop((call.shard, call.command.claim.session), None)

    async def _speak(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # A fixed rate, unless the last heartbeat took longer than the interval.
            due = max(due + limits.WIRE_SPEAK_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())
            calls = [Heartbeat(shard, claim) for (shard, _), claim in self._claims.items()]
            for at in range(0, len(calls), limits.WIRE_CALLS_MAX):
                # A session without heartbeats is suspected; then the client resumes it.
                with suppress(ConnectionLost, MillraceError, TimeoutError):
                    async with asyncio.timeout(limits.WIRE_SPOKEN_SECONDS_MAX):
                        await self._send(calls[at : at + limits.WIRE_CALLS_MAX])

    def close(self) -> None:
        """Stop the heartbeats."""
        if self._task is not None:
            self._task.cancel()
