"""Names of headers and notes that only the server may write.

The server acts on them, reports them as its own and signs some of them: the topic and sender of a
message, or the queue in which it became a dead letter. A client that wrote them could impersonate
others.

Rule 1: every API over a network or a socket refuses them, in messages and in notes. A front end
calls `check_headers`, `check_names` or `check_notes` on a client's input; commands of other
processes go through `check_command`.
Rule 2: programs that copy messages drop them (`plain_headers`, `plain_column`): the copy is a
message of their own.
Rule 3: the server moves messages with these headers, and a client may have a message moved whole
(`server/rpc/moved_messages.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core import validate
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    Configure,
    CreateQueue,
    Publish,
    Replace,
    SpecPart,
    Stage,
)
from millrace.core.format.block import SCHEMA, VALUE, Block
from millrace.core.format.column import Array, Column
from millrace.core.model import GROUP_HEADER, Headers, NewMessage
from millrace.core.publishing.life_headers import DELAY, PRIORITY, TTL
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    Subscribe,
)
from millrace.core.transfer.dead_letter import PREFIX as DEAD_PREFIX
from millrace.errors import Invalid

SERVICES = "aws."
"""Prefix of headers and notes of the AWS APIs."""

PREFIXES = (SERVICES, DEAD_PREFIX)
"""Prefixes of headers that only the server writes."""

NOTE_PREFIXES = (*PREFIXES, "raw:", "subscription:", "guest-raw:", "guest-subscription:")
"""Prefixes of notes that only the server writes."""

SECRET_NOTE = f"{SERVICES}token"
"""Note of subscriptions made by earlier versions: the token with which an endpoint confirms."""

PARAMETERS = {
    GROUP_HEADER: "group",
    PRIORITY: "priority",
    DELAY: "delay",
    TTL: "ttl",
}
"""Headers that stand for a parameter of a publish. APIs with named headers accept the parameter
only, so that it is validated and has one meaning."""

_HEADERS = SCHEMA.field("headers").type

_MARKS = tuple(prefix.encode() for prefix in PREFIXES)


def is_reserved(name: str) -> bool:
    """Return True if clients may not use this header name."""
    return name.startswith(PREFIXES)


def plain_headers(headers: Headers) -> Headers:
    """Return the headers without reserved ones, for a copy of a message."""
    if not any(name.startswith(PREFIXES) for name, _ in headers):
        return headers
    return tuple(pair for pair in headers if not pair[0].startswith(PREFIXES))


def successor_headers(headers: Headers) -> Headers:
    """Return the headers that a successor inherits: without those of the AWS APIs, which describe
    the old body, but with those of dead letters."""
    if not any(name.startswith(SERVICES) for name, _ in headers):
        return headers
    return tuple(pair for pair in headers if not pair[0].startswith(SERVICES))


def refused(name: str) -> Invalid:
    """Return the error for a header name that a client used."""
    parameter = PARAMETERS.get(name)
    if parameter is not None:
        return Invalid(
            f"header {validate.shown(name)} stands for {parameter!r}; give {parameter!r} instead",
            field="headers",
        )
    return Invalid(
        f"header {validate.shown(name)}: the server alone writes headers that begin with "
        f"{' or '.join(map(repr, PREFIXES))}; leave it out, also of a copy",
        field="headers",
    )


def check_headers(names: Iterable[str]) -> None:
    """Refuse header names that clients may not use, including those of parameters.

    Raises:
        Invalid: the error names the header.
    """
    for name in names:
        if name.startswith(PREFIXES) or name in PARAMETERS:
            raise refused(name)


def check_notes(notes: Mapping[str, str] | Iterable[tuple[str, str]] | None) -> None:
    """Refuse note names that clients may not use.

    Raises:
        Invalid: the error names the note.
    """
    for name in dict(notes or ()):
        if name.startswith(NOTE_PREFIXES):
            raise Invalid(
                f"note {validate.shown(name)}: the server alone writes notes that begin with "
                f"{', '.join(map(repr, NOTE_PREFIXES))}; leave it out",
                field="notes",
            )


# --- Columns -------------------------------------------------------------------------------------

Flags = npt.NDArray[np.bool_]


def check_names(names: Array) -> None:
    """Refuse header names that clients may not use, including those of parameters.

    `names` is a column in the stored layout. Columns arrive in several layouts and are converted
    before, so that the check and the store cannot read them differently.

    Raises:
        Invalid: the error names the first of them.
    """
    flags = _reserved(names)
    for parameter in PARAMETERS:
        flags |= np.asarray(pc.equal(names, pa.scalar(parameter.encode(), names.type)))
    name = _first(names, flags)
    if name is not None:
        raise refused(name)


def plain_column(column: Array) -> Array:
    """Return a column of headers, in the stored layout, without reserved ones.

    Raises:
        TypeError: the column is of another type.
    """
    if column.type != _HEADERS:
        raise TypeError(f"headers are {column.type}, not {_HEADERS}")
    lists = cast("pa.ListArray[pa.StructScalar]", column)
    items = cast("pa.StructArray", lists.flatten())
    names = cast("pa.StringArray", items.field("name"))
    flags = _reserved(cast("Array", names.fill_null("") if names.null_count else names))
    if not flags.any():
        return column
    lengths = np.asarray(lists.value_lengths().fill_null(0), np.int64)
    of_rows = np.repeat(np.arange(len(lists)), lengths)
    left = np.bincount(of_rows[~flags], minlength=len(lists))
    offsets = pa.array(np.concatenate([[0], np.cumsum(left)]), pa.int32())
    plain = items.filter(pa.array(~flags))
    # Rows without headers become empty lists, which mean the same.
    return cast("Array", pa.ListArray.from_arrays(offsets, plain).cast(column.type))


def _reserved(names: Array) -> Flags:
    flags = np.zeros(len(names), np.bool_)
    for prefix in PREFIXES:
        flags |= np.asarray(pc.starts_with(cast("pa.BinaryArray", names), prefix))
    return flags


def _first(names: Array, flags: Flags) -> str | None:
    """Return the first flagged name."""
    if not flags.any():
        return None
    name = bytes(names.slice(int(np.argmax(flags)), 1).cast(VALUE)[0].as_py())
    # Only later are names of Arrow columns checked to be UTF-8.
    return name.decode(errors="replace")


def flagged_in(block: Block) -> Flags | None:
    """Return flags of the headers of a block that clients may not use, or None."""
    names = block.header_names
    if names is None:
        return None
    # Fast path: most blocks do not contain the bytes of a prefix anywhere.
    data = bytes(names.data)
    if not any(mark in data for mark in _MARKS):
        return None
    flags = _reserved(_names(names))
    return flags if flags.any() else None


def _names(column: Column) -> Array:
    return column.array(VALUE, len(column.offsets) // 4 - 1)


# --- Commands ------------------------------------------------------------------------------------


def reserved_name(rows: Block | tuple[NewMessage, ...]) -> str | None:
    """Return the first header name in these messages that clients may not use, or None.

    Blocks are searched as columns, without an object per message: they may have millions of
    headers.
    """
    if not isinstance(rows, Block):
        return next(
            (name for message in rows for name, _ in message.headers if is_reserved(name)), None
        )
    flags = flagged_in(rows)
    if flags is None or rows.header_names is None:
        return None
    return _first(_names(rows.header_names), flags)


def check_messages(rows: Block | tuple[NewMessage, ...]) -> None:
    """Refuse messages with headers that clients may not use.

    Raises:
        Invalid: the error names the header.
    """
    name = reserved_name(rows)
    if name is not None:
        raise refused(name)


def needs_proof(command: Command) -> bool:
    """Return True if a command has reserved headers, allowed only if copied from a message it
    ends."""
    if isinstance(command, Replace):
        return reserved_name((command.message,)) is not None
    if not isinstance(command, ApplyTransaction):
        return False
    return any(
        isinstance(part, Publish) and reserved_name(part.rows) is not None
        for _, part in command.parts
    )


def check_command(command: Command) -> None:
    """Refuse a command of another process that writes reserved headers or notes.

    Transactions and `Replace` are exempt here, since they may move a message: see `needs_proof`.

    Raises:
        Invalid: the error names the header or the note.
    """
    match command:
        case Publish() | Stage():
            check_messages(command.rows)
        case Configure() | CreateQueue():
            if isinstance(command.spec, SpecPart):
                check_notes(command.spec.notes)
        case Subscribe() | ConfigureSubscription():
            check_notes(command.notes)
            if command.durable or command.dead_letter or command.queue_notes:
                raise Invalid(
                    "the server alone makes subscriptions durable, and names their dead letters "
                    "and what they note with their queues",
                    field="durable",
                )
        case CreateTopic() | ConfigureTopic():
            check_notes(command.notes)
        case _:
            pass
