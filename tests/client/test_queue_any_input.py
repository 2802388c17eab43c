"""Any input is accepted or refused with an error of Millrace; no other error ever escapes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.client.message import Message, make_block, make_rows
from millrace.client.settings import QueueSettings, make_spec
from millrace.core import validate
from millrace.core.format.block import Block
from millrace.errors import Refused
from tests.client.harness import opened, run


class Untold:
    """An object whose `repr` and truth value raise errors."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError


class Text(str):
    """Text whose methods return something else."""

    def __str__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = str.__hash__


class Whole(int):
    """A whole number that raises errors when compared."""

    def __lt__(self, other: int) -> bool:
        raise RuntimeError

    def __int__(self) -> int:
        raise RuntimeError


class Data(bytes):
    """Bytes whose methods return other bytes."""

    def __bytes__(self) -> bytes:
        raise RuntimeError


class Word(enum.StrEnum):
    RISING = "rising"
    RANGE = "range"
    LOG = "log"
    EMPTY = ""


class Number(enum.IntEnum):
    NONE = 0
    FIVE = 5


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


TEXTS = ["p", "dense", "rising", "range", "work", "log", ""]
KIN: st.SearchStrategy[object] = st.one_of(
    st.sampled_from(TEXTS).map(Text),
    st.sampled_from(TEXTS).map(np.str_),
    st.sampled_from(Word),
    st.integers(-1, 9).map(Whole),
    st.sampled_from(Number),
    st.binary().map(Data),
    st.binary().map(np.bytes_),
    st.floats().map(np.float64),
)
"""Values that pass for text, numbers and bytes, and are none of ours."""

LEAVES = st.one_of(
    KIN,
    st.builds(released),
    st.none(),
    st.booleans(),
    st.integers(),
    # Python refuses to write these out.
    st.integers(4301, 5000).map(lambda digits: 10**digits),
    st.integers(4301, 5000).map(lambda digits: -(10**digits)),
    st.floats(),
    st.text(),
    st.characters(categories=["Cs"]),
    st.binary(),
    st.binary().map(bytearray),
    st.binary().map(lambda data: memoryview(data)),
    st.just(object()),
    st.sampled_from(["x" * 10_000, b"x" * 10_000]),
    st.builds(lambda: np.arange(3)),
    st.builds(Untold),
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
    ),
    max_leaves=6,
)


def judged(call: Callable[[], object]) -> None:
    message = "taken"
    try:
        taken = call()
    except Refused as error:
        message = str(error)
    else:
        assert_plain(taken)
    assert 0 < len(message) < 500


def assert_plain(value: object) -> None:
    """Check that values of a batch can be encoded, without running code of the program."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.astuple(value)
    if isinstance(value, tuple):
        for item in value:
            assert_plain(item)
    elif not isinstance(value, Block):
        assert value is None or type(value) in (bool, int, str, bytes)


@given(ANYTHING, ANYTHING, ANYTHING)
def test_messages(body: Any, key: Any, headers: Any) -> None:
    judged(lambda: validate.message(body, key, headers))
    judged(lambda: make_block([Message(body, key, headers)]))
    judged(lambda: make_block([b"", Message(body, key, headers)]))
    judged(lambda: make_rows([Message(b"", None, (), body, key)], headers, body))
    judged(lambda: make_rows([b"x"], body, key))


@given(ANYTHING)
def test_rows(rows: Any) -> None:
    judged(lambda: make_block(rows))
    judged(lambda: make_block([rows]))


@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_numbers(producer: Any, number: Any, mode: Any, after: Any) -> None:
    judged(lambda: validate.numbered(producer, number, mode, after))
    judged(lambda: validate.numbered("p", number, mode, after))
    judged(lambda: validate.numbered("p", 5, "range", after))


@given(ANYTHING)
def test_small_things(value: Any) -> None:
    judged(lambda: validate.name(value, "name"))
    judged(lambda: validate.names(value, "names"))
    judged(lambda: validate.count(value, "count", 10))
    judged(lambda: validate.seq(value, "seq"))
    judged(lambda: validate.millis(value, "seconds", 1000))
    judged(lambda: validate.flag(value, "retain"))
    judged(lambda: validate.retention(value))
    judged(lambda: validate.priority(value))
    for name in QueueSettings.__annotations__:
        judged(lambda name=name: make_spec("default", {name: value}))  # type: ignore[misc]


@settings(deadline=None, max_examples=20)
@given(KIN, KIN, KIN)
def test_an_engine_survives_all_of_it(name: Any, number: Any, body: Any) -> None:
    """Accepted input can be decided and written: the engine never fails because of it."""

    async def main(path: Path) -> None:
        async with opened(path) as m:
            queue = await m.queue("orders")
            for call in (
                lambda: m.queue(name, space=name, dead_letter=name, retention=name),
                lambda: queue.stage(name, [body]),
                lambda: queue.publish_staged([name], producer=name, number=number),
                lambda: queue.publish(body, key=name, headers={name: body}),
                lambda: queue.publish_many(
                    [body, Message(body, name)], producer=name, number=number, mode=name
                ),
                lambda: queue.publish(body, producer="p", number=number, mode=name),
                lambda: queue.publish(body, priority=number, delay=number),
                lambda: queue.publish_many([Message(body, priority=number, delay=number)]),
                lambda: queue.cursor(name, start=number),
                lambda: queue.lease(number, seconds=number),
                lambda: queue.get(number),
                lambda: queue.configure(max_failures=number, keep_deletes=number),
                lambda: queue.settle([name]),
            ):
                with suppress(Refused):
                    await call()
            assert await queue.publish(b"still here") is not None

    with TemporaryDirectory() as folder:
        run(main(Path(folder)))


@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(["value", "key", "headers", "other"]),
        st.lists(ANYTHING, min_size=2, max_size=2),
        max_size=3,
    ),
    st.integers(0, 2),
)
def test_arrow(columns: Any, skipped: int) -> None:
    try:
        batch = pa.RecordBatch.from_pydict(columns)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return
    judged(lambda: make_block(batch.slice(skipped)))
    judged(lambda: make_block(pa.Table.from_batches([batch])))
