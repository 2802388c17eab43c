"""Every command and answer survives encoding and decoding, and none is missing from the tables."""

from __future__ import annotations

from typing import get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import errors
from millrace.core.commands import Command, Publish
from millrace.core.decide import Answer
from millrace.core.format.block import Block
from millrace.core.format.receipt import Proved
from millrace.core.model import NewMessage, Row, ShardId
from millrace.errors import MillraceError
from millrace.rpc import answers, commands
from millrace.rpc.calls import CALLS, Call, Submit
from millrace.rpc.codec import FrameWriter, read_calls, read_items
from millrace.rpc.error_codec import ERROR
from millrace.rpc.frames import (
    NO_BLOBS,
    BlobReader,
    BlobWriter,
    FrameReader,
)
from millrace.rpc.row_codecs import RowListCodec
from tests.rpc.samples import ANSWERS, COMMANDS


def sent(call: Call) -> object:
    sheet = FrameWriter()
    sheet.call(3, call)
    [frame] = FrameReader().feed(b"".join(sheet.take()))
    [(id_, found)] = read_calls(frame)
    assert id_ == 3
    return found


def comparable(value: object) -> object:
    """Return a value to compare: blocks by their rows, and numbers with their proofs."""
    if isinstance(value, Publish):
        rows = value.rows
        if not isinstance(rows, Block):
            rows = Block.of_messages(rows)
        found = [(row.body, row.key, row.headers) for row in rows.rows(0, rows.count, 1, 0)]
        return found, value.numbered, value.aside, value.ids, value.by_body, value.lives
    if isinstance(value, Block):
        return [comparable(row) for row in value.rows(0, value.count, 1, 0)]
    if isinstance(value, Proved):
        return int(value), value.proof
    fields = getattr(value, "__struct_fields__", None)
    if fields is not None:
        return type(value), [comparable(getattr(value, name)) for name in fields]
    if isinstance(value, tuple):
        return [comparable(one) for one in value]
    return value


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_commands_come_out_as_they_went_in(command: Command) -> None:
    found = sent(Submit(ShardId(5), 100, command))
    assert isinstance(found, Submit)
    assert (found.shard, found.wait_ms) == (5, 100)
    assert comparable(found.command) == comparable(command)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda a: type(a).__name__)
def test_answers_come_out_as_they_went_in(answer: object) -> None:
    sheet = FrameWriter()
    sheet.answer(3, answers.ANSWERS, answer)
    [frame] = FrameReader().feed(b"".join(sheet.take()))
    [item] = read_items(frame)
    assert isinstance(item, list)
    found = answers.ANSWERS.unpack(item[2], "answer", frame.blobs)
    assert comparable(found) == comparable(answer)
    assert type(found) is type(answer)


def kinds(union: object) -> set[object]:
    found: set[object] = set()
    for one in get_args(union):
        origin = get_origin(one)
        found |= {tuple} if origin is tuple else kinds(one) if origin else {one}
    return found


def test_every_command_is_sent_or_known_to_stay_inside() -> None:
    wanted = kinds(Command)
    assert commands.COMMANDS.kinds() | commands.INTERNAL_COMMANDS == wanted
    assert not commands.COMMANDS.kinds() & commands.INTERNAL_COMMANDS
    assert {type(command) for command in COMMANDS} == commands.COMMANDS.kinds()


def test_every_answer_is_sent_or_known_to_stay_inside() -> None:
    wanted = kinds(Answer)
    assert answers.ANSWERS.kinds() | answers.INTERNAL_ANSWERS == wanted
    assert {type(answer) for answer in ANSWERS} == answers.ANSWERS.kinds()


def test_every_call_has_its_number() -> None:
    assert set(CALLS) == kinds(Call)


def all_errors(kind: type[MillraceError] = MillraceError) -> set[type[MillraceError]]:
    """Return all error classes of ours, without those that tests define."""
    found = {kind} if kind.__module__ == errors.__name__ else set()
    return found.union(*(all_errors(one) for one in kind.__subclasses__()))


@pytest.mark.parametrize(
    "kind",
    sorted(all_errors() - {MillraceError}, key=repr),
)
def test_every_error_comes_out_as_it_went_in(kind: type[MillraceError]) -> None:
    error: MillraceError
    if kind is errors.OutOfOrder:
        error = errors.OutOfOrder("out", expected=7)
    elif kind is errors.InUse:
        error = errors.InUse("used", pid=9)
    else:
        error = kind("what", field="f", limit=3)
    if isinstance(error, errors.Retry):
        error.after_ms = 123 if not isinstance(error, errors.InUse) else error.after_ms
    found = ERROR.unpack(ERROR.pack(error, BlobWriter()), "error", NO_BLOBS)
    assert found == error
    assert vars(found) == vars(error)


def test_an_error_of_a_newer_version_says_what_to_do() -> None:
    for way, kind in (("r", errors.Refused), ("t", errors.Retry), ("f", errors.Fatal)):
        found = ERROR.unpack([way, "newer", "what", None, None, 5], "error", NO_BLOBS)
        assert type(found) is kind


HEADERS = st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=9)), max_size=3).map(tuple)
ROWS = st.lists(
    st.builds(
        Row,
        st.integers(1, 2**48),
        st.integers(0, 2**48),
        st.none() | st.binary(max_size=600),
        st.none() | st.binary(min_size=1, max_size=40),
        HEADERS,
    ),
    max_size=80,
)


@given(ROWS)
def test_rows_come_out_as_they_went_in(rows: list[Row]) -> None:
    blobs = BlobWriter()
    packed = RowListCodec().pack(rows, blobs)
    data = memoryview(b"".join(blobs.buffers))
    assert len(data) == blobs.size
    listed = [list(map(_listed, one)) if isinstance(one, list) else one for one in packed]
    assert RowListCodec().unpack(listed, "rows", BlobReader(data)) == rows


def _listed(value: object) -> object:
    return [list(pair) for pair in value] if isinstance(value, tuple) else value


@given(
    st.lists(
        st.builds(
            NewMessage,
            st.binary(max_size=40),
            st.none() | st.just(b"k"),
            st.sampled_from([(), (("a", b"1"),), (("a", b"2"),), (("a", b"1"), ("a", b"2"))]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_messages_with_the_headers_of_the_one_before(messages: list[NewMessage]) -> None:
    sheet = FrameWriter()
    sheet.call(1, Submit(ShardId(1), 0, Publish(tuple(messages))))
    [frame] = FrameReader().feed(b"".join(sheet.take()))
    [(_, call)] = read_calls(frame)
    assert isinstance(call, Submit)
    assert comparable(call.command) == comparable(Publish(tuple(messages)))


@given(st.lists(st.builds(NewMessage, st.binary(max_size=40_000), st.none(), HEADERS), max_size=40))
def test_a_burst_is_cut_into_frames_and_is_whole(messages: list[NewMessage]) -> None:
    sheet = FrameWriter()
    for at, message in enumerate(messages, 1):
        sheet.call(at, Submit(ShardId(1), 0, Publish((message,))))
    splitter = FrameReader()
    found = [one for frame in splitter.feed(b"".join(sheet.take())) for one in read_calls(frame)]
    assert [id_ for id_, _ in found] == [*range(1, len(messages) + 1)]
    for (_, call), message in zip(found, messages, strict=True):
        assert isinstance(call, Submit)
        assert comparable(call.command) == comparable(Publish((message,)))
    assert splitter.is_between
