"""Hostile input is refused unless the API could have produced it; no other error is raised."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from itertools import chain
from random import Random
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace import limits
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    CommitCursor,
    CreateQueue,
    Delete,
    Explain,
    Extend,
    LeaseMessages,
    OpenCursor,
    Pin,
    ProducerNumber,
    Publish,
    PublishStaged,
    Release,
    Rewind,
    RowSchedule,
    RowTtl,
    Settle,
    SpecPart,
    Stage,
)
from millrace.core.format.block import HEADER, Block
from millrace.core.format.receipt import Proved
from millrace.core.model import (
    CursorPosition,
    LeaseId,
    NewMessage,
    Seq,
    ShardId,
)
from millrace.core.session_commands import OpenSession
from millrace.core.topic_commands import CreateTopic, Subscribe
from millrace.errors import Fatal, Invalid, Refused, TooLarge
from millrace.rpc.calls import Peek, ReadRows, Submit
from millrace.rpc.codec import FrameWriter, read_answers, read_calls
from millrace.rpc.error_codec import ERROR
from millrace.rpc.frames import (
    NO_BLOBS,
    BlobReader,
    BlobWriter,
    Frame,
    FrameReader,
    encode_frame,
)
from tests.rpc.samples import (
    COMMANDS,
    ONE,
    PROVED,
    SHARD,
    H,
)

HOSTILE: list[Command] = [
    Publish(()),
    Publish((NewMessage(None),)),
    Publish((NewMessage(b"x", b""),)),
    Publish((NewMessage(b"x", b"k" * 401),)),
    Publish((NewMessage(b"x", None, (("n", b"v"),) * 65),)),
    Publish((NewMessage(b"x", None, (("n", b"v" * limits.HEADER_BYTES_MAX),)),)),
    Publish((NewMessage(b"x"),), ProducerNumber("a b", 1)),
    Publish((NewMessage(b"x"),), ProducerNumber("a", 0)),
    Publish((NewMessage(b"x"),), ProducerNumber("a", -5)),
    Publish((NewMessage(b"x"),), ProducerNumber("a", 3, "range", 3)),
    Publish((NewMessage(b"x"),), ProducerNumber("a", 3, "dense", 1)),
    Publish((NewMessage(b"x"),), None, (RowSchedule(0, 2),)),
    Publish((NewMessage(b"x"),), None, (RowSchedule(0, 1), RowSchedule(0, 1))),
    Publish((NewMessage(b"x"),), None, (RowSchedule(0, 1, 10),)),
    Publish((NewMessage(b"x"),), None, (RowSchedule(0, 1, 4, -1),)),
    Publish((NewMessage(b"x"),), None, (), ("a", "b")),
    Publish((NewMessage(b"x"),), None, (), ("x" * 401,)),
    Publish((NewMessage(b"x"),), None, (), (), True, (RowTtl(0, 1, 0),)),
    Publish(Block.of_bodies([])),
    Publish(Block.of_messages([NewMessage(None, None), NewMessage(b"", b"k")])),
    Publish(Block.of_messages([NewMessage(b"x", b"k" * 500)])),
    LeaseMessages(0, 1),
    LeaseMessages(-1, 1),
    LeaseMessages(limits.LEASE_MESSAGES_MAX + 1, 1),
    LeaseMessages(1, 0),
    LeaseMessages(1, limits.LEASE_MS_MAX + 1),
    LeaseMessages(1, 1, "x" * 401),
    Settle(PROVED, BitMap64(), H),
    Settle(PROVED, BitMap64(range(1, 10_003)), H),
    Settle(PROVED, ONE, b"short"),
    Settle(LeaseId(Proved.of(0, b"", b"p" * 12)), ONE, H),
    Settle(LeaseId(Proved.of(7, b"", b"p" * 11)), ONE, H),
    Release(PROVED, ONE, H, False, -1),
    Release(PROVED, ONE, H, False, limits.DELAY_MS_MAX + 1),
    Extend(PROVED, ONE, H, -1),
    Delete(BitMap64()),
    Explain(Seq(0)),
    Explain(Seq(-1)),
    Rewind(-1),
    OpenCursor("", 1, True),
    OpenCursor("../x", 1, True),
    OpenCursor("x" * 81, 1, True),
    CommitCursor("c", -1, CursorPosition(H, 1, 1, 1)),
    CommitCursor("c", 1, CursorPosition(H, 1, 1, 1), b"x" * 25),
    OpenCursor("c", CursorPosition(b"h" * 17, 1, 1, 1), True),
    CommitCursor("c", 1, CursorPosition(b"h" * 17, 1, 1, 1)),
    Pin(0),
    Pin(limits.PIN_MS_MAX + 1),
    Stage("a/b", Block.of_bodies([b"x"])),
    PublishStaged(()),
    PublishStaged(("a\0b",)),
    Subscribe("s", "default", "q", "no json"),
    Subscribe("s", "default", "q", "[" * 5000),
    Subscribe("s", "default", "q", '{"a": {"unknown": 1}}'),
    OpenSession(-1, True, 0, 1),
    OpenSession(limits.SESSION_CREDIT_MAX + 1, True, 0, 1),
    CreateQueue("default", "a b", SpecPart()),
    CreateQueue("", "a", SpecPart()),
    CreateQueue("default", "a", SpecPart(), 0),
    CreateQueue("default", "a", SpecPart(), limits.SHARDS_MAX + 1),
    CreateQueue("default", "a", SpecPart(max_failures=-1)),
    CreateQueue("default", "a", SpecPart(dead_letter="only-a-name")),
    CreateQueue("default", "a", SpecPart(dead_letter="a/b/c")),
    CreateQueue("default", "a", SpecPart(order="any")),  # type: ignore[arg-type]
    CreateQueue("default", "a", SpecPart(), beside="only-a-name"),
    CreateQueue("default", "a", SpecPart(), beside="a/b/c"),
    CreateTopic("default", "t", 0),
    ApplyTransaction(()),
    ApplyTransaction(((ShardId(-1), Publish((NewMessage(b"x"),))),)),
    ApplyTransaction(((SHARD, LeaseMessages(1, 1)),)),  # type: ignore[arg-type]
    ApplyTransaction(((SHARD, Pin(1)),) * (limits.TRANSACTION_PARTS_MAX + 1)),
]


def frame_of(command: Command) -> Frame:
    sheet = FrameWriter()
    sheet.call(3, Submit(SHARD, 0, command))
    [got] = FrameReader().feed(b"".join(sheet.take()))
    return got


def parts_of(*commands: Command) -> tuple[bytes, memoryview]:
    """Return head and blobs of a frame with some commands."""
    sheet = FrameWriter()
    for id, command in enumerate(commands, 1):
        sheet.call(id, Submit(SHARD, 0, command))
    data = b"".join(sheet.take())
    head, blobs = struct.unpack_from("<II", data)
    return data[8 : 8 + head], memoryview(data)[len(data) - blobs :]


@pytest.mark.parametrize("command", HOSTILE, ids=lambda c: type(c).__name__)
def test_what_the_api_could_not_make_is_refused(command: Command) -> None:
    try:
        got = frame_of(command)
    except Invalid:
        # It is not even sent.
        return
    [(_, found)] = read_calls(got)
    assert isinstance(found, Invalid | TooLarge)
    assert found.field


@pytest.mark.parametrize(
    "call",
    [
        Submit(ShardId(-1), 0, Pin(1)),
        Submit(SHARD, -1, Pin(1)),
        Submit(SHARD, limits.LEASE_WAIT_MS_MAX + 1, Pin(1)),
        ReadRows(SHARD, ONE, 0),
        ReadRows(SHARD, ONE, limits.LEASE_BYTES_MAX + 1),
        Peek(SHARD, -1, None, 1),
        Peek(SHARD, 0, None, limits.PEEK_MESSAGES_MAX + 1),
    ],
    ids=str,
)
def test_other_calls_are_refused_as_well(call: Submit | ReadRows | Peek) -> None:
    sheet = FrameWriter()
    sheet.call(3, call)
    [got] = FrameReader().feed(b"".join(sheet.take()))
    [(_, found)] = read_calls(got)
    assert isinstance(found, Invalid | TooLarge)


ODD: tuple[object, ...] = (
    *(-1, 0, 2**63, 2**64 - 1, True, None, 1.5),
    *("", "a/b", "x" * 100, b"", b"x" * 7, [], [[]], {}),
)


def spoiled(value: object) -> Iterator[object]:
    """Yield the value with each of its parts replaced by something odd, left out, or doubled."""
    yield from ODD
    if isinstance(value, list):
        for at, one in enumerate(value):
            yield value[:at] + value[at + 1 :]
            yield [*value[:at], one, *value[at:]]
            for other in spoiled(one):
                yield [*value[:at], other, *value[at + 1 :]]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_every_spoiled_field_is_refused_or_harmless(command: Command) -> None:
    head, blobs = parts_of(command)
    [item] = msgspec.msgpack.decode(head)
    for fields in spoiled(item[2]):
        head = msgspec.msgpack.encode([[3, 1, fields]])
        [(_, found)] = read_calls(Frame(head, BlobReader(blobs)))
        if isinstance(found, Refused):
            assert isinstance(found, Invalid | TooLarge)
            continue
        # An accepted value is complete: it can be sent on.
        assert isinstance(found, Submit)
        frame_of(found.command)


def blocks() -> Iterator[bytes]:
    """Yield blocks with false headers and offsets."""
    good = b"".join(
        Block.of_messages(
            [
                NewMessage(b"abc", b"k1", (("n", b"v"),)),
                NewMessage(None, b"k2"),
                NewMessage(b"", b"k3"),
            ]
        ).encode()
    )
    for at in range(0, HEADER.size, 2):
        for value in (0, 1, 0x7FFF, 0xFFFF):
            yield good[:at] + struct.pack("<H", value) + good[at + 2 :]
    for at in range(HEADER.size, len(good) - 4, 4):
        for value in (-1, 1, 7, 2**31 - 1):
            yield good[:at] + struct.pack("<i", value) + good[at + 4 :]
    for size in range(len(good)):
        yield good[:size]
    yield good + bytes(8)


def test_blocks_that_lie_are_refused_or_whole() -> None:
    refused = 0
    for data in blocks():
        blobs = BlobWriter()
        place = blobs.add([data], len(data))
        head = msgspec.msgpack.encode([[3, 1, [5, 0, [1, [place, False]]]]])
        [got] = FrameReader().feed(b"".join(encode_frame(head, blobs)))
        [(_, found)] = read_calls(got)
        if isinstance(found, Refused):
            refused += 1
            continue
        assert isinstance(found, Submit)
        assert isinstance(found.command, Publish)
        rows = found.command.rows
        assert isinstance(rows, Block)
        # Every reader of it stays within its bytes.
        assert len(rows.rows(0, rows.count, 1, 0)) == rows.count
        rows.arrow(1, 1, 0).validate(full=True)
    assert refused > 200


def test_a_compressed_block_is_refused_before_it_is_unpacked() -> None:
    data = b"".join(Block.of_bodies([b"x" * 1_000_000]).squeezed("zstd").encode())
    blobs = BlobWriter()
    place = blobs.add([data], len(data))
    head = msgspec.msgpack.encode([[3, 1, [5, 0, [1, [place, False]]]]])
    [got] = FrameReader().feed(b"".join(encode_frame(head, blobs)))
    [(_, found)] = read_calls(got)
    assert isinstance(found, Invalid)
    assert "compressed" in found.message


def test_lengths_are_judged_before_anything_is_kept() -> None:
    for lengths in ((limits.WIRE_HEAD_BYTES_MAX + 1, 0), (0, limits.WIRE_BLOB_BYTES_MAX + 1)):
        with pytest.raises(TooLarge):
            FrameReader().feed(struct.pack("<II", *lengths))


def read_all(data: bytes) -> None:
    try:
        for got in FrameReader().feed(data):
            read_calls(got)
    except (Invalid, TooLarge):
        return


@given(st.binary(max_size=300))
def test_noise_is_refused(data: bytes) -> None:
    read_all(data)
    read_all(b"".join(encode_frame(data)))


@given(st.sampled_from(COMMANDS), st.data())
def test_changed_bytes_are_refused_or_harmless(command: Command, data: st.DataObject) -> None:
    sheet = FrameWriter()
    sheet.call(3, Submit(SHARD, 0, command))
    whole = bytearray(b"".join(sheet.take()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(whole), 600) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    read_all(bytes(whole))


@given(st.sampled_from(COMMANDS), st.lists(st.integers(1, 40), max_size=60))
def test_frames_may_come_in_any_pieces(command: Command, cuts: list[int]) -> None:
    sheet = FrameWriter()
    for at in range(3):
        sheet.call(at, Submit(SHARD, 0, command))
    whole = b"".join(sheet.take()) * 2
    splitter = FrameReader()
    found = []
    at = 0
    for cut in cuts:
        found += splitter.feed(whole[at : at + cut])
        at += cut
    found += splitter.feed(whole[at:])
    assert [len(read_calls(got)) for got in found] == [3, 3]
    assert splitter.is_between


@pytest.mark.parametrize(
    "head",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdc\xff\xff" * 1000,
        b"\x91" * limits.WIRE_HEAD_BYTES_MAX,
        b"\xdd" + struct.pack(">I", 1_000_000) + b"\x90" * 1_000_000,
        b"\x81\x80\x01",
        b"\x81\x90\x01",
        b"\xa2\xff\xfe",
        b"\xd6\xff" + bytes(4),
        b"\xc1",
    ],
    ids=lambda head: head[:6].hex(),
)
def test_bombs_are_refused_within_bounded_memory(head: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises((Invalid, TooLarge)):
            read_calls(Frame(head, NO_BLOBS))
        assert tracemalloc.get_traced_memory()[1] < 80 * max(len(head), 10_000)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "answer", [5, None, [], [1], [1, 0], ["1", 0, 0], [1, 4, 0], [1, 0, 0, 0], {3: 1, 9: 0, 1: 2}]
)
def test_what_is_no_answer_is_refused(answer: object) -> None:
    with pytest.raises(Invalid):
        read_answers(Frame(msgspec.msgpack.encode([answer]), NO_BLOBS))


@pytest.mark.parametrize("told", [["r", [], "x", None, None, 0], ["t", "full", 5, None, None, ""]])
def test_what_is_no_error_is_told_as_one(told: list[object]) -> None:
    assert isinstance(ERROR.unpack(told, "error", NO_BLOBS), Fatal)


def test_a_call_that_is_refused_keeps_no_other() -> None:
    good = msgspec.msgpack.decode(frame_of(Pin(5)).head)[0]
    head = msgspec.msgpack.encode([[1, 99, []], good, [4, 1, "x"], [5, 1, good[2]]])
    found = read_calls(Frame(head, NO_BLOBS))
    assert [type(call) for _, call in found] == [Invalid, Submit, Invalid, Submit]


def test_sec_09_a_blob_is_named_by_one_call_alone() -> None:
    rows = Block.of_bodies([b"x" * 100_000])
    head, blobs = parts_of(Publish(rows), Publish(rows))
    calls = [call for _, call in read_calls(Frame(head, BlobReader(blobs)))]
    assert all(isinstance(call, Submit) for call in calls), "each names a blob of its own"
    first, second = msgspec.msgpack.decode(head)
    aliased = [[id, 1, first[2]] for id in range(1, 201)]
    # They overlap in part, and are named out of order.
    shifted = [first, [2, 1, msgspec.msgpack.decode(msgspec.msgpack.encode(second[2]))]]
    shifted[1][2][2][1][0][0] -= 8
    for items in (aliased, shifted, [second, first]):
        taken, *others = read_calls(
            Frame(
                msgspec.msgpack.encode(items), BlobReader(parts_of(Publish(rows), Publish(rows))[1])
            )
        )
        assert isinstance(taken[1], Submit)
        for _, call in others:
            assert isinstance(call, Invalid), items[:2]
            assert call.field == "rows"


def test_calls_of_one_frame_name_their_blobs_in_their_order() -> None:
    commands: list[object] = [*COMMANDS] * 2
    Random(9).shuffle(commands)
    sheet = FrameWriter()
    for id, command in enumerate(commands, 1):
        sheet.call(id, Submit(SHARD, 0, cast("Command", command)))
    frames = FrameReader().feed(b"".join(sheet.take()))
    for call, command in zip(chain.from_iterable(map(read_calls, frames)), commands, strict=True):
        assert isinstance(call[1], Submit), call
        assert type(call[1].command) is type(command)
