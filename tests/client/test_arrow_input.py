"""Arrow tables as pandas and polars make them, and malicious ones."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace import errors, limits
from millrace.client.arrow_input import COLUMNS, check_types
from millrace.client.message import Message, make_ids, make_lives, make_rows
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.core.format.block import Block
from millrace.core.format.column import Array
from millrace.core.model import Headers
from tests.client.harness import embedded

TEXTS = ["a", "", None, "bcd", "k" * 20]
KEYS = ["k", "l", "m", "n" * 13, "o"]
PAIR = pa.struct([("name", pa.utf8()), ("value", pa.binary())])
HEADERS = [
    [{"name": "a", "value": b"1"}, {"name": "b", "value": b""}],
    None,
    [],
    [{"name": "c" * 20, "value": b"2" * 20}],
    None,
]
PAIRS: list[Headers] = [
    tuple((one["name"], one["value"]) for one in pairs or ())  # type: ignore[misc]
    for pairs in HEADERS
]


def uuid() -> Array:
    """Return an array of an extension type."""
    return pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([b"0123456789abcdef"] * 5, pa.binary(16))
    )


def run_ends() -> Array:
    return runs(pa.array([2, 5]), pa.array(["r", "s"]))


def runs(ends: Any, values: Any) -> Array:
    found: Array = pa.RunEndEncodedArray.from_arrays(ends, values)
    return found


def dictionary(kind: pa.DataType) -> Callable[[list[str | None]], Array]:
    """Return a dictionary array, as of a categorical column."""

    def make(texts: list[str | None]) -> Array:
        values = sorted({text for text in texts if text is not None})
        at = [None if text is None else values.index(text) for text in texts]
        return pa.DictionaryArray.from_arrays(pa.array(at, pa.uint32()), pa.array(values, kind))

    return make


def plainly(kind: pa.DataType) -> Callable[[list[str | None]], Array]:
    return lambda texts: pa.array(texts, kind)


LAYOUTS: dict[str, Callable[[list[str | None]], Array]] = {
    "binary": plainly(pa.binary()),
    "utf8": plainly(pa.utf8()),
    "large binary": plainly(pa.large_binary()),
    "large utf8": plainly(pa.large_utf8()),
    "binary view": plainly(pa.binary_view()),
    "string view": plainly(pa.string_view()),
    "dictionary": dictionary(pa.utf8()),
    "dictionary of large": dictionary(pa.large_utf8()),
    "dictionary of views": dictionary(pa.string_view()),
}


def rows_of(block: Block) -> list[tuple[bytes | None, bytes | None, Headers]]:
    """Return the rows of a block, decoded from its bytes."""
    again, _ = Block.decode(memoryview(b"".join(block.encode())))
    again.arrow(0, 1, 0).validate(full=True)
    return [(row.body, row.key, row.headers) for row in again.rows(0, again.count, 1, 0)]


def data(texts: list[str | None]) -> list[bytes | None]:
    return [None if text is None else text.encode() for text in texts]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_sec_01_bytes_of_every_layout(layout: Callable[[list[str | None]], Array]) -> None:
    bodies, keys = layout(TEXTS), layout([*KEYS])
    expected = [(body, key, ()) for body, key in zip(data(TEXTS), data([*KEYS]), strict=True)]
    batch = pa.record_batch({"value": bodies, "key": keys})
    assert rows_of(make_rows(batch)[0]) == expected
    for low in range(5):
        for high in range(low + 1, 6):
            assert rows_of(make_rows(batch.slice(low, high - low))[0]) == expected[low:high]
    chunked = pa.table(
        {
            "value": pa.chunked_array([bodies[:1], bodies[1:1], bodies[1:]]),
            "key": pa.chunked_array([keys[:3], keys[3:]]),
        }
    )
    assert rows_of(make_rows(chunked)[0]) == expected
    assert rows_of(make_rows(chunked.slice(1, 3))[0]) == expected[1:4]


LISTS: list[pa.DataType] = [
    pa.list_(PAIR),
    pa.large_list(PAIR),
    pa.list_view(PAIR),
    pa.large_list_view(PAIR),
    pa.large_list(pa.struct([("value", pa.large_binary()), ("name", pa.large_utf8())])),
    pa.large_list(pa.struct([("name", pa.string_view()), ("value", pa.binary_view())])),
    pa.list_(pa.struct([("name", pa.binary()), ("value", pa.utf8())])),
    pa.list_view(pa.struct([("name", pa.string_view()), ("value", pa.string_view())])),
]


@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_sec_01_headers_of_every_layout(kind: pa.DataType) -> None:
    headers = pa.array(HEADERS, kind)
    batch = pa.record_batch({"value": pa.array([b"x"] * 5), "headers": headers})
    expected = [(b"x", None, pairs) for pairs in PAIRS]
    assert rows_of(make_rows(batch)[0]) == expected
    for low in range(5):
        for high in range(low + 1, 6):
            assert rows_of(make_rows(batch.slice(low, high - low))[0]) == expected[low:high]
    table = pa.Table.from_batches([batch[:2], batch[2:], batch])
    assert rows_of(make_rows(table)[0]) == expected * 2


def test_headers_as_maps_of_one_length_and_of_no_type() -> None:
    value = pa.array([b"x", b"y", b"z"])
    pairs = [[("a", b"1"), ("b", b"2")], None, []]
    batch = pa.record_batch(
        {"value": value, "headers": pa.array(pairs, pa.map_(pa.utf8(), pa.binary()))}
    )
    expected: list[Headers] = [(("a", b"1"), ("b", b"2")), (), ()]
    assert [headers for _, _, headers in rows_of(make_rows(batch)[0])] == expected
    assert [headers for _, _, headers in rows_of(make_rows(batch[1:])[0])] == expected[1:]
    same = pa.array(
        [[{"name": "a", "value": b"1"}], None, [{"name": "b", "value": b"2"}]], pa.list_(PAIR, 1)
    )
    batch = pa.record_batch({"value": value, "headers": same, "key": pa.nulls(3)})
    expected = [(("a", b"1"),), (), (("b", b"2"),)]
    assert [headers for _, _, headers in rows_of(make_rows(batch)[0])] == expected
    batch = pa.record_batch({"value": value, "headers": pa.nulls(3), "group": pa.nulls(3)})
    assert [headers for _, _, headers in rows_of(make_rows(batch)[0])] == [(), (), ()]


def test_types_that_stand_for_others() -> None:
    batch = pa.record_batch({"value": run_ends(), "key": uuid()})
    rows = rows_of(make_rows(batch)[0])
    assert [body for body, _, _ in rows] == [b"r", b"r", b"s", b"s", b"s"]
    assert rows[0][1] == b"0123456789abcdef"


def test_a_table_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "value": ["a", "b", None],
            "key": pandas.Categorical(["x", "y", "x"]),
            "group": [None, "g", None],
            "priority": pandas.array([1, None, 9], dtype="Int64"),
        },
        index=[7, 3, 5],
    )
    block, aside = make_rows(pa.Table.from_pandas(frame, preserve_index=False))
    messages = [
        Message(b"a", "x", priority=1),
        Message(b"b", "y", group="g"),
        Message(None, "x", priority=9),
    ]
    expected, turns = make_rows(messages)
    assert (rows_of(block), aside) == (rows_of(expected), turns)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("priority", pa.int8()),
        ("priority", pa.uint64()),
        ("priority", pa.dictionary(pa.int8(), pa.int64())),
        ("delay", pa.float16()),
        ("delay", pa.float32()),
        ("delay", pa.uint64()),
        ("delay", pa.decimal128(10, 3)),
        ("ttl", pa.int64()),
        ("ttl", pa.dictionary(pa.int32(), pa.float64())),
    ],
    ids=str,
)
def test_numbers_of_every_type(column: str, kind: pa.DataType) -> None:
    given: list[Any] = [None, 5, None, 0 if column == "priority" else 2]
    inner = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    if pa.types.is_float16(inner):
        given = [None if one is None else np.float16(one) for one in given]
    array = pa.array(given, inner)
    if inner is not kind:
        array = array.dictionary_encode()
    table = pa.table({"value": [b"x"] * 4, column: pa.chunked_array([array[:1], array[1:]])})
    as_message: list[Any] = [{column: one} for one in (None, 5, None, int(given[3]))]
    messages = [Message(b"x", **one) for one in as_message]
    assert make_rows(table)[1] == make_rows(messages)[1]
    assert make_lives(table, 4, None) == make_lives(messages, 4, None)
    assert make_lives(table, 4, 9) == make_lives(messages, 4, 9)


def listed(offsets: list[int], sizes: list[int], after: int) -> Array:
    """Return a list view whose offsets are followed by another number in memory."""
    count = len(offsets)
    whole = pa.py_buffer(struct.pack(f"<{count + 1}i", *offsets, after))
    lengths = pa.py_buffer(struct.pack(f"<{count}i", *sizes))
    pairs = pa.array([{"name": name, "value": b"1"} for name in "abc"], PAIR)
    found: Array = pa.Array.from_buffers(
        pa.list_view(PAIR), count, [None, whole.slice(0, 4 * count), lengths], children=[pairs]
    )
    return found


@pytest.mark.parametrize("after", [-3, 3, 0, 2**31 - 1])
def test_sec_01_nothing_is_read_behind_the_offsets_of_a_list_view(after: int) -> None:
    headers = listed([0, 1, 2], [1, 1, 1], after)
    batch = pa.record_batch({"value": [b"x", b"y", b"z"], "headers": headers})
    assert [row[2] for row in rows_of(make_rows(batch)[0])] == [((name, b"1"),) for name in "abc"]
    # Places may overlap, and lie in any order.
    headers = listed([2, 0, 0], [1, 2, 0], after)
    batch = pa.record_batch({"value": [b"x", b"y", b"z"], "headers": headers})
    assert [[name for name, _ in row[2]] for row in rows_of(make_rows(batch)[0])] == [
        ["c"],
        ["a", "b"],
        [],
    ]


def of_no_rows(kind: pa.DataType, offset: int, children: list[Array] | None = None) -> Array:
    """Return an array without rows whose only offset is out of bounds, which Arrow accepts."""
    buffers: list[Any] = [None, pa.py_buffer(struct.pack("<q", offset))]
    if children is None:
        buffers.append(pa.py_buffer(b""))
    found: Array = pa.Array.from_buffers(kind, 0, buffers, children=children)
    found.validate(full=True)
    return found


@pytest.mark.parametrize("offset", [1, 65536, 2**31 - 1])
@pytest.mark.parametrize("is_alone", [False, True])
def test_sec_02_offsets_of_arrays_without_rows_are_not_followed(
    offset: int, *, is_alone: bool
) -> None:
    """Regression: `flatten` of the list aborted the process; two batches, the second without
    rows."""
    pair = pa.struct([("name", pa.large_utf8()), ("value", pa.binary())])
    names, values = of_no_rows(pa.large_utf8(), offset), of_no_rows(pa.binary(), offset)
    empty_pairs = pa.StructArray.from_arrays([names, values], fields=list(pair))
    kind = pa.list_(pair)
    empty = pa.record_batch(
        {
            "value": of_no_rows(pa.large_binary(), offset),
            "key": of_no_rows(pa.utf8(), offset),
            "headers": of_no_rows(kind, offset, [empty_pairs]),
        }
    )
    offsets = pa.py_buffer(struct.pack("<3i", 0, 0, 0))
    rows = pa.record_batch(
        {
            "value": pa.array([b"x", b"y"], pa.large_binary()),
            "key": pa.array(["k", "l"], pa.utf8()),
            # Both lists are empty, so that nobody has looked at the offsets of what is in them.
            "headers": pa.Array.from_buffers(kind, 2, [None, offsets], children=[empty_pairs]),
        }
    )
    table = pa.Table.from_batches([empty, rows, empty] if not is_alone else [rows])
    check_types(table.schema)
    found = rows_of(make_rows(table)[0])
    assert found == [(b"x", b"k", ()), (b"y", b"l", ())]


@embedded
async def test_sec_02_rows_of_views_find_their_shards(m: Millrace) -> None:
    for shards in (1, 3):
        queue = await m.queue(f"q{shards}", shards=shards)
        count = 50
        headers = listed([n % 3 for n in range(count)], [1] * count, -(2**20))
        keys = [f"k{n}" for n in range(count)]
        await queue.publish_many(
            pa.record_batch(
                {"value": pa.array(keys, pa.string_view()), "key": keys, "headers": headers}
            )
        )
        async with queue.snapshot() as snapshot:
            table = pa.Table.from_batches([batch async for batch in snapshot.batches()])
        table.validate(full=True)
        found = {row["key"]: row for row in table.to_pylist()}
        assert len(found) == table.num_rows == count
        for n in range(count):
            row = found[b"k%d" % n]
            assert row["value"] == b"k%d" % n
            assert row["headers"] == [{"name": "abc"[n % 3], "value": b"1"}]


# --- Refused --------------------------------------------------------------------------------------


def union() -> Array:
    kinds = pa.array([0, 0, 0], pa.int8())
    found: Array = pa.UnionArray.from_sparse(kinds, [pa.array([b"x", b"y", b"z"])])
    return found


ODD: dict[str, tuple[str, Callable[[], Array]]] = {
    "union": ("value", union),
    "numbers": ("value", lambda: pa.array([1, 2, 3])),
    "lists": ("value", lambda: pa.array([[b"x"]] * 3)),
    "no bytes at all": ("key", lambda: pa.array([b""] * 3, pa.binary(0))),
    "texts as numbers": ("ttl", lambda: pa.array(["1", "2", "3"])),
    "flags as numbers": ("delay", lambda: pa.array([True] * 3)),
    "fractions": ("priority", lambda: pa.array([1.0, 2.0, 3.0])),
    "times": ("delay", lambda: pa.array([1, 2, 3], pa.duration("s"))),
    "texts": ("headers", lambda: pa.array(["a", "b", "c"])),
    "lists of texts": ("headers", lambda: pa.array([["a"]] * 3)),
    "other pairs": ("headers", lambda: pa.array([[{"n": "a", "v": b"1"}]] * 3)),
    "three of a pair": (
        "headers",
        lambda: pa.array([[{"name": "a", "value": b"1", "more": 1}]] * 3),
    ),
    "numbers as names": ("headers", lambda: pa.array([[{"name": 1, "value": b"1"}]] * 3)),
    "dictionary of numbers": ("group", lambda: pa.array([1, 2, 3]).dictionary_encode()),
    "runs of numbers": (
        "value",
        lambda: runs(pa.array([1, 3]), pa.array([1.5, 2.5])),
    ),
}


@pytest.mark.parametrize(("column", "make"), ODD.values(), ids=ODD.keys())
def test_sec_23_an_odd_type_is_refused_by_name(column: str, make: Callable[[], Array]) -> None:
    columns: dict[str, Array] = {"value": pa.array([b"x"] * 3), column: make()}
    for rows in (pa.record_batch(columns), pa.table(columns)):
        with pytest.raises(errors.Invalid) as refused:
            make_lives(rows, 3, None) if column == "ttl" else make_rows(rows)
        assert refused.value.field == column
        assert f"column '{column}'" in str(refused.value)


def broken(kind: pa.DataType, count: int, *buffers: bytes, child: Array | None = None) -> Array:
    made = [None, *map(pa.py_buffer, buffers)]
    children = None if child is None else [child]
    found: Array = pa.Array.from_buffers(kind, count, made, children=children)
    return found


def ints(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


BROKEN: dict[str, tuple[str, Callable[[], Array]]] = {
    "falling offsets": ("value", lambda: broken(pa.binary(), 2, ints(0, 5, 2), b"abcde")),
    "offsets beyond": ("value", lambda: broken(pa.binary(), 2, ints(0, 900, 1), b"abcde")),
    "negative offsets": ("key", lambda: broken(pa.utf8(), 2, ints(0, -8, 1), b"abcde")),
    "no UTF-8": ("group", lambda: broken(pa.utf8(), 2, ints(0, 1, 2), b"\xff\xfe")),
    "lists beyond": (
        "headers",
        lambda: broken(pa.list_(PAIR), 2, ints(0, 9, 1), child=pa.array([None], PAIR)),
    ),
    "an index beyond": (
        "value",
        lambda: pa.DictionaryArray.from_arrays(pa.array([0, 9]), pa.array(["a"]), safe=False),
    ),
    "an index beyond of numbers": (
        "priority",
        lambda: pa.DictionaryArray.from_arrays(pa.array([0, 9]), pa.array([3]), safe=False),
    ),
    "views beyond": (
        "value",
        lambda: broken(pa.binary_view(), 2, struct.pack("<iiiiiiii", 99, 0, 0, 0, 0, 0, 0, 0), b""),
    ),
}


@pytest.mark.parametrize(("column", "make"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("chunks", [1, 2])
def test_sec_23_a_broken_array_is_refused_by_name(
    column: str, make: Callable[[], Array], chunks: int
) -> None:
    columns: dict[str, Array] = {"value": pa.array([b"x"] * 2), column: make()}
    rows = pa.Table.from_batches([pa.record_batch(columns)] * chunks)
    with pytest.raises(errors.Invalid) as refused:
        make_rows(rows)
    assert refused.value.field == column
    assert "damaged" in str(refused.value)


def test_sec_23_columns_of_unequal_length_are_refused() -> None:
    batch = pa.record_batch({"value": [b"x", b"y"], "key": [b"k", b"l"]})
    table = pa.Table.from_arrays([batch.column(0), batch.column(1)], ["value", "key"])
    assert make_rows(table)[0].count == 2
    bad = pa.RecordBatch.from_struct_array(batch.to_struct_array())
    assert make_rows(bad)[0].count == 2


@pytest.mark.parametrize("kind", LISTS[:4], ids=str)
def test_sec_23_headers_and_groups_go_together(kind: pa.DataType) -> None:
    """Regression: numpy refused to write to the lengths of Arrow."""
    batch = pa.record_batch(
        {
            "value": [b"x"] * 5,
            "headers": pa.array([pairs or [] for pairs in HEADERS], kind),
            "group": pa.array([b"g", None, "h", b"", None], pa.binary()),
        }
    )
    messages = [
        Message(b"x", headers=pairs, group=group)
        for pairs, group in zip(PAIRS, [b"g", None, b"h", b"", None], strict=True)
    ]
    expected = rows_of(make_rows(messages)[0])
    found = rows_of(make_rows(batch)[0])
    assert [sorted(headers) for _, _, headers in found] == [
        sorted(headers) for _, _, headers in expected
    ]
    for (_, _, headers), message in zip(found, messages, strict=True):
        if message.group is not None:
            assert headers[0][1] == message.group, "the first one counts"
    assert rows_of(make_rows(pa.Table.from_batches([batch[:3], batch[3:]]))[0]) == found


def test_sec_05_too_many_rows_are_refused_before_anything_is_made_of_them() -> None:
    before = pa.total_allocated_bytes()
    rows = pa.table({"value": pa.nulls(400_000_000)})
    with pytest.raises(errors.TooLarge) as refused:
        make_rows(rows)
    assert refused.value.limit == limits.PUBLISH_MESSAGES_MAX
    assert pa.total_allocated_bytes() - before < 64 << 20


# --- Which row ------------------------------------------------------------------------------------

ANY: Any = {"a": 5}
LONG = b"k" * (limits.KEY_BYTES_MAX + 1)
BODY = bytes(limits.BODY_BYTES_MAX + 1)

BAD_ROWS: dict[str, tuple[str, list[Any]]] = {
    "body too large": ("body", [b"", b"", BODY]),
    "no body": ("body", [b"", b"", 5]),
    "a mapping": ("rows", [b"", b"", {}]),
    "key too long": ("key", [Message(b""), b"", Message(b"", key=LONG)]),
    "empty key": ("key", [Message(b""), b"", Message(b"", key=b"")]),
    "neither": ("key", [Message(b""), b"", Message(None)]),
    "headers": ("headers", [Message(b""), b"", Message(b"", headers=ANY)]),
    "group": ("group", [Message(b""), b"", Message(b"", group=LONG)]),
    "priority": ("priority", [Message(b""), b"", Message(b"", priority=10)]),
    "delay": ("delay", [Message(b""), b"", Message(b"", delay=-1)]),
    "ttl": ("ttl", [Message(b""), b"", Message(b"", ttl=-1)]),
    "dedup": ("dedup", [Message(b""), b"", Message(b"", dedup="")]),
}


def judge(rows: Any) -> None:
    block, _ = make_rows(rows)
    make_ids(rows)
    make_lives(rows, block.count, None)


@pytest.mark.parametrize(("field", "rows"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_the_bad_row_of_a_list_is_named(field: str, rows: list[Any]) -> None:
    with pytest.raises((errors.Invalid, errors.TooLarge), match=r"^row 2: ") as refused:
        judge(rows)
    assert refused.value.field == field
    # Of a single one there is no need to.
    with pytest.raises((errors.Invalid, errors.TooLarge), match=r"^(?!row)") as refused:
        judge(rows[2:])
    assert refused.value.field == field


MANY = [{"name": "n", "value": b""}] * (limits.HEADERS_MAX + 1)
LARGE = [{"name": "n", "value": bytes(limits.HEADER_BYTES_MAX)}]
NO_TEXT = [{"name": b"n", "value": b""}, {"name": b"\xff", "value": b""}]
BAD_COLUMNS: dict[str, tuple[str, pa.Table]] = {
    "body too large": ("body", pa.table({"value": [b"", b"", BODY]})),
    "key too long": ("key", pa.table({"value": [b""] * 3, "key": [None, b"k", LONG]})),
    "empty key": ("key", pa.table({"value": [b""] * 3, "key": [None, b"k", b""]})),
    "neither": ("key", pa.table({"value": [b"", b"", None], "key": [b"k", b"k", None]})),
    "too many headers": ("headers", pa.table({"value": [b""] * 3, "headers": [None, [], MANY]})),
    "too large headers": ("headers", pa.table({"value": [b""] * 3, "headers": [None, [], LARGE]})),
    "no text": (
        "headers",
        pa.table({"value": [b""] * 3, "headers": [NO_TEXT[:1], NO_TEXT[:1], NO_TEXT]}),
    ),
    "no value": (
        "headers",
        pa.table(
            {"value": [b""] * 3, "headers": [NO_TEXT[:1], None, [{"name": b"a", "value": None}]]}
        ),
    ),
    "group": ("group", pa.table({"value": [b""] * 3, "group": [None, b"g", LONG]})),
    "priority": ("priority", pa.table({"value": [b""] * 3, "priority": [None, 0, 10]})),
    "priority beyond": (
        "priority",
        pa.table({"value": [b""] * 3, "priority": pa.array([1, 2, 2**64 - 1], pa.uint64())}),
    ),
    "delay": ("delay", pa.table({"value": [b""] * 3, "delay": [None, 5, -1]})),
    "delay that is no number": ("delay", pa.table({"value": [b""] * 3, "delay": [1, 5, np.nan]})),
    "delay beyond": ("delay", pa.table({"value": [b""] * 3, "delay": [1, 5, 2**63 - 1]})),
    "ttl": ("ttl", pa.table({"value": [b""] * 3, "ttl": [None, 5, np.inf]})),
}


@pytest.mark.parametrize(("field", "table"), BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys())
def test_the_bad_row_of_a_table_is_named(field: str, table: pa.Table) -> None:
    for rows in (
        table,
        table.to_batches()[0],
        pa.Table.from_batches([table[:1].to_batches()[0], *table[1:].to_batches()]),
    ):
        with pytest.raises((errors.Invalid, errors.TooLarge), match=r"^row 2\b") as refused:
            judge(rows)
        assert refused.value.field == field


@embedded
async def test_the_row_that_settings_of_the_queue_refuse_is_named(m: Millrace) -> None:
    log, strict = await m.queue("log", retention="log"), await m.queue("strict", order="strict")
    plain, keyed = await m.queue("plain"), await m.queue("keyed", keyed=True)
    topic = await m.topic("news")
    refused: list[tuple[Any, str, Message]] = [
        (plain, "body", Message(None, key="k")),
        (topic, "body", Message(None, key="k")),
        (log, "priority", Message(b"b", priority=9)),
        (strict, "priority", Message(b"b", priority=9)),
        (log, "delay", Message(b"b", delay=1)),
        (log, "ttl", Message(b"b", ttl=1)),
        (keyed, "key", Message(None)),
    ]
    for queue, field, message in refused:
        rows = [Message(b"a", key="k"), message]
        with pytest.raises(errors.Invalid, match=r"^row 1: ") as told:
            await queue.publish_many(rows)
        assert told.value.field == field
        if queue not in (topic, keyed):
            with pytest.raises(errors.Invalid, match=r"^row 1: "):
                await queue.stage("s", rows)
    spread = await m.queue("spread", shards=4)
    rows = [Message(b"%d" % number, key=b"%d" % number) for number in range(40)]
    rows[23] = Message(None, key="23")
    with pytest.raises(errors.Invalid, match=r"^row 23: "):
        await spread.publish_many(rows)
    # What the call says of all rows is no fault of one.
    with pytest.raises(errors.Invalid, match=r"^a queue with retention"):
        await log.publish_many([b"a", b"b"], priority=9)
    with pytest.raises(errors.Invalid, match=r"^a message without a body"):
        await plain.publish_many([Message(None, key="k")])


@embedded
async def test_publishing_names_the_bad_row_and_publishes_none(m: Millrace) -> None:
    queue = await m.queue("q")
    assert isinstance(queue, Queue)
    for _, rows in BAD_ROWS.values():
        with pytest.raises((errors.Invalid, errors.TooLarge), match=r"^row 2: "):
            await queue.publish_many(rows)
        with pytest.raises((errors.Invalid, errors.TooLarge)):
            await queue.stage("s", rows)
    for _, table in BAD_COLUMNS.values():
        with pytest.raises((errors.Invalid, errors.TooLarge), match=r"^row 2\b"):
            await queue.publish_many(table)
    assert await queue.peek() == []


# --- Over the network -----------------------------------------------------------------------------


def test_types_of_the_network() -> None:
    columns: dict[str, pa.DataType] = {
        "value": pa.large_utf8(),
        "key": pa.binary(16),
        "headers": pa.map_(pa.utf8(), pa.binary()),
        "group": pa.utf8(),
        "priority": pa.uint8(),
        "delay": pa.float16(),
        "ttl": pa.int64(),
    }
    assert tuple(columns) == COLUMNS
    check_types(pa.schema(columns))
    for kind in LISTS[:2]:
        check_types(pa.schema([("value", pa.binary()), ("headers", kind)]))


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.bool_(),
        pa.binary(0),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.utf8()),
        pa.run_end_encoded(pa.int32(), pa.utf8()),
        pa.uuid(),
        pa.sparse_union([pa.field("a", pa.binary())]),
        pa.list_view(PAIR),
        pa.large_list_view(PAIR),
        pa.list_(PAIR, 3),
        pa.list_(pa.struct([("name", pa.string_view()), ("value", pa.binary())])),
        pa.list_(pa.struct([("name", pa.utf8()), ("value", pa.binary(0))])),
        pa.list_(
            pa.struct([("name", pa.utf8()), ("value", pa.dictionary(pa.int8(), pa.binary()))])
        ),
        pa.list_(pa.struct([("name", pa.utf8()), ("name", pa.binary())])),
        pa.map_(pa.utf8(), pa.null()),
        pa.decimal128(10, 2),
        pa.duration("s"),
    ],
    ids=str,
)
def test_sec_01_types_that_are_not_accepted_over_the_network(name: str, kind: pa.DataType) -> None:
    columns: dict[str, pa.DataType] = {"value": pa.binary()}
    columns[name] = kind
    schema = pa.schema(columns)
    with pytest.raises(errors.Invalid) as refused:
        check_types(schema)
    assert refused.value.field == name
    assert f"column {name!r}" in str(refused.value)
    assert "; send " in str(refused.value)
