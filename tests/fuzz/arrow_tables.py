"""Arrow tables of random types and contents, and their bytes and buffers spoiled."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa

from millrace.core.format.column import Array

ODD_NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 255, 256, 65_535, 65_536, 65_537, 2**24, 2**31 - 1),
    *(2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, -1, -2, -3, -8, -64, -(2**31), -(2**63)),
)
TEXTS = ("a", "bc", "key", "group-of-seven", "é", "\0", "x" * 20, "y" * 400)
DATA_TYPES: tuple[pa.DataType, ...] = (
    *(pa.binary(), pa.utf8(), pa.large_binary(), pa.large_utf8(), pa.binary(4), pa.binary(16)),
)
ODD_DATA_TYPES: tuple[pa.DataType, ...] = (
    *(pa.binary_view(), pa.string_view(), pa.null(), pa.binary(0), pa.int32(), pa.bool_()),
)
INDEX_TYPES: tuple[pa.DataType, ...] = (pa.int16(), pa.uint32(), pa.int64())
NUMBER_TYPES: tuple[pa.DataType, ...] = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.uint64(), pa.float32(), pa.float64()),
)


def table(rng: Random, *, odd: bool) -> pa.Table:
    """Rows of one publish; with `odd`, of types that are not accepted over the network, too."""
    count = rng.choice((0, 1, 2, 3, 8, 9, 40, 40, 300))
    names = [
        name for name in ("key", "headers", "group", "priority", "delay") if rng.random() < 0.4
    ]
    columns: dict[str, Any] = {"value": data(rng, count, odd=odd)}
    for name in names:
        if name in ("key", "group"):
            columns[name] = data(rng, count, odd=odd, nulls=rng.choice((0, 0, 0.3)))
        elif name == "headers":
            columns[name] = headers(rng, count, odd=odd)
        else:
            columns[name] = numbers(rng, count, odd=odd)
    if rng.random() < 0.05:
        columns[rng.choice(("other", "ttl", ""))] = numbers(rng, count, odd=odd)
    order = rng.sample(sorted(columns), len(columns))
    made = pa.table({name: columns[name] for name in order})
    if count > 1 and rng.random() < 0.4:
        cuts = sorted(rng.randrange(count) for _ in range(rng.randrange(1, 4)))
        parts = [
            made.slice(low, high - low)
            for low, high in zip([0, *cuts], [*cuts, count], strict=True)
        ]
        made = pa.concat_tables(parts)
    if count and rng.random() < 0.3:
        made = made.slice(rng.randrange(count))
    return made


def data(rng: Random, count: int, *, odd: bool, nulls: float = 0.0) -> Array:
    """A column of bytes or text."""
    kind = rng.choice(DATA_TYPES)
    if odd and rng.random() < 0.5:
        kind = rng.choice(ODD_DATA_TYPES[:2] if rng.random() < 0.7 else ODD_DATA_TYPES)
    values = [None if rng.random() < nulls else value_of(rng, kind) for _ in range(count)]
    made = pa.array(values, kind)
    if odd and rng.random() < 0.3:
        made = apart(rng, made)
    return made


def value_of(rng: Random, kind: pa.DataType) -> Any:
    if rng.random() < 0.01 or pa.types.is_null(kind):
        return None
    if isinstance(kind, pa.FixedSizeBinaryType):
        return rng.randbytes(kind.byte_width)
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        return rng.randrange(100)
    text = rng.choice(TEXTS) if rng.random() < 0.99 else ""
    is_text = kind in (pa.utf8(), pa.large_utf8(), pa.string_view())
    return text if is_text else text.encode() if rng.random() < 0.8 else rng.randbytes(9)


def apart(rng: Random, array: Array) -> Array:
    """The same values behind indices, in runs, or as an extension of their type."""
    count = len(array)
    match rng.randrange(3):
        case 0 if count:
            at: Any = pa.array(
                [rng.randrange(count) for _ in range(count)], rng.choice(INDEX_TYPES)
            )
            made: Array = pa.DictionaryArray.from_arrays(at, array)
            return made
        case 1 if count:
            ends: Any = pa.array(range(1, count + 1), pa.int32())
            runs: Array = pa.RunEndEncodedArray.from_arrays(ends, array)
            return runs
        case _ if array.type == pa.binary(16):
            extended: Array = pa.ExtensionArray.from_storage(pa.uuid(), array)
            return extended
        case _:
            return array


def numbers(rng: Random, count: int, *, odd: bool) -> Array:
    """A column of small numbers, mostly."""
    kind = rng.choice(NUMBER_TYPES)
    most = rng.choice((9, 9, 9, 100))
    values = [rng.choice((None, rng.randrange(most + 1))) for _ in range(count)]
    made = pa.array(values, kind)
    if pa.types.is_floating(kind) and count and rng.random() < 0.1:
        at = rng.randrange(count)
        bad = pa.array([rng.choice((float("nan"), float("inf"), -1.5, 1e300))], pa.float64())
        made = pa.concat_arrays([made[:at], bad.cast(kind, safe=False), made[at + 1 :]])
    return apart(rng, made) if odd and rng.random() < 0.3 else made


def headers(rng: Random, count: int, *, odd: bool) -> Array:
    """A column of lists of pairs."""
    name, value = (
        rng.choice(DATA_TYPES[:4] if rng.random() < 0.8 or not odd else ODD_DATA_TYPES)
        for _ in range(2)
    )
    pair = pa.struct([("name", name), ("value", value)])
    if rng.random() < 0.1:
        pair = pa.struct([("value", value), ("name", name)])
    kinds = [pa.list_(pair), pa.large_list(pair)]
    if odd:
        kinds += [pa.list_view(pair), pa.large_list_view(pair), pa.list_(pair, 2)]
    kind = rng.choice(kinds)

    def pairs() -> list[dict[str, Any]] | None:
        size = 2 if isinstance(kind, pa.FixedSizeListType) else rng.choice((0, 1, 2, 2, 70))
        if rng.random() < 0.1 or (size > 2 and rng.random() < 0.9):
            return None
        return [{"name": value_of(rng, name), "value": value_of(rng, value)} for _ in range(size)]

    made = pa.array([pairs() for _ in range(count)], kind)
    if rng.random() < 0.1 and not isinstance(name, pa.FixedSizeBinaryType):
        with_map = pa.map_(pa.utf8(), value)
        some = [[("a", value_of(rng, value))] if rng.random() < 0.5 else None for _ in range(count)]
        return pa.array(some, with_map)
    return apart(rng, made) if odd and rng.random() < 0.2 else made


# --- Bytes ----------------------------------------------------------------------------------------


def stream(rng: Random, rows: pa.Table) -> bytes:
    """The rows as an IPC stream."""
    packed: Any = rng.choice((None, None, None, None, None, None, None, None, "zstd", "lz4"))
    options = pa.ipc.IpcWriteOptions(compression=packed, unify_dictionaries=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=rng.choice((None, None, 1, 7)))
    return sink.getvalue().to_pybytes()


def with_odd_numbers(rng: Random, good: bytes) -> bytes:
    """The bytes, some of whose numbers are others: lengths, offsets, counts."""
    made = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        form, size = rng.choice((("<i", 4), ("<i", 4), ("<q", 8), ("<h", 2), ("<b", 1)))
        if len(made) < size:
            break
        at = rng.randrange(0, len(made) - size + 1, size)
        was = struct.unpack_from(form, made, at)[0]
        number = rng.choice(
            (rng.choice(ODD_NUMBERS), was + rng.choice((-8, -4, -1, 1, 4, 8)), was * 2)
        )
        top = 1 << (8 * size - 1)
        struct.pack_into(form, made, at, (number + top) % (2 * top) - top)
    return bytes(made)


# --- Buffers --------------------------------------------------------------------------------------


def with_odd_buffers(rng: Random, rows: pa.Table) -> pa.RecordBatch | None:
    """The rows over other buffers, as `from_buffers` makes them; None where it refuses."""
    batches = rows.to_batches()
    if not batches:
        return None
    batch = rng.choice(batches)
    at = rng.randrange(batch.num_columns)
    columns = list(batch.columns)
    try:
        columns[at] = rebuilt(rng, columns[at])
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    except (pa.ArrowException, ValueError, TypeError):
        return None


def rebuilt(rng: Random, array: Array) -> Array:
    """The array over spoiled buffers; its children, too."""
    if isinstance(array, pa.DictionaryArray):
        indices: Any = rebuilt(rng, array.indices)
        made: Array = pa.DictionaryArray.from_arrays(indices, array.dictionary, safe=False)
        return made
    if isinstance(array, pa.ExtensionArray | pa.RunEndEncodedArray | pa.MapArray):
        return array
    children = _children(array)
    own = len(array.buffers()) - sum(len(child.buffers()) for child in children)
    buffers = [spoiled(rng, buffer) for buffer in array.buffers()[:own]]
    nested = [rebuilt(rng, child) if rng.random() < 0.5 else child for child in children]
    length = max(0, len(array) + rng.choice((0, 0, 0, 1, -1, 60_000)))
    found: Array = pa.Array.from_buffers(
        array.type, length, buffers, offset=array.offset, children=nested or None
    )
    return found


def _children(array: Array) -> Sequence[Array]:
    if isinstance(array, pa.StructArray):
        return [array.field(at) for at in range(array.type.num_fields)]
    lists = (
        *(pa.ListArray, pa.LargeListArray, pa.ListViewArray, pa.LargeListViewArray),
        pa.FixedSizeListArray,
    )
    return [array.values] if isinstance(array, lists) else []


def spoiled(rng: Random, buffer: pa.Buffer | None) -> pa.Buffer | None:
    """The buffer, with odd numbers, shorter, or as it is."""
    if buffer is None or rng.random() < 0.4:
        return buffer
    data = buffer.to_pybytes()
    if rng.random() < 0.2:
        data = data[: rng.randrange(len(data) + 1)]
    # Followed by numbers of the sender's choice, as the padding of a body is.
    whole = pa.py_buffer(with_odd_numbers(rng, data) + struct.pack("<qq", -3, 2**30))
    return whole.slice(0, len(data))
