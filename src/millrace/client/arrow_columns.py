"""Columns of Arrow tables as the types that are stored, whatever types their makers prefer.

pandas and polars make views, dictionaries and large types; they are cast to plain ones here.

Rule 1: an array is validated fully before anything reads its offsets, and again after each cast:
Arrow follows them without looking. An array without rows is not read at all: its offsets are not
validated.
Rule 2: what came over the network has the types of `check_types` alone. Others are decoded into
far more bytes than they were sent as, or are cast by code that has had defects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

from millrace.core import check_rows
from millrace.core.block import SCHEMA, VALUE, HeaderColumns
from millrace.core.column import Array, shown_type, validated
from millrace.core.group_cells import GROUP_HEADER
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


# --- What may come over the network -------------------------------------------------------------


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
    )


def _is_data(kind: pa.DataType) -> bool:
    # Of values without a byte there may be any number.
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
"""The columns that rows may have; `value` is needed."""


def check_names(schema: pa.Schema) -> None:
    """Check that rows have the column `value`, and known ones besides, each once.

    Raises:
        Invalid: another column, or one twice.
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
    """Check that the columns are of types that are accepted over the network.

    Raises:
        Invalid: a column; the message says which types it may have.
    """
    check_names(schema)
    for name in schema.names:
        is_taken, taken = _NETWORK[name]
        if not is_taken(schema.field(name).type):
            text = shown_type(schema.field(name).type)
            raise Invalid(f"column {name!r} is {text}; send {taken}", field=name)


def stored_bytes(rows: pa.Table) -> int:
    """Return how many bytes rows of accepted types have as they are stored, at most."""
    # Of buffers: what they hold may be damaged, and is not looked at yet.
    size = rows.get_total_buffer_size()
    for name in rows.schema.names:
        if types.is_fixed_size_binary(rows.schema.field(name).type):
            size += _OFFSET_BYTES * rows.num_rows
        if name == "group":
            # A header of each row, whose name and place are not in the column.
            size += (len(GROUP_HEADER) + 2 * _OFFSET_BYTES) * rows.num_rows
    return size


# --- Columns as they are stored -----------------------------------------------------------------


def check_shape(rows: Rows) -> None:
    """Check names, number and lengths, before anything is cast.

    Raises:
        Invalid, TooLarge: they are no rows for one publish.
    """
    check_names(rows.schema)
    if not rows.num_rows:
        raise Invalid("rows are empty; there is nothing to publish", field="rows")
    check_rows.check_count(rows.num_rows)
    for name in rows.schema.names:
        length = len(rows.column(name))
        if length != rows.num_rows:
            text = f"column {name!r} has {length} rows of {rows.num_rows}"
            raise Invalid(text, field=name)


def data_column(rows: Rows, name: str) -> Array:
    """A column as binary, validated.

    Raises:
        Invalid, TooLarge: it is of another type, contradicts itself, or has too many bytes.
    """
    return _together([_data(chunk, name) for chunk in _chunks(rows, name)], name)


def header_columns(rows: Rows) -> HeaderColumns:
    """The column `headers`.

    Raises:
        Invalid, TooLarge: as `data_column`, or a header without name or value.
    """
    chunks = [cast("_Lists", _lists(chunk, "headers")) for chunk in _chunks(rows, "headers")]
    lengths = [np.asarray(chunk.value_lengths().fill_null(0), np.int64) for chunk in chunks]
    # A copy: Arrow's own memory is not to be written to.
    counts = np.concatenate(lengths)
    # Before anything is made of the headers: there may be far too many.
    check_rows.check_header_counts(counts)
    parts = [_pairs(chunk) for chunk in chunks]
    is_whole = np.concatenate([part.is_whole for part in parts])
    if not is_whole.all():
        row = int(np.searchsorted(np.cumsum(counts), np.argmin(is_whole), side="right"))
        raise Invalid(f"row {row}: a header has no name or no value", field="headers")
    names = _together([part.names for part in parts], "headers")
    return HeaderColumns(counts, names, _together([part.values for part in parts], "headers"))


def numbers(rows: Rows, name: str, *, is_whole: bool) -> tuple[Values, Flags]:
    """The numbers of a column, and which of them are there; 0 stands for the others.

    Raises:
        Invalid: it is of another type, or contradicts itself.
    """
    values: list[Values] = []
    known: list[Flags] = []
    for chunk in _chunks(rows, name):
        array = _numbers(chunk, name, is_whole=is_whole)
        known.append(array.is_valid().to_numpy(zero_copy_only=False))
        filled = cast("pa.Int64Array", array).fill_null(0)
        values.append(filled.to_numpy(zero_copy_only=False))
    return cast("Values", np.concatenate(values)), np.concatenate(known)


def _chunks(rows: Rows, name: str) -> Sequence[Array]:
    """Return the chunks of a column that have rows, or an empty one of its type.

    Arrow does not validate the offsets of an array without rows, but follows them, and aborts the
    process where they lead outside.
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
    """Bytes or text of any layout as binary."""
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
    """An array that stands for another: of a type that extends one, or with its values apart."""
    try:
        if isinstance(array, pa.ExtensionArray):
            return convert(array.storage, name)
        if isinstance(array, pa.DictionaryArray):
            # The values first: Arrow does not take from views.
            return validated(convert(array.dictionary, name).take(array.indices), name)
        if isinstance(array, pa.RunEndEncodedArray):
            # Loaded here: few need it, and it takes long.
            from pyarrow import compute

            decoded = cast("Array", compute.run_end_decode(array))  # type: ignore[attr-defined]
            return convert(decoded, name)
    except pa.ArrowException as error:
        text = f"column {name!r} is {shown_type(array.type)}, which cannot be read: {error}"
        raise Invalid(text, field=name) from error
    raise Invalid(f"column {name!r} is {shown_type(array.type)}, not {taken}", field=name)


class _Pairs(NamedTuple):
    """The headers of a chunk, without the rows that they are of."""

    is_whole: Flags
    """Which have a name and a value."""
    names: Array
    values: Array


def _pairs(lists: _Lists) -> _Pairs:
    try:
        pairs = lists.flatten()
        if isinstance(lists.type, pa.ListViewType | pa.LargeListViewType):
            # Of lists that may lie anywhere, Arrow has made others in their order.
            validated(pairs, "headers")
    except pa.ArrowException as error:
        text = f"column 'headers' is {shown_type(lists.type)}, which cannot be read: {error}"
        raise Invalid(text, field="headers") from error
    if not isinstance(pairs, pa.StructArray) or not _are_pairs(pairs.type):
        text = f"column 'headers' is {shown_type(lists.type)}, not {_HEADERS}"
        raise Invalid(text, field="headers")
    if not len(pairs):
        # The offsets of these were not validated either; see `_chunks`.
        return _Pairs(np.ones(0, np.bool_), pa.nulls(0, VALUE), pa.nulls(0, VALUE))
    names, values = (pairs.field(name) for name in _PAIR_NAMES)
    names, values = _part(names), _part(values)
    is_whole = np.ones(len(pairs), np.bool_)
    for array in (pairs, names, values):
        if array.null_count:
            is_whole &= array.is_valid().to_numpy(zero_copy_only=False)
    return _Pairs(is_whole, names, values)


def _part(array: Array) -> Array:
    """Names or values, which were validated with their lists, as binary."""
    # What has the layout already is not copied by the cast.
    is_same = array.type in (VALUE, pa.utf8())
    return cast("Array", array.cast(VALUE)) if is_same else _data(array, "headers")


def _lists(array: Array, name: str) -> Array:
    """Lists of any layout as such that can be flattened."""
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
    """An array that was validated, as another type."""
    try:
        return validated(array.cast(kind), name)
    except pa.ArrowException as error:
        text = (
            f"column {name!r} is {shown_type(array.type)}, which cannot be read as {kind}: {error}"
        )
        raise Invalid(text[:1000], field=name) from error
