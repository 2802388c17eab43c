"""Validates all rows of a publish at once, as `validate` does for single messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.core import validate
from millrace.core.commands import Publish
from millrace.core.format.block import VALUE, Block, key_list
from millrace.core.format.column import Array, Column
from millrace.core.model import GROUP_HEADER, NewMessage, group_of
from millrace.core.state.view import View
from millrace.errors import Invalid, TooLarge

T = TypeVar("T")
R = TypeVar("R")


def bodies(value: Sequence[bytes]) -> Block:
    """Return the block of one publish, of bodies that are known to be bytes."""
    check_count(len(value))
    try:
        block = Block.of_bodies(value)
    except OverflowError as error:
        raise _too_large_together() from error
    whole_block(block)
    return block


def rows(value: object) -> Block:
    """Validate the rows of one publish: messages or bodies."""
    if not isinstance(value, list | tuple):
        raise Invalid(
            f"rows are {type(value).__name__}, not a list of bytes or messages, nor an Arrow table "
            "or batch",
            field="rows",
        )
    if not value:
        raise Invalid("rows are empty; there is nothing to publish", field="rows")
    check_count(len(value))
    if set(map(type, value)) == {bytes}:
        return bodies(value)
    return side_by_side(each(value, row))


def each(items: Sequence[T], make: Callable[[T], R]) -> list[R]:
    """Apply `make` to each row, in order.

    Raises:
        Invalid, TooLarge: as `make` does; the message names the row, from 0, if there are several.
    """
    made: list[R] = []
    try:
        for item in items:
            made.append(make(item))
    except (Invalid, TooLarge) as error:
        if len(items) == 1:
            raise
        raise in_row(len(made), error) from error
    return made


def in_row(at: int, error: Invalid | TooLarge) -> Invalid | TooLarge:
    """Return the same error with the row in its message."""
    return type(error)(f"row {at}: {error.message}", field=error.field, limit=error.limit)


def row(item: object) -> NewMessage:
    """Validate one of several rows: a message, or a body."""
    if isinstance(item, NewMessage):
        return validate.message(item.body, item.key, item.headers)
    if isinstance(item, tuple | list | Mapping):
        raise Invalid(
            f"a row is {type(item).__name__}, not bytes; for one with a key or headers take "
            "millrace.Message(body, key=..., headers=...)",
            field="rows",
        )
    return validate.message(item, None, None)


def side_by_side(checked: Sequence[NewMessage]) -> Block:
    """Return the block of rows that were validated one by one."""
    try:
        return Block.of_messages(checked)
    except OverflowError as error:
        raise _too_large_together() from error


def _too_large_together() -> TooLarge:
    return TooLarge(
        "the messages have more bytes than a block can count; publish in parts, or stage them",
        field="rows",
        limit=2**31 - 1,
    )


def check_count(number: int) -> None:
    """Check the number of rows of one publish."""
    if number > limits.PUBLISH_MESSAGES_MAX:
        raise TooLarge(
            f"{number} messages at once, up to {limits.PUBLISH_MESSAGES_MAX} are allowed; "
            "publish in parts, or stage them",
            field="rows",
            limit=limits.PUBLISH_MESSAGES_MAX,
        )


def whole_block(block: Block) -> None:
    """Check the limits of every row without a Python loop over rows.

    The block was checked (`Block.check`): this follows its offsets.
    """
    count = block.count
    if not count:
        raise Invalid("rows are empty; there is nothing to publish", field="rows")
    check_count(count)
    largest = block.bodies.largest()
    if largest > limits.BODY_BYTES_MAX:
        at = int(np.argmax(np.diff(block.bodies.bounds())))
        raise _in_rows(count, at, validate.body_too_large(largest))
    if block.keys is not None:
        _check_keys(block, block.keys)
    _check_block_headers(block)
    deletes = block.deletes()
    if deletes:
        absent = block.keys.absent(count) if block.keys is not None else None
        for at in deletes:
            if block.keys is None or (absent is not None and absent[at]):
                raise Invalid(
                    f"row {at} has neither a value nor the key that it deletes", field="key"
                )


def _in_rows(count: int, at: int, error: Invalid | TooLarge) -> Invalid | TooLarge:
    return error if count == 1 else in_row(at, error)


def _check_keys(block: Block, keys: Column) -> None:
    sizes = np.diff(keys.bounds())
    at = int(np.argmax(sizes))
    if sizes[at] > limits.KEY_BYTES_MAX:
        text = f"a key has {sizes[at]} bytes, up to {limits.KEY_BYTES_MAX} are allowed"
        too_long = TooLarge(text, field="key", limit=limits.KEY_BYTES_MAX)
        raise _in_rows(block.count, at, too_long)
    absent = keys.absent(block.count)
    is_empty = sizes == 0 if absent is None else (sizes == 0) & ~absent
    if is_empty.any():
        empty = Invalid("a key is empty; make it null instead", field="key")
        raise _in_rows(block.count, int(np.argmax(is_empty)), empty)


def _check_block_headers(block: Block) -> None:
    lists, names, values = block.header_lists, block.header_names, block.header_values
    if lists is None or names is None or values is None:
        return
    ends = np.frombuffer(lists, np.int32)
    check_header_counts(np.diff(ends))
    # In 64 bits: both together may have more bytes than an offset can count.
    bounds = names.bounds()[ends].astype(np.int64) + values.bounds()[ends]
    sizes = np.diff(bounds)
    at = int(np.argmax(sizes))
    refused = validate.headers_refused(0, int(sizes[at]))
    if refused is not None:
        raise _in_rows(block.count, at, refused)
    pairs = int(ends[-1])
    array = names.array(pa.binary(), pairs)
    if not _is_text(array):
        at = int(np.searchsorted(ends, _first_no_text(array), side="right")) - 1
        bad = Invalid("the name of a header is no UTF-8", field="headers")
        raise _in_rows(block.count, at, bad)


def check_header_counts(counts: np.ndarray[tuple[int], np.dtype[np.integer[Any]]]) -> None:
    """Check the number of headers of each row.

    Raises:
        TooLarge: a row has too many.
    """
    at = int(np.argmax(counts)) if len(counts) else 0
    refused = validate.headers_refused(int(counts[at]), 0) if len(counts) else None
    if refused is not None:
        raise _in_rows(len(counts), at, refused)


def _is_text(array: Array) -> bool:
    try:
        array.cast(pa.utf8())
    except pa.ArrowInvalid:
        return False
    return True


def _first_no_text(array: Array) -> int:
    """Return the first value that is no UTF-8, by binary search: there may be millions."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_text(array.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


# --- Limit of values that vary by row ------------------------------------------------------------
# A group, deduplication id, delay, priority or TTL that differs from row to row is a cell, and the
# cells of a publish are written in one step. Other commands wait for that step, so an engine that
# serves a network bounds it.

_KINDS = 4
"""Kinds of values that a row may have: group, id, schedule and TTL."""


def check_own_values(publishes: Iterable[tuple[View, Publish]]) -> TooLarge | None:
    """Check the number of values that vary by row, over all publishes of a command."""
    commands = list(publishes)
    limit = limits.PUBLISH_OWN_VALUES_MAX
    if sum(_count(command.rows) for _, command in commands) * _KINDS <= limit:
        return None
    totals = {"group": 0, "dedup": 0, "delay": 0, "ttl": 0}
    for view, command in commands:
        totals["dedup"] += _ids(view, command)
        totals["delay"] += len(command.aside)
        totals["ttl"] += len(command.lives)
        if view.spec.is_grouped or view.topic is not None:
            totals["group"] += _groups(command.rows)
    total = sum(totals.values())
    if total <= limit:
        return None
    field = max(totals, key=totals.__getitem__)
    return TooLarge(
        f"the messages have {total} groups, de-duplication ids, delays, priorities and times to "
        f"live that differ from message to message, up to {limit} are allowed at once; send "
        "smaller batches",
        field=field,
        limit=limit,
    )


def _count(rows: Block | tuple[NewMessage, ...]) -> int:
    return rows.count if isinstance(rows, Block) else len(rows)


def _ids(view: View, command: Publish) -> int:
    if command.by_body and view.spec.dedup_by_body:
        return _count(command.rows)
    return sum(message_id is not None for message_id in command.ids)


def _groups(rows: Block | tuple[NewMessage, ...]) -> int:
    """Count the groups of these rows, or more: a key is also counted if the row names a group.

    No objects are made of a block's headers.
    """
    if not isinstance(rows, Block):
        return len({group_of(message.key, message.headers) for message in rows})
    count = len(set(key_list(rows))) if rows.keys is not None else 0
    names, values = rows.header_names, rows.header_values
    if names is None or values is None:
        return count
    pairs = len(names.offsets) // 4 - 1
    named = cast("pa.BinaryArray", names.array(VALUE, pairs))
    groups = values.array(VALUE, pairs).filter(pc.starts_with(named, GROUP_HEADER))
    return count + int(pc.count_distinct(groups).as_py())
