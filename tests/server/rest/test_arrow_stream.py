"""Arrow streams over the network: only types that are meant, nothing larger than it came."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace import errors, limits
from millrace.client.arrow_input import stored_bytes
from millrace.client.message import make_rows
from millrace.core.format.column import Array
from millrace.server.auth.access import Quota
from millrace.server.rest.arrow_stream import read_table
from tests.server.rest.harness import Served, served

ARROW = "application/vnd.apache.arrow.stream"
SPACE = "/v1/spaces/default"
PAIR = pa.struct([("name", pa.utf8()), ("value", pa.binary())])
PLACES = (
    f"{SPACE}/queues/orders/messages",
    f"{SPACE}/queues/orders/stages/s",
    f"{SPACE}/queues/wide/messages",
    f"{SPACE}/topics/news/messages",
)
"""Wherever rows may be sent as Arrow."""


def stream(rows: pa.Table | pa.RecordBatch, **options: object) -> bytes:
    """Rows as an IPC stream."""
    sink = pa.BufferOutputStream()
    written = pa.ipc.IpcWriteOptions(**options)  # type: ignore[arg-type]
    with pa.ipc.new_stream(sink, rows.schema, options=written) as writer:
        writer.write(rows)
    return sink.getvalue().to_pybytes()


def poison(count: int) -> Array:
    """A list view, behind whose offsets a number stands that Arrow's cast to lists would read."""
    whole = pa.py_buffer(struct.pack(f"<{count + 1}i", *range(count), -3))
    sizes = pa.py_buffer(struct.pack(f"<{count}i", *[1] * count))
    pairs = pa.array([{"name": "n", "value": b"1"}] * count, PAIR)
    found: Array = pa.Array.from_buffers(
        pa.list_view(PAIR), count, [None, whole.slice(0, 4 * count), sizes], children=[pairs]
    )
    return found


BODIES = pa.array([b"x", b"y", b"z"])

NOT_TAKEN: dict[str, tuple[str, Callable[[], dict[str, object]]]] = {
    "list view": ("headers", lambda: {"value": BODIES, "headers": poison(3)}),
    "view": ("value", lambda: {"value": pa.array(["a"] * 3, pa.string_view())}),
    "dictionary": ("key", lambda: {"value": BODIES, "key": pa.array("aaa").dictionary_encode()}),
    "no type": ("key", lambda: {"value": BODIES, "key": pa.nulls(3)}),
    "bomb of nothing": ("value", lambda: {"value": pa.nulls(400_000_000)}),
    "numbers": ("value", lambda: {"value": pa.array([1, 2, 3])}),
    "flags": ("delay", lambda: {"value": BODIES, "delay": pa.array([True] * 3)}),
    "extension": (
        "key",
        lambda: {
            "value": BODIES,
            "key": pa.ExtensionArray.from_storage(
                pa.uuid(), pa.array([b"0123456789abcdef"] * 3, pa.binary(16))
            ),
        },
    ),
    "a column": ("batch", lambda: {"value": BODIES, "other": BODIES}),
    "no value": ("batch", lambda: {"key": BODIES}),
}


async def refuse(server: Served, body: bytes, field: str, code: str = "invalid") -> str:
    """Send the stream wherever rows go; returns what was said, which is the same everywhere."""
    said: set[str] = set()
    for place in PLACES:
        answer = await server.ask("POST", place, body, type=ARROW)
        assert (answer.status, answer.json["code"], answer.json["field"]) == (
            413 if code == "too_large" else 400,
            code,
            field,
        ), answer.body
        said.add(answer.text("detail"))
    [text] = said
    return text


async def prepare(server: Served) -> None:
    await server.millrace.queue("wide", shards=3)
    topic = await server.millrace.topic("news")
    await topic.subscribe("orders")


def test_sec_01_types_that_are_not_meant_are_refused_everywhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await prepare(server)
            for field, make in NOT_TAKEN.values():
                columns = make()
                rows = pa.table({name: columns[name] for name in columns})
                text = await refuse(server, stream(rows), field)
                assert field == "batch" or f"column {field!r}" in text
                assert field == "batch" or "; send " in text
            for name in ("orders", "wide"):
                async with (await server.millrace.queue(name)).snapshot() as snapshot:
                    assert [batch async for batch in snapshot.batches()] == []
            # It serves on.
            good = stream(pa.table({"value": BODIES}))
            for place in PLACES:
                answer = await server.ask("POST", place, good, type=ARROW)
                assert answer.status in (200, 201), answer.body

    with caplog.at_level(logging.ERROR):
        asyncio.run(asyncio.wait_for(main(), 60))
    assert not caplog.records


def test_sec_05_bombs_are_refused_before_anything_is_made_of_them() -> None:
    before = pa.total_allocated_bytes()
    nothing = stream(pa.table({"value": pa.nulls(400_000_000)}))
    assert len(nothing) < 500
    with pytest.raises(errors.Invalid, match="column 'value' is null; send binary"):
        read_table(nothing)
    for codec in ("zstd", "lz4"):
        packed = stream(pa.table({"value": [bytes(4 << 20)] * 3}), compression=codec)
        with pytest.raises(errors.Invalid, match=r"compressed.*send it without compression"):
            read_table(packed)
    # The rows that a batch says it has, whatever its buffers are.
    rows = pa.table({"value": pa.array([b"ab"] * 77)})
    lied = stream(rows).replace(struct.pack("<q", 77), struct.pack("<q", 400_000_000))
    with pytest.raises(errors.TooLarge) as refused:
        read_table(lied)
    assert (refused.value.field, refused.value.limit) == ("rows", limits.PUBLISH_MESSAGES_MAX)
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_sec_05_rows_of_many_batches_count_together() -> None:
    batch = pa.record_batch({"value": pa.array([b""] * 40_000)})
    with pytest.raises(errors.TooLarge) as refused:
        read_table(stream(pa.Table.from_batches([batch, batch])))
    assert refused.value.limit == limits.PUBLISH_MESSAGES_MAX
    few = [pa.record_batch({"value": [b"a"]})]
    table = read_table(stream(pa.Table.from_batches(few * limits.ARROW_BATCHES_MAX)))
    assert table.num_rows == limits.ARROW_BATCHES_MAX
    with pytest.raises(errors.TooLarge, match="combine them") as refused:
        read_table(stream(pa.Table.from_batches(few * (limits.ARROW_BATCHES_MAX + 1))))
    assert refused.value.limit == limits.ARROW_BATCHES_MAX


def test_sec_05_no_byte_of_a_body_is_used_twice() -> None:
    """Two columns over the same bytes would be stored as more than was sent."""
    rows = pa.table({"value": pa.array([b"v" * 1000] * 3), "key": pa.array([b"k" * 100] * 3)})
    good = stream(rows)
    assert read_table(good).equals(rows)
    keys, bodies = struct.pack("<q", 300), struct.pack("<q", 3000)
    # The keys, too, are all the bytes of the bodies.
    place, other = (good[good.index(size) - 8 :][:16] for size in (keys, bodies))
    with pytest.raises(errors.Invalid, match="beyond its body"):
        read_table(good.replace(place, other))


def test_sec_23_a_damaged_column_is_named() -> None:
    rows = pa.table({"value": BODIES, "key": pa.array([b"kk", b"l", b"mmm"])})
    good = stream(rows)
    offsets = struct.pack("<4i", 0, 2, 3, 6)
    assert good.count(offsets) == 1
    for bad in ((0, 2, 3, 60), (0, 7, 3, 6), (-1, 2, 3, 6), (0, 2, 3, 2)):
        table = read_table(good.replace(offsets, struct.pack("<4i", *bad)))
        with pytest.raises(errors.Invalid, match="column 'key' is damaged") as refused:
            make_rows(table)
        assert refused.value.field == "key"
    # A column of fewer rows than there are.
    count = struct.pack("<qq", 3, 0)
    assert good.count(count) == 2
    short = good[: good.rindex(count)] + struct.pack("<qq", 2, 0) + good[good.rindex(count) + 16 :]
    with pytest.raises(errors.Invalid) as refused:
        make_rows(read_table(short))
    assert refused.value.field in ("value", "key", "body")


def test_sec_05_what_pandas_notes_of_a_schema_has_room_and_more_has_none() -> None:
    rows = pa.table({"value": BODIES})
    noted = rows.replace_schema_metadata({"pandas": "x" * 100_000})
    assert read_table(stream(noted)).num_rows == 3
    large = rows.replace_schema_metadata({"pandas": "x" * limits.ARROW_METADATA_BYTES_MAX})
    with pytest.raises(errors.TooLarge) as refused:
        read_table(stream(large))
    assert refused.value.limit == limits.ARROW_METADATA_BYTES_MAX


def big_endian(data: bytes) -> bytes:
    """The stream, whose schema says that its numbers are of another byte order."""
    spoiled = bytearray(data)
    message = 8 + struct.unpack_from("<I", data, 8)[0]
    places = message - struct.unpack_from("<i", data, message)[0]
    header = message + struct.unpack_from("<H", data, places + 8)[0]
    schema = header + struct.unpack_from("<I", data, header)[0]
    places = schema - struct.unpack_from("<i", data, schema)[0]
    assert struct.unpack_from("<H", data, places + 4) == (0,), "little-endian is not written down"
    # Any number that is not 0.
    struct.pack_into("<H", spoiled, places + 4, 4)
    return bytes(spoiled)


def test_sec_23_what_is_no_stream_of_rows_is_refused() -> None:
    rows = pa.table({"value": BODIES, "key": BODIES})
    good = stream(rows)
    schema = rows.schema.serialize().to_pybytes()
    batch = rows.to_batches()[0].serialize().to_pybytes()
    tensor = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(np.zeros(3)), tensor)
    bad = {
        "nothing": b"",
        "a word": b"hello",
        "an end": good[-8:],
        "no schema": batch,
        "two schemas": schema + schema + batch,
        "a tensor": schema + tensor.getvalue().to_pybytes(),
        "an end in a batch": good[: len(good) // 2 + 100],
        "big-endian": big_endian(good),
        "lengths without end": b"\xff\xff\xff\xff\xff\xff\xff\x7f" + good,
        "a file": b"ARROW1\0\0" + good,
    }
    for name, data in bad.items():
        with pytest.raises(errors.Invalid) as refused:
            read_table(data)
        assert refused.value.field == "body", name
    assert read_table(good[:-8]).equals(rows), "the end need not be said"
    assert read_table(schema + batch + batch).num_rows == 6
    assert read_table(bytearray(good)).equals(rows)
    assert read_table(memoryview(b"1" + good)[1:]).equals(rows), "wherever it lies"
    assert read_table(schema).num_rows == 0


def test_sec_23_headers_and_groups_go_together_over_rest(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await prepare(server)
            headers = pa.array([[{"name": "a", "value": b"1"}], None, []], pa.list_(PAIR))
            rows = {"value": BODIES, "headers": headers, "group": pa.array(["g", None, "h"])}
            answer = await server.ask("POST", PLACES[0], stream(pa.table(rows)), type=ARROW)
            assert (answer.status, answer.json["count"]) == (201, 3)
            queue = await server.millrace.queue("orders")
            found = [(row.body, [value for _, value in row.headers]) for row in await queue.peek()]
            assert found == [(b"x", [b"g", b"1"]), (b"y", []), (b"z", [b"h"])]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_bad_row_is_named_over_rest(tmp_path: Path) -> None:
    long = "k" * (limits.KEY_BYTES_MAX + 1)

    async def main() -> None:
        async with served(tmp_path) as server:
            await prepare(server)
            rows = pa.table({"value": BODIES, "key": ["a", "b", long]})
            text = await refuse(server, stream(rows), "key", "too_large")
            assert text.startswith("row 2: ")
            lines = b'{"body": "a"}\n{"body": "b", "key": "b"}\n{"body": "c", "key": "%s"}\n'
            for body, type in (
                (lines % long.encode(), "application/x-ndjson"),
                ({"messages": [{"body": "a"}, {"body": "b"}, {"body": "c", "key": long}]}, None),
            ):
                for place in PLACES:
                    answer = await server.ask("POST", place, body, type=type or "application/json")
                    assert answer.status == 413, answer.body
                    assert "row 2: " in answer.text("detail"), answer.body

    asyncio.run(asyncio.wait_for(main(), 60))


def test_sec_05_bytes_are_counted_as_they_are_stored(tmp_path: Path) -> None:
    count = limits.PUBLISH_MESSAGES_MAX
    ones = pa.array([b"1"] * count, pa.binary(1))
    rows = pa.table({"value": ones, "group": ones})
    body = stream(rows)
    stored = make_rows(rows)[0].size()
    assert stored > 10 * len(body)
    assert 0.99 * stored < stored_bytes(read_table(body)) < 1.1 * stored

    async def main() -> None:
        async with served(tmp_path) as server:
            server.app.quotas.configure(Quota(bytes=stored // 2))
            first = await server.ask("POST", PLACES[0], body, type=ARROW)
            assert first.status == 201, first.body
            second = await server.ask("POST", PLACES[0], body, type=ARROW)
            assert (second.status, second.json["field"]) == (429, "bytes")

    asyncio.run(asyncio.wait_for(main(), 60))
