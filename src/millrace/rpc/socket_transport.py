"""Calls to the process that has a folder open, over its Unix socket.

All calls made in one turn of the event loop are sent in one write. After the connection is lost,
the next call reconnects, to the process that has the folder by then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import cast

import pyarrow as pa

from millrace import limits
from millrace.errors import Closed, Fatal, MillraceError, Refused, detached
from millrace.rpc.calls import (
    CALLS,
    BatchTaken,
    Call,
    Cancel,
    ReadBatches,
)
from millrace.rpc.codec import (
    ROWS,
    VERSION,
    AnswerStatus,
    FrameWriter,
    read_answers,
)
from millrace.rpc.error_codec import ERROR
from millrace.rpc.field_codecs import FieldCodec
from millrace.rpc.frames import Frame, FrameReader
from millrace.rpc.transport import CallResult, ConnectionLost, copy_of

_logger = logging.getLogger("millrace.client")

Late = Callable[[Call, CallResult], None]
"""Callback for an answer to a call that was cancelled."""


class _Pending:
    """A call waiting for its answer."""

    __slots__ = ("_connection", "_is_given_up", "_outcome", "_tell", "call", "id", "shape")

    def __init__(
        self, connection: _SocketConnection, id_: int, call: Call, shape: FieldCodec
    ) -> None:
        self._connection = connection
        self.id = id_
        self.call = call
        self.shape = shape
        self._outcome: CallResult | Exception | None = None
        self._tell: Callable[[object], None] | None = None
        self._is_given_up = False

    def then(self, tell: Callable[[object], None]) -> None:
        self._tell = tell
        if self._outcome is not None:
            # It could not be sent, and has failed already.
            self._connection.loop.call_soon(self.end, self._outcome)

    def result(self) -> CallResult:
        outcome = self._outcome
        if isinstance(outcome, CallResult):
            return outcome
        assert outcome is not None
        raise copy_of(outcome)

    def end(self, outcome: CallResult | Exception) -> None:
        """Set the outcome and run the callback."""
        self._outcome = outcome
        callback, self._tell = self._tell, None
        if self._is_given_up:
            self._return(outcome)
        elif callback is not None:
            try:
                callback(self)
            except Exception:
                # An error of the callback must not lose the answers of other calls.
                _logger.exception("whoever was told an answer ended in an error")

    def give_up(self) -> None:
        # It stays pending until it is answered: what it was granted must then be released.
        self._tell, self._is_given_up = None, True
        if self._outcome is None:
            self._connection.tell(Cancel(self.id))
        else:
            self._return(self._outcome)

    def _return(self, outcome: CallResult | Exception) -> None:
        if isinstance(outcome, CallResult):
            self._connection.late(self.call, outcome)


class _Stream:
    """A stream that is being read."""

    def __init__(self) -> None:
        self.batches: deque[pa.RecordBatch] = deque()
        self.is_over = False
        self.error: MillraceError | ConnectionLost | None = None
        self.told = asyncio.Event()


class SocketTransport:
    """Carries calls to the process that has a folder open."""

    def __init__(
        self, folder: Path, late: Late, may_join: Callable[[], bool] | None = None
    ) -> None:
        """`may_join`: returns True if another process that has the folder may be joined now."""
        self._folder = folder
        self._may_join = may_join
        self._late = late
        self._connection: _SocketConnection | None = None
        self._making: asyncio.Task[_SocketConnection] | None = None
        self._is_closed = False
        self._clock_ahead_ms = 0

    @property
    def where(self) -> str:
        return str(self._folder)

    @property
    def is_here(self) -> bool:
        return True

    async def call(self, call: Call) -> CallResult:
        connection = self._connection or await self._connect()
        return await connection.call(call)

    def begin(self, call: Call) -> _Pending | None:
        connection = self._connection
        return None if connection is None or connection.is_full else connection.begin(call)

    def tell(self, call: Call) -> None:
        if self._connection is not None:
            self._connection.tell(call)

    async def batches(self, call: ReadBatches) -> AsyncGenerator[pa.RecordBatch, None]:
        connection = self._connection or await self._connect()
        id_, stream = connection.begin_stream(call)
        try:
            while True:
                while stream.batches:
                    batch = stream.batches.popleft()
                    connection.tell(BatchTaken(id_))
                    yield batch
                if stream.error is not None:
                    raise copy_of(stream.error)
                if stream.is_over:
                    return
                stream.told.clear()
                await stream.told.wait()
        finally:
            connection.end_stream(id_)

    def clock_ahead_ms(self) -> int:
        return self._clock_ahead_ms

    async def connect(self) -> None:
        """Connect, unless connected already.

        Raises:
            ConnectionLost: the folder is not shared, or its process has ended.
        """
        if self._connection is None:
            await self._connect()

    async def _connect(self) -> _SocketConnection:
        if self._is_closed:
            raise Closed(f"{self._folder} was closed; open it again")
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make())
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    def _made(self, making: asyncio.Task[_SocketConnection]) -> None:
        self._making = None
        if not making.cancelled():
            making.exception()

    async def _make(self) -> _SocketConnection:
        if self._may_join is not None and not self._may_join():
            raise ConnectionLost(f"whoever had {self._folder} has ended", sent=False)
        path = socket_path(self._folder)
        if path is None:
            raise ConnectionLost(f"nobody shares {self._folder}", sent=False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limits.WIRE_CONNECT_SECONDS_MAX):
                _, connection = await loop.create_unix_connection(
                    lambda: _SocketConnection(self._late, self._gone), str(path)
                )
                now_ms = await connection.greeted
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"{path} does not answer: {error}", sent=False) from error
        self._clock_ahead_ms = now_ms - time.time_ns() // 1_000_000
        if self._is_closed:
            connection.close()
            raise Closed(f"{self._folder} was closed; open it again")
        self._connection = connection
        return connection

    def _gone(self, connection: _SocketConnection) -> None:
        if self._connection is connection:
            self._connection = None

    async def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()
            await self._connection.gone


class _SocketConnection(asyncio.Protocol):
    """One connection to the engine."""

    def __init__(self, late: Late, lost: Callable[[_SocketConnection], None]) -> None:
        self.late = late
        self._lost = lost
        self.loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[int] = self.loop.create_future()
        self.gone: asyncio.Future[None] = self.loop.create_future()
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._splitter = FrameReader(
            head_bytes_max=limits.WIRE_BLOB_BYTES_MAX, blob_bytes_max=2 * limits.WIRE_BLOB_BYTES_MAX
        )
        self._pending: dict[int, _Pending] = {}
        self._streams: dict[int, _Stream] = {}
        self._sheet = FrameWriter()
        self._said: list[tuple[int, Call]] = []
        """Calls to be sent at the end of this turn of the loop, or earlier if they are many."""
        self._is_lost = False
        self._room: asyncio.Future[None] | None = None
        self._next = 1

    # --- Out ------------------------------------------------------------------------------------

    async def call(self, call: Call) -> CallResult:
        if self._room is not None:
            await self._room
        if self._is_lost:
            raise ConnectionLost("the connection was lost", sent=False)
        pending = self.begin(call)
        waiter = self.loop.create_future()
        pending.then(partial(_wake, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            pending.give_up()
            raise
        return pending.result()

    @property
    def is_full(self) -> bool:
        """True if nothing more should be sent, now or ever."""
        return self._is_lost or self._room is not None

    def begin(self, call: Call) -> _Pending:
        id_ = self._say(call)
        pending = self._pending[id_] = _Pending(self, id_, call, CALLS[type(call)].answer)
        if len(self._said) >= limits.WIRE_TOGETHER_MAX:
            # Only after it is registered: encoding may refuse it.
            self._flush()
        return pending

    def tell(self, call: Call) -> None:
        if not self._is_lost:
            self._say(call, 0)

    def begin_stream(self, call: ReadBatches) -> tuple[int, _Stream]:
        if self._is_lost:
            raise ConnectionLost("the connection was lost", sent=False)
        id_ = self._say(call)
        stream = self._streams[id_] = _Stream()
        return id_, stream

    def end_stream(self, id_: int) -> None:
        stream = self._streams.pop(id_, None)
        if stream is not None and not stream.is_over:
            self.tell(Cancel(id_))

    def _say(self, call: Call, id_: int | None = None) -> int:
        """Queue a call for the write at the end of this turn; id 0: without an answer."""
        if id_ is None:
            id_ = self._next
            self._next += 1
        if not self._said:
            self.loop.call_soon(self._flush)
        self._said.append((id_, call))
        return id_

    def _flush(self) -> None:
        calls, self._said = self._said, []
        for id_, call in calls:
            try:
                self._sheet.call(id_, call)
            except Refused as error:
                self._refuse(id_, detached(error))
        buffers = self._sheet.take()
        if not self._is_lost and buffers:
            if len(buffers) == 1:
                self._transport.write(buffers[0])
            else:
                self._transport.writelines(buffers)

    def _refuse(self, id_: int, error: Refused) -> None:
        """Fail a call that cannot be encoded."""
        pending, stream = self._pending.pop(id_, None), self._streams.get(id_)
        if pending is not None:
            pending.end(error)
        elif stream is not None:
            stream.error, stream.is_over = error, True
            stream.told.set()

    def pause_writing(self) -> None:
        if self._room is None:
            self._room = self.loop.create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    # --- In -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.WIRE_UNHEARD_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        ends: list[tuple[_Pending, CallResult | Exception]] = []
        try:
            for frame in self._splitter.feed(data):
                for item in read_answers(frame):
                    self._take(item, frame, ends)
        except Refused:
            # Unreadable data: the other side has another version.
            self._transport.abort()
        finally:
            # Callbacks run after all frames were read, in one batch, even if a later frame was
            # unreadable.
            for pending, outcome in ends:
                pending.end(outcome)

    def _take(
        self, item: list[object], frame: Frame, ends: list[tuple[_Pending, CallResult | Exception]]
    ) -> None:
        id_ = cast("int", item[0])
        if id_ == 0:
            self._greet(item, frame)
            return
        pending = self._pending.pop(id_, None)
        if pending is None:
            self._take_part(id_, item, frame)
            return
        outcome: CallResult | Exception
        try:
            if item[1] == AnswerStatus.FAILED:
                outcome = ERROR.unpack(item[2], "error", frame.blobs)
            else:
                value = pending.shape.unpack(item[2], "answer", frame.blobs)
                rows = None
                if item[1] == AnswerStatus.WITH_ROWS:
                    rows = ROWS.unpack(item[3], "rows", frame.blobs)
                outcome = CallResult(value, rows)
        except Refused as error:
            outcome = Fatal(f"an answer cannot be read: {error}")
        ends.append((pending, outcome))

    def _take_part(self, id_: int, item: list[object], frame: Frame) -> None:
        stream = self._streams.get(id_)
        if stream is None:
            return
        if item[1] == AnswerStatus.PART:
            batch = CALLS[ReadBatches].answer.unpack(item[2], "batch", frame.blobs)
            stream.batches.append(cast("pa.RecordBatch", batch))
        else:
            stream.is_over = True
            if item[1] == AnswerStatus.FAILED:
                stream.error = ERROR.unpack(item[2], "error", frame.blobs)
        stream.told.set()

    def _greet(self, item: list[object], frame: Frame) -> None:
        if self.greeted.done():
            # A second greeting says goodbye: calls sent since are not answered.
            self._transport.close()
        elif item[1] == VERSION:
            self.greeted.set_result(cast("int", item[2]))
        else:
            self.greeted.set_exception(
                ConnectionLost(f"it speaks version {item[1]}, and this is {VERSION}", sent=False)
            )

    def close(self) -> None:
        """Flush and close the connection."""
        self._flush()
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._lost(self)
        self.resume_writing()
        lost = "the connection was lost"
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionLost(lost, sent=False))
            self.greeted.exception()
        unanswered, self._pending = self._pending, {}
        for pending in unanswered.values():
            pending.end(ConnectionLost(lost, sent=True))
        for stream in self._streams.values():
            stream.error, stream.is_over = ConnectionLost(lost, sent=True), True
            stream.told.set()
        self._streams.clear()
        if not self.gone.done():
            self.gone.set_result(None)


def _wake(waiter: asyncio.Future[None], pending: object) -> None:
    if not waiter.done():
        waiter.set_result(None)


SOCKET = "socket"
"""Name of the socket in the folder."""

POINTER = "socket.path"
"""If the folder's path is too long for a socket, this file holds the path of a shorter one."""


def socket_path(folder: Path) -> Path | None:
    """Return the path of a folder's socket, or None if the folder is not shared."""
    path = folder / SOCKET
    if len(os.fsencode(path)) > limits.SOCKET_PATH_BYTES_MAX:
        try:
            path = Path((folder / POINTER).read_text())
        except (FileNotFoundError, UnicodeDecodeError):
            return None
    return path if path.is_socket() else None
