"""Calls over HTTP: `POST /v1/calls`, with frames in the bodies of request and response.

Rule 1: all calls of one request are answered in one response. Several queries are answered one
after the other, as fast as the client receives the answers: a short request never makes the server
hold more than one large answer.
Rule 2: when the client closes the connection, its calls are cancelled, and messages that they
leased are returned.
Rule 3: sessions do not end with a connection here: their client sends heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain
from typing import Protocol

from millrace import limits
from millrace.core.commands import (
    ApplyTransaction,
    Publish,
    Replace,
    Stage,
)
from millrace.core.format.block import HEADER, Block
from millrace.core.model import NewMessage
from millrace.errors import Invalid, MillraceError, Refused, TooLarge
from millrace.rpc.calls import (
    AwaitForwarding,
    BackUp,
    BatchTaken,
    Call,
    Cancel,
    Heartbeat,
    Notify,
    ReadBatches,
    Repair,
    Submit,
    Unfollow,
)
from millrace.rpc.codec import FrameWriter, read_call, split_calls
from millrace.rpc.fast_codecs import message_bytes
from millrace.rpc.frames import Frame, FrameReader
from millrace.server.auth.access import Principal
from millrace.server.http.response import Buffer, Response
from millrace.server.rpc.call_authorizer import UnknownShard
from millrace.server.rpc.call_permissions import Caller
from millrace.server.rpc.call_session import CallSession, RpcService
from millrace.server.rpc.queries import stream_of

TYPE = "application/vnd.millrace.calls"

_ROW_BYTES = 13
"""Overhead per row of a block: offsets of its body, key and headers, and null bits."""

_PAIR_BYTES = 8
"""Overhead per header: offsets of its name and value."""

_BRIEF = (
    Submit
    | Notify
    | Heartbeat
    | AwaitForwarding
    | BackUp
    | Repair
    | Unfollow
    | Cancel
    | BatchTaken
    | Refused
)
"""Calls with a small answer or none. The others are queries, whose answers may be large."""


class ShutdownWaiters(Protocol):
    """Signals that the server is shutting down."""

    @property
    def is_set(self) -> bool:
        """True during shutdown."""
        ...

    def add(self, waiter: CallSession) -> None:
        """Register a session to be stopped at shutdown."""
        ...

    def discard(self, waiter: CallSession) -> None:
        """Remove a registered session."""
        ...


async def answer_calls(
    service: RpcService,
    who: Principal,
    body: bytes | bytearray | memoryview,
    *,
    now_ms: int,
    stopping: ShutdownWaiters | None = None,
    owe: Callable[[int], None] | None = None,
    owe_bytes: Callable[[int], None] | None = None,
) -> Response:
    """Return the response to a request whose body consists of frames.

    With `stopping`, waiting calls are answered at shutdown. `owe` is called with the number of
    calls beyond the first, without heartbeats. `owe_bytes` is called with the bytes by which the
    rows in storage exceed the body.

    Raises:
        Refused: the body cannot be decoded, or has too many calls for one request.
    """
    caller = Caller(who)
    found = await _read(body)
    reading = _reading([call for _, call in found])
    if owe is not None and len(found) > 1:
        owe(sum(not isinstance(call, Heartbeat) for _, call in found[1:]))
    if owe_bytes is not None:
        excess = sum(_stored_bytes(call.command) for _, call in found if isinstance(call, Submit))
        if excess > len(body):
            owe_bytes(excess - len(body))
    head = {"millrace-now": str(now_ms)}
    if reading is not None:
        call = await _admitted(service, caller, reading)
        return Response(200, type=TYPE, headers=head, parts=_parts(service, call))
    questions = [one for one in found if not isinstance(one[1], _BRIEF)]
    if len(questions) > 1:
        brief = [one for one in found if isinstance(one[1], _BRIEF)]
        steps = [brief, *([one] for one in questions)]
        return Response(
            200, type=TYPE, headers=head, parts=_answers(service, caller, steps, stopping)
        )
    answers = [part async for part in _answers(service, caller, [found], stopping)]
    return Response(200, b"".join(chain.from_iterable(answers)), type=TYPE, headers=head)


def _stored_bytes(command: object) -> int:
    """Return the number of bytes of a command's rows in storage."""
    match command:
        case Publish(rows=Block() as block) | Stage(rows=block):
            return block.size()
        case Publish(rows=tuple() as messages):
            return _block_bytes(messages)
        case Replace(message=message):
            return _block_bytes((message,))
        case ApplyTransaction(parts=parts):
            return sum(_stored_bytes(part) for _, part in parts)
        case _:
            return 0


def _block_bytes(messages: Sequence[NewMessage]) -> int:
    """Return an upper bound of `Block.size`, without building the block."""
    pairs = sum(len(message.headers) for message in messages)
    return HEADER.size + message_bytes(messages) + _ROW_BYTES * len(messages) + _PAIR_BYTES * pairs


async def _answers(
    service: RpcService,
    caller: Caller,
    steps: Sequence[Sequence[tuple[int, Call | Refused]]],
    stopping: ShutdownWaiters | None,
) -> AsyncIterator[list[Buffer]]:
    """Yield the answers to calls step by step; a step begins when the answers before it were
    sent."""
    changed = asyncio.Event()
    talk = CallSession(service, caller, changed.set, lasts=False)
    if stopping is not None:
        stopping.add(talk)
    try:
        for found in steps:
            talk.take(found)
            if stopping is not None and stopping.is_set:
                talk.stop()
            while not talk.is_idle:
                changed.clear()
                await changed.wait()
            yield talk.take_answers()
    finally:
        if stopping is not None:
            stopping.discard(talk)
        talk.end()


async def _read(body: bytes | bytearray | memoryview) -> list[tuple[int, Call | Refused]]:
    """Decode the calls of a body in steps, and serve other requests between them."""
    found: list[tuple[int, Call | Refused]] = []
    size = 0
    for frame in _frames(body):
        calls = split_calls(frame)
        if len(found) + len(calls) > limits.WIRE_CALLS_MAX:
            raise TooLarge(
                f"there are more than {limits.WIRE_CALLS_MAX} calls; ask for less at once",
                field="body",
                limit=limits.WIRE_CALLS_MAX,
            )
        for raw in calls:
            size += len(raw)
            if size > limits.WIRE_STEP_BYTES:
                size = 0
                await asyncio.sleep(0)
            found.append(read_call(raw, frame.blobs))
    return found


def _frames(body: bytes | bytearray | memoryview) -> list[Frame]:
    splitter = FrameReader(
        frames_max=limits.WIRE_CALLS_MAX, heads_bytes_max=limits.WIRE_BODY_HEADS_BYTES_MAX
    )
    frames = splitter.feed(body)
    if not frames or not splitter.is_between:
        raise Invalid("the body does not end with a whole frame", field="body")
    return frames


def _reading(asked: list[Call | Refused]) -> ReadBatches | None:
    """Return the stream of a request, if any; it must be its only call."""
    found = [call for call in asked if isinstance(call, ReadBatches)]
    if found and len(asked) > 1:
        raise Invalid("a stream is asked for alone", field="body")
    return found[0] if found else None


async def _admitted(service: RpcService, caller: Caller, call: ReadBatches) -> ReadBatches:
    while True:
        try:
            service.admission.admit(caller, call)
        except UnknownShard as unknown:
            await service.admission.learn(caller, unknown.shard)
        else:
            return call


async def _parts(service: RpcService, call: ReadBatches) -> AsyncIterator[Buffer]:
    try:
        async for buffers in stream_of(service.engine, call):
            for buffer in buffers:
                yield buffer
    except MillraceError as error:
        last = FrameWriter()
        last.failed(1, error)
        yield b"".join(last.take())
