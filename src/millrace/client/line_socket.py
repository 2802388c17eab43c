"""A line over the socket of a folder.

All calls that are made in one turn of the event loop go out in one write. When the line is lost, it
is not made again before somebody calls: then whoever has the folder by that time is found.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import cast

import pyarrow as pa

from millrace import limits
from millrace.client.line import Answered, Lost, copy_of
from millrace.client.sockets import socket_of
from millrace.errors import Closed, Fatal, MillraceError, Refused, detached
from millrace.rpc.calls import (
    CALLS,
    Call,
    Cancel,
    More,
    ReadBatches,
)
from millrace.rpc.codec import (
    ROWS,
    VERSION,
    Sheet,
    Status,
    read_answers,
)
from millrace.rpc.failures import FAILURE
from millrace.rpc.field_codecs import Shape
from millrace.rpc.frames import Frame, Splitter

_logger = logging.getLogger("millrace.client")

Late = Callable[[Call, Answered], None]
"""Told of an answer to a call that was cancelled meanwhile."""


class _Pending:
    """A call whose answer has not come."""

    __slots__ = ("_is_given_up", "_outcome", "_speech", "_tell", "call", "id", "shape")

    def __init__(self, speech: _Speech, id_: int, call: Call, shape: Shape) -> None:
        self._speech = speech
        self.id = id_
        self.call = call
        self.shape = shape
        self._outcome: Answered | Exception | None = None
        self._tell: Callable[[object], None] | None = None
        self._is_given_up = False

    def then(self, tell: Callable[[object], None]) -> None:
        self._tell = tell
        if self._outcome is not None:
            # It could not be sent.
            self._speech.loop.call_soon(self.end, self._outcome)

    def result(self) -> Answered:
        outcome = self._outcome
        if isinstance(outcome, Answered):
            return outcome
        assert outcome is not None
        raise copy_of(outcome)

    def end(self, outcome: Answered | Exception) -> None:
        """This is what it was answered."""
        self._outcome = outcome
        tell, self._tell = self._tell, None
        if self._is_given_up:
            self._return(outcome)
        elif tell is not None:
            try:
                tell(self)
            except Exception:
                # Their mistake, by which the answers of others are not lost.
                _logger.exception("whoever was told an answer ended in an error")

    def give_up(self) -> None:
        # Until it is answered it stays pending: what it is handed all the same must be given back.
        self._tell, self._is_given_up = None, True
        if self._outcome is None:
            self._speech.tell(Cancel(self.id))
        else:
            self._return(self._outcome)

    def _return(self, outcome: Answered | Exception) -> None:
        if isinstance(outcome, Answered):
            self._speech.late(self.call, outcome)


class _Stream:
    """A stream that is being read."""

    def __init__(self) -> None:
        self.batches: deque[pa.RecordBatch] = deque()
        self.is_over = False
        self.error: MillraceError | Lost | None = None
        self.told = asyncio.Event()


class SocketLine:
    """A line to the process that has a folder open."""

    def __init__(
        self, folder: Path, late: Late, may_join: Callable[[], bool] | None = None
    ) -> None:
        """`may_join`: whether another process that has the folder may be joined now."""
        self._folder = folder
        self._may_join = may_join
        self._late = late
        self._speech: _Speech | None = None
        self._making: asyncio.Task[_Speech] | None = None
        self._is_closed = False
        self._ahead_ms = 0

    @property
    def where(self) -> str:
        return str(self._folder)

    @property
    def is_here(self) -> bool:
        return True

    async def call(self, call: Call) -> Answered:
        speech = self._speech or await self._connect()
        return await speech.call(call)

    def begin(self, call: Call) -> _Pending | None:
        speech = self._speech
        return None if speech is None or speech.is_full else speech.begin(call)

    def tell(self, call: Call) -> None:
        if self._speech is not None:
            self._speech.tell(call)

    async def batches(self, call: ReadBatches) -> AsyncGenerator[pa.RecordBatch, None]:
        speech = self._speech or await self._connect()
        id_, stream = speech.begin_stream(call)
        try:
            while True:
                while stream.batches:
                    batch = stream.batches.popleft()
                    speech.tell(More(id_))
                    yield batch
                if stream.error is not None:
                    raise copy_of(stream.error)
                if stream.is_over:
                    return
                stream.told.clear()
                await stream.told.wait()
        finally:
            speech.end_stream(id_)

    def ahead_ms(self) -> int:
        return self._ahead_ms

    async def connect(self) -> None:
        """Have the line made, if it is not there.

        Raises:
            Lost: nobody shares the folder, or whoever did is gone.
        """
        if self._speech is None:
            await self._connect()

    async def _connect(self) -> _Speech:
        if self._is_closed:
            raise Closed(f"{self._folder} was closed; open it again")
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make())
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    def _made(self, making: asyncio.Task[_Speech]) -> None:
        self._making = None
        if not making.cancelled():
            making.exception()

    async def _make(self) -> _Speech:
        if self._may_join is not None and not self._may_join():
            raise Lost(f"whoever had {self._folder} has ended", sent=False)
        path = socket_of(self._folder)
        if path is None:
            raise Lost(f"nobody shares {self._folder}", sent=False)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limits.WIRE_CONNECT_SECONDS_MAX):
                _, speech = await loop.create_unix_connection(
                    lambda: _Speech(self._late, self._gone), str(path)
                )
                now_ms = await speech.greeted
        except (OSError, TimeoutError) as error:
            raise Lost(f"{path} does not answer: {error}", sent=False) from error
        self._ahead_ms = now_ms - time.time_ns() // 1_000_000
        if self._is_closed:
            speech.close()
            raise Closed(f"{self._folder} was closed; open it again")
        self._speech = speech
        return speech

    def _gone(self, speech: _Speech) -> None:
        if self._speech is speech:
            self._speech = None

    async def close(self) -> None:
        self._is_closed = True
        if self._speech is not None:
            self._speech.close()
            await self._speech.gone


class _Speech(asyncio.Protocol):
    """One connection to the engine."""

    def __init__(self, late: Late, lost: Callable[[_Speech], None]) -> None:
        self.late = late
        self._lost = lost
        self.loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[int] = self.loop.create_future()
        self.gone: asyncio.Future[None] = self.loop.create_future()
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._splitter = Splitter(
            head_bytes_max=limits.WIRE_BLOB_BYTES_MAX, blob_bytes_max=2 * limits.WIRE_BLOB_BYTES_MAX
        )
        self._pending: dict[int, _Pending] = {}
        self._streams: dict[int, _Stream] = {}
        self._sheet = Sheet()
        self._said: list[tuple[int, Call]] = []
        """Calls that go out at the end of this turn, or when they are many."""
        self._is_lost = False
        self._room: asyncio.Future[None] | None = None
        self._next = 1

    # --- Out ------------------------------------------------------------------------------------

    async def call(self, call: Call) -> Answered:
        if self._room is not None:
            await self._room
        if self._is_lost:
            raise Lost("the connection was lost", sent=False)
        pending = self.begin(call)
        told = self.loop.create_future()
        pending.then(partial(_wake, told))
        try:
            await told
        except asyncio.CancelledError:
            pending.give_up()
            raise
        return pending.result()

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be sent now, or ever."""
        return self._is_lost or self._room is not None

    def begin(self, call: Call) -> _Pending:
        id_ = self._say(call)
        pending = self._pending[id_] = _Pending(self, id_, call, CALLS[type(call)].answer)
        if len(self._said) >= limits.WIRE_TOGETHER_MAX:
            # Not before it is known: it may be refused.
            self._flush()
        return pending

    def tell(self, call: Call) -> None:
        if not self._is_lost:
            self._say(call, 0)

    def begin_stream(self, call: ReadBatches) -> tuple[int, _Stream]:
        if self._is_lost:
            raise Lost("the connection was lost", sent=False)
        id_ = self._say(call)
        stream = self._streams[id_] = _Stream()
        return id_, stream

    def end_stream(self, id_: int) -> None:
        stream = self._streams.pop(id_, None)
        if stream is not None and not stream.is_over:
            self.tell(Cancel(id_))

    def _say(self, call: Call, id_: int | None = None) -> int:
        """Have a call sent with others, at the end of this turn at the latest; 0: nobody hears an
        answer."""
        if id_ is None:
            id_ = self._next
            self._next += 1
        if not self._said:
            self.loop.call_soon(self._flush)
        self._said.append((id_, call))
        return id_

    def _flush(self) -> None:
        said, self._said = self._said, []
        for id_, call in said:
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
        """A call cannot be sent."""
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
        ends: list[tuple[_Pending, Answered | Exception]] = []
        try:
            for frame in self._splitter.feed(data):
                for item in read_answers(frame):
                    self._take(item, frame, ends)
        except Refused:
            # What the other side says cannot be understood: it is of another version.
            self._transport.abort()
        finally:
            # All are read before the first is told: one step for many costs less than many for
            # each. Those that were read are told whatever the others came to.
            for pending, outcome in ends:
                pending.end(outcome)

    def _take(
        self, item: list[object], frame: Frame, ends: list[tuple[_Pending, Answered | Exception]]
    ) -> None:
        id_ = cast("int", item[0])
        if id_ == 0:
            self._greet(item, frame)
            return
        pending = self._pending.pop(id_, None)
        if pending is None:
            self._take_part(id_, item, frame)
            return
        outcome: Answered | Exception
        try:
            if item[1] == Status.FAILED:
                outcome = FAILURE.unpack(item[2], "error", frame.blobs)
            else:
                value = pending.shape.unpack(item[2], "answer", frame.blobs)
                rows = None
                if item[1] == Status.WITH_ROWS:
                    rows = ROWS.unpack(item[3], "rows", frame.blobs)
                outcome = Answered(value, rows)
        except Refused as error:
            outcome = Fatal(f"an answer cannot be read: {error}")
        ends.append((pending, outcome))

    def _take_part(self, id_: int, item: list[object], frame: Frame) -> None:
        stream = self._streams.get(id_)
        if stream is None:
            return
        if item[1] == Status.PART:
            batch = CALLS[ReadBatches].answer.unpack(item[2], "batch", frame.blobs)
            stream.batches.append(cast("pa.RecordBatch", batch))
        else:
            stream.is_over = True
            if item[1] == Status.FAILED:
                stream.error = FAILURE.unpack(item[2], "error", frame.blobs)
        stream.told.set()

    def _greet(self, item: list[object], frame: Frame) -> None:
        if self.greeted.done():
            # A last word: nothing that was sent since can be answered.
            self._transport.close()
        elif item[1] == VERSION:
            self.greeted.set_result(cast("int", item[2]))
        else:
            self.greeted.set_exception(
                Lost(f"it speaks version {item[1]}, and this is {VERSION}", sent=False)
            )

    def close(self) -> None:
        """End it."""
        self._flush()
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        self._lost(self)
        self.resume_writing()
        lost = "the connection was lost"
        if not self.greeted.done():
            self.greeted.set_exception(Lost(lost, sent=False))
            self.greeted.exception()
        unanswered, self._pending = self._pending, {}
        for pending in unanswered.values():
            pending.end(Lost(lost, sent=True))
        for stream in self._streams.values():
            stream.error, stream.is_over = Lost(lost, sent=True), True
            stream.told.set()
        self._streams.clear()
        if not self.gone.done():
            self.gone.set_result(None)


def _wake(told: asyncio.Future[None], pending: object) -> None:
    if not told.done():
        told.set_result(None)
