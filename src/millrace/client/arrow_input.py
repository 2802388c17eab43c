"""Arrow tables to publish: validation, and conversion of their columns to the stored types.

pandas and polars produce views, dictionaries and large types; they are cast to plain ones here.

Rule 1: an array is fully validated before anything reads its offsets, and again after each cast:
Arrow follows them without bounds checks. An array without rows is not read at all, since its
offsets are not validated.
Rule 2: input from the network has only the types of `check_types`. Others expand to far more bytes
than were sent, or are cast by code that has had defects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from millrace import limits
from millrace.core import bounds, validate
from millrace.core.commands import RowSchedule, RowTtl
from millrace.core.format.block import (
    SCHEMA,
    VALUE,
    Block,
    HeaderColumns,
    column_of,
)
from millrace.core.format.column import Array, shown_type, validated
from millrace.core.model import GROUP_HEADER
from millrace.core.publishing import validate_rows
from millrace.errors import Invalid, TooLarge

Rows = pa.RecordBatch | pa.Table
Whole = npt.NDArray[np.int64]
Values = npt.NDArray[np.int64] | npt.NDArray[np.float64]
"""Or integers of another width."""
Flags = npt.NDArray[np.bool_]

_Lists: TypeAlias = "pa.ListArray[pa.StructScalar]"
_LISTS = SCHEMA.field("headers").type
_LIST_TYPES = (
    pa.ListType,
    pa.LargeListType,
    pa.FixedSizeListType,
    pa.ListViewType,
    pa.LargeListViewType,
)
_PAIR_NAMES = ["name", "value"]
_OFFSET_BYTES = 4


# --- Types accepted from the network ------------------------------------------------------------


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
    )


def _is_data(kind: pa.DataType) -> bool:
    # Zero-width values would make the number of rows unlimited.
    return _is_bytes(kind) or (types.is_fixed_size_binary(kind) and kind.byte_width > 0)


def _is_headers(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.MapType):
        return _is_bytes(kind.key_type) and _is_bytes(kind.item_type)
    if not isinstance(kind, pa.ListType | pa.LargeListType):
        return False
    pair = kind.value_type
    return _are_pairs(pair) and all(_is_bytes(pair.field(name).type) for name in _PAIR_NAMES)


def _are_pairs(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.StructType) and sorted(kind.names) == _PAIR_NAMES


def _is_seconds(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


_DATA = "binary, large_binary, utf8, large_utf8 or fixed_size_binary"
_HEADERS = "a list or large_list of struct<name: utf8, value: binary>, or a map of utf8 to binary"
_WHOLE = "an integer type"
_SECONDS = "an integer or floating-point type"

_NETWORK: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "value": (_is_data, _DATA),
    "key": (_is_data, _DATA),
    "headers": (_is_headers, _HEADERS),
    "group": (_is_data, _DATA),
    "priority": (types.is_integer, _WHOLE),
    "delay": (_is_seconds, _SECONDS),
    "ttl": (_is_seconds, _SECONDS),
}

COLUMNS = tuple(_NETWORK)
"""Columns of rows; only `value` is required."""


def check_names(schema: pa.Schema) -> None:
    """Check that rows have the column `value`, and otherwise known columns, each once.

    Raises:
        Invalid: a column is unknown, repeated or missing.
    """
    names = schema.names
    if "value" in names and set(names) <= set(COLUMNS) and len(set(names)) == len(names):
        return
    shown = ", ".join(name[:40] for name in names[:16]) + (", ..." if len(names) > 16 else "")
    raise Invalid(
        f"an Arrow batch has the column 'value' and may have {', '.join(COLUMNS[1:])}, once; "
        f"this one has {shown or 'none'}",
        field="batch",
    )


def check_types(schema: pa.Schema) -> None:
    """Check that the types of the columns are accepted from the network.

    Raises:
        Invalid: the error names the column and the types it may have.
    """
    check_names(schema)
    for name in schema.names:
        is_taken, taken = _NETWORK[name]
        if not is_taken(schema.field(name).type):
            text = shown_type(schema.field(name).type)
            raise Invalid(f"column {name!r} is {text}; send {taken}", field=name)


def stored_bytes(rows: pa.Table) -> int:
    """Return an upper bound of the stored size of rows of accepted types, in bytes."""
    # From the buffer sizes alone: their content is not validated yet.
    size = rows.get_total_buffer_size()
    for name in rows.schema.names:
        if types.is_fixed_size_binary(rows.schema.field(name).type):
            size += _OFFSET_BYTES * rows.num_rows
        if name == "group":
            # Each group is stored as a header: add its name and offsets.
            size += (len(GROUP_HEADER) + 2 * _OFFSET_BYTES) * rows.num_rows
    return size


# --- Columns as they are stored -----------------------------------------------------------------


def check_shape(rows: Rows) -> None:
    """Check names, number and lengths of columns before anything is cast.

    Raises:
        Invalid, TooLarge: the rows cannot be published at once.
    """
    check_names(rows.schema)
    if not rows.num_rows:
        raise Invalid("rows are empty; there is nothing to publish", field="rows")
    validate_rows.check_count(rows.num_rows)
    for name in rows.schema.names:
        length = len(rows.column(name))
        if length != rows.num_rows:
            text = f"column {name!r} has {length} rows of {rows.num_rows}"
            raise Invalid(text, field=name)


def data_column(rows: Rows, name: str) -> Array:
    """Return a column as validated binary.

    Raises:
        Invalid, TooLarge: the column is of another type, inconsistent, or too large.
    """
    return _together([_data(chunk, name) for chunk in _chunks(rows, name)], name)


def header_columns(rows: Rows) -> HeaderColumns:
    """Return the column `headers` as columns of names and values.

    Raises:
        Invalid, TooLarge: as `data_column`, or a header has no name or value.
    """
    chunks = [cast("_Lists", _lists(chunk, "headers")) for chunk in _chunks(rows, "headers")]
    lengths = [np.asarray(chunk.value_lengths().fill_null(0), np.int64) for chunk in chunks]
    # A copy, since Arrow's memory must not be written to.
    counts = np.concatenate(lengths)
    # Check the counts before anything is allocated for the headers.
    validate_rows.check_header_counts(counts)
    parts = [_pairs(chunk) for chunk in chunks]
    is_whole = np.concatenate([part.is_whole for part in parts])
    if not is_whole.all():
        row = int(np.searchsorted(np.cumsum(counts), np.argmin(is_whole), side="right"))
        raise Invalid(f"row {row}: a header has no name or no value", field="headers")
    names = _together([part.names for part in parts], "headers")
    return HeaderColumns(counts, names, _together([part.values for part in parts], "headers"))


def numbers(rows: Rows, name: str, *, is_whole: bool) -> tuple[Values, Flags]:
    """Return the numbers of a column, with 0 for nulls, and flags of the non-null ones.

    Raises:
        Invalid: the column is of another type, or inconsistent.
    """
    values: list[Values] = []
    is_valid: list[Flags] = []
    for chunk in _chunks(rows, name):
        array = _numbers(chunk, name, is_whole=is_whole)
        is_valid.append(array.is_valid().to_numpy(zero_copy_only=False))
        filled = cast("pa.Int64Array", array).fill_null(0)
        values.append(filled.to_numpy(zero_copy_only=False))
    return cast("Values", np.concatenate(values)), np.concatenate(is_valid)


def _chunks(rows: Rows, name: str) -> Sequence[Array]:
    """Return the chunks of a column that have rows, or an empty one of its type.

    Arrow does not validate the offsets of an array without rows, but follows them, and aborts the
    process if they point outside of its buffers.
    """
    column = rows.column(name)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    filled = [chunk for chunk in chunks if len(chunk)]
    if filled:
        return filled
    try:
        return [pa.nulls(0, column.type)]
    except pa.ArrowException as error:
        text = f"column {name!r} is {shown_type(column.type)}, which cannot be read: {error}"
        raise Invalid(text[:1000], field=name) from error


def _together(chunks: Sequence[Array], name: str) -> Array:
    if len(chunks) == 1:
        return chunks[0]
    try:
        return pa.concat_arrays(chunks)
    except pa.ArrowException as error:
        raise TooLarge(
            f"column {name!r} has more bytes than a block can count; publish in parts, or stage "
            "them",
            field="rows",
            limit=2**31 - 1,
        ) from error


def _data(array: Array, name: str) -> Array:
    """Convert bytes or text of any layout to binary."""
    validated(array, name)
    kind = array.type
    if kind == VALUE:
        return array
    is_known = (
        _is_data(kind)
        or types.is_null(kind)
        or types.is_binary_view(kind)
        or types.is_string_view(kind)
    )
    return _cast(array, VALUE, name) if is_known else _unpacked(array, _data, name, _DATA)


def _numbers(array: Array, name: str, *, is_whole: bool) -> Array:
    validated(array, name)
    kind = array.type
    if types.is_null(kind):
        return _cast(array, pa.int64() if is_whole else pa.float64(), name)
    if types.is_integer(kind):
        return array
    if not is_whole and (types.is_floating(kind) or types.is_decimal(kind)):
        return _cast(array, pa.float64(), name)

    def again(part: Array, name: str) -> Array:
        return _numbers(part, name, is_whole=is_whole)

    return _unpacked(array, again, name, _WHOLE if is_whole else _SECONDS)


def _unpacked(array: Array, convert: Callable[[Array, str], Array], name: str, taken: str) -> Array:
    """Convert an array that wraps another one: an extension type, a dictionary, or run-length
    encoded."""
    try:
        if isinstance(array, pa.ExtensionArray):
            return convert(array.storage, name)
        if isinstance(array, pa.DictionaryArray):
            # Convert the values first: `take` does not support views.
            return validated(convert(array.dictionary, name).take(array.indices), name)
        if isinstance(array, pa.RunEndEncodedArray):
            # Imported lazily: slow to load and rarely needed.
            from pyarrow import compute

            decoded = cast("Array", compute.run_end_decode(array))  # type: ignore[attr-defined]
            return convert(decoded, name)
    except pa.ArrowException as error:
        text = f"column {name!r} is {shown_type(array.type)}, which cannot be read: {error}"
        raise Invalid(text, field=name) from error
    raise Invalid(f"column {name!r} is {shown_type(array.type)}, not {taken}", field=name)


class _Pairs(NamedTuple):
    """Headers of a chunk, without their assignment to rows."""

    is_whole: Flags
    """Flags of those with a name and a value."""
    names: Array
    values: Array


def _pairs(lists: _Lists) -> _Pairs:
    try:
        pairs = lists.flatten()
        if isinstance(lists.type, pa.ListViewType | pa.LargeListViewType):
            # Flattening list views copies their items: validate the copy.
            validated(pairs, "headers")
    except pa.ArrowException as error:
        text = f"column 'headers' is {shown_type(lists.type)}, which cannot be read: {error}"
        raise Invalid(text, field="headers") from error
    if not isinstance(pairs, pa.StructArray) or not _are_pairs(pairs.type):
        text = f"column 'headers' is {shown_type(lists.type)}, not {_HEADERS}"
        raise Invalid(text, field="headers")
    if not len(pairs):
        # Offsets of empty arrays are not validated; see `_chunks`.
        return _Pairs(np.ones(0, np.bool_), pa.nulls(0, VALUE), pa.nulls(0, VALUE))
    names, values = (pairs.field(name) for name in _PAIR_NAMES)
    names, values = _part(names), _part(values)
    is_whole = np.ones(len(pairs), np.bool_)
    for array in (pairs, names, values):
        if array.null_count:
            is_whole &= array.is_valid().to_numpy(zero_copy_only=False)
    return _Pairs(is_whole, names, values)


def _part(array: Array) -> Array:
    """Convert names or values, which were validated with their lists, to binary."""
    # The cast copies nothing if the layout is the same.
    is_same = array.type in (VALUE, pa.utf8())
    return cast("Array", array.cast(VALUE)) if is_same else _data(array, "headers")


def _lists(array: Array, name: str) -> Array:
    """Convert lists of any layout to a type that can be flattened."""
    validated(array, name)
    kind = array.type
    if types.is_null(kind):
        return _cast(array, _LISTS, name)
    if isinstance(kind, pa.MapType):
        pair = pa.struct([("name", kind.key_type), ("value", kind.item_type)])
        return _cast(array, pa.list_(pair), name)
    if isinstance(kind, _LIST_TYPES):
        return array
    return _unpacked(array, _lists, name, _HEADERS)


def _cast(array: Array, kind: pa.DataType, name: str) -> Array:
    """Cast a validated array to another type."""
    try:
        return validated(array.cast(kind), name)
    except pa.ArrowException as error:
        text = (
            f"column {name!r} is {shown_type(array.type)}, which cannot be read as {kind}: {error}"
        )
        raise Invalid(text[:1000], field=name) from error


_NONE = -1
"""Marks a row without a value of its own."""


def block_of(rows: Rows, check_names: Callable[[Array], None] | None = None) -> Block:
    """Validate rows and convert them to columns.

    `check_names` gets the names of their headers in the stored layout, except headers that stand
    for another column.

    Raises:
        Invalid, TooLarge: a column or a row is not valid; the error names the field and the limit.
    """
    check_shape(rows)
    names = rows.schema.names
    value = data_column(rows, "value")
    key = data_column(rows, "key") if "key" in names else None
    headers = header_columns(rows) if "headers" in names else None
    if headers is not None and check_names is not None:
        check_names(headers.names)
    if "group" in names:
        headers = _with_groups(data_column(rows, "group"), headers)
    block = Block.of_columns(value, key, headers)
    validate_rows.whole_block(block)
    return block


def turns_of(rows: Rows, usual: tuple[int, int | None]) -> tuple[RowSchedule, ...]:
    """Return the runs of rows with a priority or delay; `usual` is the default of the call.

    Raises:
        Invalid, TooLarge: a priority or a delay is not valid.
    """
    names = rows.schema.names
    if "priority" not in names and "delay" not in names:
        return ()
    priority, delay_ms = usual
    ranks = np.full(rows.num_rows, priority, np.int64)
    if "priority" in names:
        own, is_given = numbers(rows, "priority", is_whole=True)
        _check_each(is_given & ((own < 0) | (own > limits.PRIORITY_MAX)), own, validate.priority)
        ranks = np.where(is_given, own.astype(np.int64), ranks)
    delays = np.full(rows.num_rows, _NONE if delay_ms is None else delay_ms, np.int64)
    if "delay" in names:
        millis = _millis(rows, "delay", limits.DELAY_MS_MAX, least_ms=0)
        delays = np.where(millis == _NONE, delays, millis)
    return tuple(
        RowSchedule(at, count, rank, None if delay == _NONE else delay)
        for at, count, rank, delay in _runs(ranks, delays)
        if (rank, delay) != (limits.PRIORITY_DEFAULT, _NONE)
    )


def lives_of(rows: Rows, usual_ms: int | None) -> tuple[RowTtl, ...]:
    """Return the runs of rows with a TTL; `usual_ms` is the default of the call.

    Raises:
        Invalid, TooLarge: a TTL is not valid.
    """
    own = _millis(rows, "ttl", bounds.TTL_MS_MAX, least_ms=1)
    lives = np.where(own == _NONE, _NONE if usual_ms is None else usual_ms, own)
    return tuple(RowTtl(at, count, ms) for at, count, ms, _ in _runs(lives, lives) if ms != _NONE)


def _runs(first: Whole, second: Whole) -> Iterator[tuple[int, int, int, int]]:
    """Yield index, length and both values of each run of equal rows."""
    if not len(first):
        return
    new = np.flatnonzero((np.diff(first) != 0) | (np.diff(second) != 0)) + 1
    begins = np.concatenate([np.zeros(1, np.int64), new])
    counts = np.diff(np.append(begins, len(first)))
    values = (begins, counts, first[begins], second[begins])
    yield from zip(*(value.tolist() for value in values), strict=True)


def _check_each(is_bad: Flags, given: Values, judge: Callable[[int | float], object]) -> None:
    """Raise the error of the first bad value, with the number of its row."""
    if not is_bad.any():
        return
    at = int(np.argmax(is_bad))
    try:
        judge(given[at].item())
    except (Invalid, TooLarge) as error:
        raise validate_rows.in_row(at, error) from error


def _millis(rows: Rows, field: str, most_ms: int, *, least_ms: int) -> Whole:
    given, is_given = numbers(rows, field, is_whole=False)
    seconds = given.astype(np.float64)
    # NaN fails every comparison, so it counts as wrong.
    wrong = ~((seconds >= 0) & (seconds * 1000 <= most_ms))
    _check_each(
        wrong, seconds, lambda value: validate.millis(value, field, most_ms, least_ms=least_ms)
    )
    millis = np.maximum(np.rint(seconds * 1000).astype(np.int64), least_ms)
    return cast("Whole", np.where(is_given, millis, _NONE))


def _with_groups(groups: Array, headers: HeaderColumns | None) -> HeaderColumns:
    """Return the headers of the rows with their groups in front: the first group header counts."""
    is_named = groups.is_valid().to_numpy(zero_copy_only=False)
    own = groups.drop_null()
    sizes = np.where(is_named, np.diff(column_of(groups).bounds()), 0)
    at = int(np.argmax(sizes))
    if sizes[at] > limits.KEY_BYTES_MAX:
        error = TooLarge(
            f"group has {sizes[at]} bytes, up to {limits.KEY_BYTES_MAX} are allowed",
            field="group",
            limit=limits.KEY_BYTES_MAX,
        )
        raise validate_rows.in_row(at, error)
    names = pa.repeat(pa.scalar(GROUP_HEADER.encode(), VALUE), len(own))
    if headers is None:
        return HeaderColumns(is_named.astype(np.int64), names, own)
    # Each header shifts by the number of groups in the rows up to its own.
    groups_before = np.cumsum(is_named)
    headers_before = np.cumsum(headers.counts) - headers.counts
    order = np.empty(len(own) + len(headers.names), np.int64)
    order[(headers_before + groups_before - 1)[is_named]] = np.arange(len(own))
    places = np.arange(len(headers.names)) + np.repeat(groups_before, headers.counts)
    order[places] = len(own) + np.arange(len(headers.names))
    return HeaderColumns(
        headers.counts + is_named,
        pa.concat_arrays([names, headers.names]).take(order),
        pa.concat_arrays([own, headers.values]).take(order),
    )
