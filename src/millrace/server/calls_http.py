"""Calls over HTTP: `POST /v1/calls`, frames in, frames out.

Rule 1: what is asked in one request is answered in one response. Where it asks several questions,
one is answered after the other, as fast as the answers are taken in: however few bytes ask, no
more than one large answer is held.
Rule 2: whoever closes the connection gives up what was asked, and what it was handed returns.
Rule 3: sessions do not end with a connection here: whoever has one speaks for it from time to time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain
from typing import Protocol

from millrace import limits
from millrace.core.block import HEADER, Block
from millrace.core.commands import Publish, Stage, Transaction
from millrace.core.leased_commands import Replace
from millrace.core.model import Message
from millrace.errors import Invalid, MillraceError, Refused, TooLarge
from millrace.rpc.calls import (
    Arrive,
    Ask,
    BackUp,
    Call,
    Cancel,
    More,
    ReadBatches,
    Repair,
    Speak,
    Tell,
    Unfollow,
)
from millrace.rpc.codec import Sheet, read_call, split_calls
from millrace.rpc.fast_codecs import weigh
from millrace.rpc.frames import Frame, Splitter
from millrace.server.access import Principal
from millrace.server.admission import NotKnown
from millrace.server.calls import Service, Talk
from millrace.server.http.response import Buffer, Response
from millrace.server.questions import stream_of
from millrace.server.verbs import Caller

TYPE = "application/vnd.millrace.calls"

_ROW_BYTES = 13
"""Of a row in a block: offsets of its body, its key and its headers, and which are null."""

_PAIR_BYTES = 8
"""Of a header: offsets of its name and its value."""

_BRIEF = Ask | Tell | Speak | Arrive | BackUp | Repair | Unfollow | Cancel | More | Refused
"""What has a small answer, or none. The others are questions, whose answers may be large."""


class Stops(Protocol):
    """Knows when the server stops."""

    @property
    def is_set(self) -> bool:
        """Whether it does."""
        ...

    def add(self, waiter: Talk) -> None:
        """Have one stopped that waits."""
        ...

    def discard(self, waiter: Talk) -> None:
        """It waits no more."""
        ...


async def answer_calls(
    service: Service,
    who: Principal,
    body: bytes | bytearray | memoryview,
    *,
    now_ms: int,
    stopping: Stops | None = None,
    owe: Callable[[int], None] | None = None,
    owe_bytes: Callable[[int], None] | None = None,
) -> Response:
    """The answer to a request whose body are frames.

    With `stopping`, whoever waits is answered when the server stops; `owe` is told how many calls
    there are beside the first, but for words for sessions. `owe_bytes` is told how many bytes the
    rows in it have as they are stored, beyond those of the body.

    Raises:
        Refused: the body cannot be read, or is more than one request may ask.
    """
    caller = Caller(who)
    found = await _read(body)
    reading = _reading([call for _, call in found])
    if owe is not None and len(found) > 1:
        owe(sum(not isinstance(call, Speak) for _, call in found[1:]))
    if owe_bytes is not None:
        excess = sum(_stored_bytes(call.command) for _, call in found if isinstance(call, Ask))
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
    """Return how many bytes the rows of a command have as they are stored."""
    match command:
        case Publish(rows=Block() as block) | Stage(rows=block):
            return block.size()
        case Publish(rows=tuple() as messages):
            return _block_bytes(messages)
        case Replace(message=message):
            return _block_bytes((message,))
        case Transaction(parts=parts):
            return sum(_stored_bytes(part) for _, part in parts)
        case _:
            return 0


def _block_bytes(messages: Sequence[Message]) -> int:
    """As `Block.size`, without making the block; at most."""
    pairs = sum(len(message.headers) for message in messages)
    return HEADER.size + weigh(messages) + _ROW_BYTES * len(messages) + _PAIR_BYTES * pairs


async def _answers(
    service: Service,
    caller: Caller,
    steps: Sequence[Sequence[tuple[int, Call | Refused]]],
    stopping: Stops | None,
) -> AsyncIterator[list[Buffer]]:
    """The answers to calls; those of a step begin when those before were answered and taken in."""
    changed = asyncio.Event()
    talk = Talk(service, caller, changed.set, lasts=False)
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
    """Decode the calls of a body in steps, between which other requests are served."""
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
    splitter = Splitter(
        frames_max=limits.WIRE_CALLS_MAX, heads_bytes_max=limits.WIRE_BODY_HEADS_BYTES_MAX
    )
    frames = splitter.feed(body)
    if not frames or not splitter.is_between:
        raise Invalid("the body does not end with a whole frame", field="body")
    return frames


def _reading(asked: list[Call | Refused]) -> ReadBatches | None:
    """The stream that is asked for; it goes alone."""
    found = [call for call in asked if isinstance(call, ReadBatches)]
    if found and len(asked) > 1:
        raise Invalid("a stream is asked for alone", field="body")
    return found[0] if found else None


async def _admitted(service: Service, caller: Caller, call: ReadBatches) -> ReadBatches:
    while True:
        try:
            service.admission.admit(caller, call)
        except NotKnown as unknown:
            await service.admission.learn(caller, unknown.shard)
        else:
            return call


async def _parts(service: Service, call: ReadBatches) -> AsyncIterator[Buffer]:
    try:
        async for buffers in stream_of(service.engine, call):
            for buffer in buffers:
                yield buffer
    except MillraceError as error:
        last = Sheet()
        last.failed(1, error)
        yield b"".join(last.take())
