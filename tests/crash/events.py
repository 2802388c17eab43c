"""What the program under test tells the ledger: each attempt before it is made, each answer after.

Rule 1: an event is one frame, written to the pipe by one system call. What the call has returned
from is known outside, whatever becomes of the process.
Rule 2: a frame that was cut off by the end of the process was not said.
Rule 3: a message is known by its tag, a number that is used once; its body follows from the tag.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from typing import Literal

import msgspec

TAG_HEADER = "tag"
"""The header that names the tag of a message on a keyed queue: a delete has no body."""

_LENGTH = struct.Struct("<I")

LIFE_SHIFT = 32
"""A tag is the number of the process's life, and a number within it."""


class Event(msgspec.Struct, array_like=True, tag=True):
    """Something that was said."""


class Attempt(Event):
    """Something that will be tried; `op` is used once per life."""

    op: int


class Send(Attempt):
    """Publish these; with a producer, a repeat has the same producer and number."""

    queue: str
    tags: list[int]
    keys: list[int] = []
    """Beside the tags, on a keyed queue."""
    deletes: list[int] = []
    """Tags of those without a body."""
    producer: str = ""
    number: int = 0


class Stage(Attempt):
    """Write rows that nobody sees."""

    queue: str
    stage: str
    tags: list[int]


class SendStage(Attempt):
    """Make the rows of a stage visible."""

    queue: str
    stage: str
    producer: str
    number: int


class DropStage(Attempt):
    """Forget a stage."""

    queue: str
    stage: str


class Take(Attempt):
    """Lease messages at a time, for a time."""

    queue: str
    at_ms: int
    lease_ms: int


class End(Attempt):
    """Settle, or give back, these messages: seqs, each with the lease call that it came by."""

    queue: str
    calls: list[tuple[int, int]]
    is_settle: bool


class Transact(Attempt):
    """Settle, publish and move a cursor at once; its parts follow as attempts of the same op."""


class Read(Attempt):
    """Ask a cursor for its next snapshot."""

    queue: str


class Commit(Attempt):
    """Move a cursor."""

    queue: str
    seq: int


class Purge(Attempt):
    """End all that is there."""

    queue: str


class Extend(Attempt):
    """Hold these messages longer, from a time on, for a time."""

    queue: str
    calls: list[tuple[int, int]]
    at_ms: int
    lease_ms: int


class Make(Attempt):
    """Make a queue that will not last."""

    queue: str


class Fill(Attempt):
    """Publish so many rows to a queue that will not last."""

    queue: str
    rows: int


class Drop(Attempt):
    """Delete a queue."""

    queue: str


class Tell(Attempt):
    """Publish these to the topic."""

    tags: list[int]


class Give(Attempt):
    """Publish these to the fragile queue."""

    tags: list[int]


class Ask(Attempt):
    """Lease messages of the fragile queue."""


class Lose(Attempt):
    """Settle, discard, or give back as failed, these messages of the fragile queue."""

    tags: list[int]
    how: Literal["settle", "discard", "fail"]


class Wind(Attempt):
    """Publish so many rows to the reel."""

    rows: int


class Pull(Attempt):
    """Lease up to so many messages of the reel."""

    count: int


class GoBack(Attempt):
    """Send the worker of the reel to this seq."""

    start: int


class Pour(Attempt):
    """Publish these to a pool."""

    pool: str
    tags: list[int]


class Draw(Attempt):
    """Lease messages of a pool at a time, for a time; 0: as long as a session lasts."""

    pool: str
    at_ms: int
    lease_ms: int


class Spill(Attempt):
    """Settle, or give back, these messages of a pool."""

    pool: str
    tags: list[int]
    is_settle: bool


class Answer(Event):
    """What became of an attempt; without one, that is UNKNOWN."""

    op: int


class Done(Answer):
    """It was done."""


class Refused(Answer):
    """It was not done, and never will be."""

    code: str
    text: str


class Sent(Answer):
    """The first seq; 0 where it is a repeat from too long ago."""

    first: int
    count: int


class Staged(Answer):
    """Rows of the stage so far."""

    rows: int


class Took(Answer):
    """What was leased, by which call: seq, tag, deliveries; with the receipts."""

    version: int
    at_ms: int
    rows: list[tuple[int, int, int]]
    receipts: list[str]
    early: list[tuple[int, int]] = []
    """Seqs that were not due yet, by the engine's own clock, and by how many milliseconds."""


class Ended(Answer):
    """The seqs that were refused, and why."""

    at_ms: int
    refused: dict[int, str]


class Showed(Answer):
    """What a cursor showed: seqs and tags. With a boundary of 0 there was nothing."""

    after: int
    boundary: int
    rows: list[tuple[int, int]]


class Got(Answer):
    """What was leased of the fragile queue."""

    tags: list[int]


class Lost(Answer):
    """The tags that were refused."""

    refused: list[int]


class Drawn(Answer):
    """What was leased of a pool, and what is locked with it: tag and lock of each."""

    at_ms: int
    rows: list[tuple[int, str]]
    late: list[int] = []
    """Tags whose time was over, by the engine's own clock."""


class Look(Event):
    """A whole queue as it is while nothing else happens."""

    queue: str
    counters: dict[str, int]
    rows: list[tuple[int, int]]
    """Seqs and tags of what workers and new readers may see."""
    cursor: int
    """The place of the queue's cursor, -1 where it has none."""
    producers: dict[str, int]
    stages: dict[str, int]


class Pulled(Answer):
    """The seqs that were leased from the reel, in the order of handing out."""

    seqs: list[int]


class WentBack(Answer):
    """The seq from which the reel is worked again."""

    first: int


class Others(Event):
    """The queues that do not last, and how much was published to each; nothing else happens."""

    published: dict[str, int]


class LookLetters(Event):
    """The fragile queue and its dead letters; nothing happens, but that letters are moved."""

    rows: list[int]
    letters: list[int]
    counters: dict[str, int]
    """Of the fragile queue."""
    arrived: int
    """What was ever published to the queue of dead letters."""


class LookPool(Event):
    """A whole pool while nothing happens, but that messages expire."""

    pool: str
    rows: list[int]
    counters: dict[str, int]


class LookTopic(Event):
    """The tags of the topic's two queues, in the order of their seqs."""

    everything: list[int]
    some: list[int]


class Serving(Event):
    """Every queue was looked at; work begins."""


class Closed(Event):
    """The engine was closed; the process ends by itself."""


AnyAttempt = (
    Send
    | Stage
    | SendStage
    | DropStage
    | Take
    | End
    | Extend
    | Transact
    | Read
    | Commit
    | Purge
    | Make
    | Fill
    | Drop
    | Give
    | Ask
    | Lose
    | Tell
    | Wind
    | Pull
    | GoBack
    | Pour
    | Draw
    | Spill
)
AnyAnswer = (
    Done | Refused | Sent | Staged | Took | Ended | Showed | Got | Lost | Pulled | WentBack | Drawn
)
AnyLook = Look | Others | LookLetters | LookPool | LookTopic
AnyEvent = AnyAttempt | AnyAnswer | AnyLook | Serving | Closed


class Duty(msgspec.Struct, array_like=True):
    """What the next life must do about what the last one left unknown."""

    life: int
    seed: int
    sends: list[Send]
    """Numbered publishes without an answer: to be sent again."""
    stages: list[SendStage]
    transactions: list[tuple[list[tuple[str, int, int]], Send]]
    """Numbered transactions without an answer: receipt, seq and version of what was settled, and
    what was sent."""
    receipts: list[tuple[str, str, int, int, bool]]
    """Queue, receipt, seq, version of what is leased; whether settling it was tried."""
    numbers: dict[str, int]
    """`queue/producer` → the last number that was tried."""
    operations: int = 0
    """So many attempts, and the process closes the engine; 0: until it is killed."""
    is_last: bool = False
    """Drain every queue, and close."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent)
_duties = msgspec.msgpack.Decoder(Duty)


def frame(value: Event | Duty) -> bytes:
    """The value with its length before it."""
    data = _encoder.encode(value)
    return _LENGTH.pack(len(data)) + data


def say(descriptor: int, event: Event) -> None:
    """Tell the ledger; when this returns, it knows."""
    data = frame(event)
    while data:
        data = data[os.write(descriptor, data) :]


def events_in(data: bytes) -> Iterator[AnyEvent]:
    """The events of whole frames, in order."""
    for piece in _frames(data):
        yield _decoder.decode(piece)


def whole_bytes(data: bytes) -> int:
    """How much of the data is whole frames."""
    return sum(_LENGTH.size + len(piece) for piece in _frames(data))


def duty_in(data: bytes) -> Duty:
    """The one duty in the data."""
    [piece] = _frames(data)
    return _duties.decode(piece)


def _frames(data: bytes) -> Iterator[memoryview]:
    view, place = memoryview(data), 0
    while place + _LENGTH.size <= len(view):
        (length,) = _LENGTH.unpack_from(view, place)
        end = place + _LENGTH.size + length
        if end > len(view):
            return
        yield view[place + _LENGTH.size : end]
        place = end


def turn_of(tag: int) -> tuple[int, int]:
    """Priority, and delay in milliseconds, of a message that has any."""
    digest = hashlib.blake2b(b"%d turns" % tag, digest_size=2).digest()
    return digest[0] % 10, (0, 0, 20, 100, 800)[digest[1] % 5]


def body_of(tag: int) -> bytes:
    """The only body that a message with this tag may have."""
    name = b"%d:" % tag
    digest = hashlib.blake2b(name, digest_size=32).digest()
    # Most are small; one in 128 is larger than a sector.
    times = 200 + digest[1] if digest[0] < 2 else digest[1] % 16
    return name + digest * times


def tag_of(body: bytes | None, headers: tuple[tuple[str, bytes], ...]) -> int:
    """The tag of a message; 0 where it has none, or another body than it must have."""
    named = [int(value) for name, value in headers if name == TAG_HEADER]
    if body is None:
        return named[0] if named else 0
    digits = body.partition(b":")[0]
    tag = int(digits) if digits.isdigit() else 0
    is_whole = body == body_of(tag) and named in ([], [tag])
    return tag if is_whole else 0
