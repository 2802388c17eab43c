"""Whatever a program passes, it is taken or refused: no other error ever comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.client.message import Message, make_block
from millrace.client.settings import QueueSettings, make_spec
from millrace.core import check
from millrace.errors import Refused


class Untold:
    """Something that cannot be written out, nor asked whether it is true."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError


LEAVES = st.one_of(
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
        call()
    except Refused as error:
        message = str(error)
    assert 0 < len(message) < 500


@given(ANYTHING, ANYTHING, ANYTHING)
def test_messages(body: Any, key: Any, headers: Any) -> None:
    judged(lambda: check.message(body, key, headers))
    judged(lambda: make_block([Message(body, key, headers)]))
    judged(lambda: make_block([b"", Message(body, key, headers)]))


@given(ANYTHING)
def test_rows(rows: Any) -> None:
    judged(lambda: make_block(rows))
    judged(lambda: make_block([rows]))


@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_numbers(producer: Any, number: Any, mode: Any, after: Any) -> None:
    judged(lambda: check.numbered(producer, number, mode, after))
    judged(lambda: check.numbered("p", number, mode, after))
    judged(lambda: check.numbered("p", 5, "range", after))


@given(ANYTHING)
def test_small_things(value: Any) -> None:
    judged(lambda: check.name(value, "name"))
    judged(lambda: check.names(value, "names"))
    judged(lambda: check.count(value, "count", 10))
    judged(lambda: check.seq(value, "seq"))
    judged(lambda: check.millis(value, "seconds", 1000))
    judged(lambda: check.flag(value, "retain"))
    judged(lambda: check.retention(value))
    for name in QueueSettings.__annotations__:
        judged(lambda name=name: make_spec("default", {name: value}))  # type: ignore[misc]


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
