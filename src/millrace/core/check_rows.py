"""What is judged of the rows of one publish: as `check` does of one message, but all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from millrace import limits
from millrace.core import check
from millrace.core.block import Block
from millrace.core.column import Column
from millrace.core.model import Message
from millrace.errors import Invalid, TooLarge


def bodies(value: Sequence[bytes]) -> Block:
    """Rows for one publish, of bodies that are known to be bytes."""
    _check_rows(len(value))
    try:
        block = Block.of_bodies(value)
    except OverflowError as error:
        raise _too_large_together() from error
    whole_block(block)
    return block


def rows(value: object) -> Block:
    """Rows for one publish: messages, bodies, or an Arrow batch with value, key and headers."""
    if isinstance(value, pa.RecordBatch):
        found = Block.of_arrow(value)
        whole_block(found)
        return found
    if not isinstance(value, list | tuple):
        raise Invalid(
            f"rows are {type(value).__name__}, not a list of bytes or messages or an Arrow batch",
            field="rows",
        )
    if not value:
        raise Invalid("rows are empty; there is nothing to publish", field="rows")
    _check_rows(len(value))
    if set(map(type, value)) == {bytes}:
        return bodies(value)
    return side_by_side([row(item) for item in value])


def row(item: object) -> Message:
    """One of several rows: a message, or a body."""
    if isinstance(item, Message):
        return check.message(item.body, item.key, item.headers)
    if isinstance(item, tuple | list | Mapping):
        raise Invalid(
            f"a row is {type(item).__name__}, not bytes; for one with a key or headers take "
            "millrace.Message(body, key=..., headers=...)",
            field="rows",
        )
    return check.message(item, None, None)


def side_by_side(checked: Sequence[Message]) -> Block:
    """Rows that were checked one by one."""
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


def _check_rows(number: int) -> None:
    if number > limits.PUBLISH_MESSAGES_MAX:
        raise TooLarge(
            f"{number} messages at once, up to {limits.PUBLISH_MESSAGES_MAX} are allowed; "
            "publish in parts, or stage them",
            field="rows",
            limit=limits.PUBLISH_MESSAGES_MAX,
        )


def _has_empty(column: Column, count: int) -> bool:
    """Whether a value is there, but has no bytes."""
    empty = np.diff(column.bounds()) == 0
    absent = column.absent(count)
    return bool((empty & ~absent).any() if absent is not None else empty.any())


def whole_block(block: Block) -> None:
    """The limits of every row, found without looking at each one in Python."""
    if not block.count:
        raise Invalid("rows are empty; there is nothing to publish", field="rows")
    _check_rows(block.count)
    largest = block.bodies.largest()
    if largest > limits.BODY_BYTES_MAX:
        raise check.body_too_large(largest)
    if block.keys is not None and block.keys.largest() > limits.KEY_BYTES_MAX:
        raise TooLarge(
            f"a key has {block.keys.largest()} bytes, up to {limits.KEY_BYTES_MAX} are allowed",
            field="key",
            limit=limits.KEY_BYTES_MAX,
        )
    if block.keys is not None and _has_empty(block.keys, block.count):
        raise Invalid("a key is empty; make it null instead", field="key")
    _check_block_headers(block)
    if block.deletes():
        absent = block.keys.absent(block.count) if block.keys is not None else None
        for at in block.deletes():
            if block.keys is None or (absent is not None and absent[at]):
                raise Invalid(
                    f"row {at} has neither a value nor the key that it deletes", field="key"
                )


def _check_block_headers(block: Block) -> None:
    lists, names, values = block.header_lists, block.header_names, block.header_values
    if lists is None or names is None or values is None:
        return
    ends = np.frombuffer(lists, np.int32)
    sizes = np.diff(names.bounds()[ends]) + np.diff(values.bounds()[ends])
    check.check_headers(int(np.diff(ends).max()), int(sizes.max()))
    try:
        names.array(pa.binary(), int(ends[-1])).cast(pa.utf8())
    except pa.ArrowInvalid as error:
        raise Invalid("the name of a header is no UTF-8", field="headers") from error
