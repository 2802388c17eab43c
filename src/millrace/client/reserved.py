"""Names of headers and notes that the server alone writes.

The server acts on them, tells them as its own and signs some of them: which topic a message came
from, who sent it, in which queue it became a dead letter. A client that could write them would
speak in the name of others.

Rule 1: every API over a network or a socket refuses them, in messages and in notes. A front end
calls `check_headers`, `check_names` or `check_notes` on what a client names; commands of other
processes go through `check_command`.
Rule 2: programs that copy messages drop them (`plain_headers`, `plain_column`): the copy is a
message of their own.
Rule 3: the server moves messages with these headers, and a client may have a message moved whole
(`server/moved.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core import check
from millrace.core.block import SCHEMA, VALUE, Block
from millrace.core.bury import PREFIX as DEAD_PREFIX
from millrace.core.carry import DELAY, PRIORITY, TTL
from millrace.core.column import Array, Column
from millrace.core.commands import (
    Command,
    Configure,
    CreateQueue,
    Publish,
    SpecPart,
    Stage,
    Transaction,
)
from millrace.core.group_cells import GROUP_HEADER
from millrace.core.leased_commands import Replace
from millrace.core.model import Headers, Message
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    Subscribe,
)
from millrace.errors import Invalid

SERVICES = "aws."
"""Before the names of headers and notes that the services of AWS keep."""

PREFIXES = (SERVICES, DEAD_PREFIX)
"""Headers whose names begin so are written by the server alone."""

NOTE_PREFIXES = (*PREFIXES, "raw:", "subscription:", "guest-raw:", "guest-subscription:")
"""Notes whose names begin so, too."""

SECRET_NOTE = f"{SERVICES}token"
"""A note of subscriptions that versions before have made: by which an endpoint confirms."""

PARAMETERS = {
    GROUP_HEADER: "group",
    PRIORITY: "priority",
    DELAY: "delay",
    TTL: "ttl",
}
"""Headers that stand for a parameter of a publish: APIs where headers are named take the parameter
alone, so that it is checked and has one meaning."""

_HEADERS = SCHEMA.field("headers").type

_MARKS = tuple(prefix.encode() for prefix in PREFIXES)


def is_reserved(name: str) -> bool:
    """Return whether a client may not name a header so."""
    return name.startswith(PREFIXES)


def plain_headers(headers: Headers) -> Headers:
    """Return the headers that a copy of a message may have."""
    if not any(name.startswith(PREFIXES) for name, _ in headers):
        return headers
    return tuple(pair for pair in headers if not pair[0].startswith(PREFIXES))


def successor_headers(headers: Headers) -> Headers:
    """Return the headers that the successor of a message has by itself: what services of AWS know
    of a message goes with its body, and how it became a dead letter stays."""
    if not any(name.startswith(SERVICES) for name, _ in headers):
        return headers
    return tuple(pair for pair in headers if not pair[0].startswith(SERVICES))


def refused(name: str) -> Invalid:
    """Return the error about a header that a client has named."""
    parameter = PARAMETERS.get(name)
    if parameter is not None:
        return Invalid(
            f"header {check.shown(name)} stands for {parameter!r}; give {parameter!r} instead",
            field="headers",
        )
    return Invalid(
        f"header {check.shown(name)}: the server alone writes headers that begin with "
        f"{' or '.join(map(repr, PREFIXES))}; leave it out, also of a copy",
        field="headers",
    )


def check_headers(names: Iterable[str]) -> None:
    """Refuse headers that a client may not name, those of parameters too.

    Raises:
        Invalid: the error names the header.
    """
    for name in names:
        if name.startswith(PREFIXES) or name in PARAMETERS:
            raise refused(name)


def check_notes(notes: Mapping[str, str] | Iterable[tuple[str, str]] | None) -> None:
    """Refuse notes that a client may not name.

    Raises:
        Invalid: the error names the note.
    """
    for name in dict(notes or ()):
        if name.startswith(NOTE_PREFIXES):
            raise Invalid(
                f"note {check.shown(name)}: the server alone writes notes that begin with "
                f"{', '.join(map(repr, NOTE_PREFIXES))}; leave it out",
                field="notes",
            )


# --- Columns -------------------------------------------------------------------------------------

Flags = npt.NDArray[np.bool_]


def check_names(names: Array) -> None:
    """Refuse names of headers that a client may not use, those of parameters too.

    `names` are the names as they are stored, one after the other. Columns are sent in several
    layouts, so they are converted first: a second reader of the layouts could differ from the one
    that stores.

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
    """Return a column of headers, of the type that is stored, without those that a copy of a
    message may not have.

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
    # A row without headers has an empty list then, which means the same.
    return cast("Array", pa.ListArray.from_arrays(offsets, plain).cast(column.type))


def _reserved(names: Array) -> Flags:
    flags = np.zeros(len(names), np.bool_)
    for prefix in PREFIXES:
        flags |= np.asarray(pc.starts_with(cast("pa.BinaryArray", names), prefix))
    return flags


def _first(names: Array, flags: Flags) -> str | None:
    """The first name that is flagged."""
    if not flags.any():
        return None
    found = bytes(names.slice(int(np.argmax(flags)), 1).cast(VALUE)[0].as_py())
    # Names of Arrow columns are checked to be text after this.
    return found.decode(errors="replace")


def flagged_in(block: Block) -> Flags | None:
    """Return which headers of a block a client may not name, in their order; None: none of them."""
    names = block.header_names
    if names is None:
        return None
    # Most blocks have none of these letters in a row; to look for them costs little.
    data = bytes(names.data)
    if not any(mark in data for mark in _MARKS):
        return None
    flags = _reserved(_names(names))
    return flags if flags.any() else None


def _names(column: Column) -> Array:
    return column.array(VALUE, len(column.offsets) // 4 - 1)


# --- Commands ------------------------------------------------------------------------------------


def reserved_name(rows: Block | tuple[Message, ...]) -> str | None:
    """Return the first name of a header in these messages that a client may not use.

    No objects are made of a block's messages: it may have millions of headers.
    """
    if not isinstance(rows, Block):
        return next(
            (name for message in rows for name, _ in message.headers if is_reserved(name)), None
        )
    flags = flagged_in(rows)
    if flags is None or rows.header_names is None:
        return None
    return _first(_names(rows.header_names), flags)


def check_messages(rows: Block | tuple[Message, ...]) -> None:
    """Refuse messages with headers that a client may not name.

    Raises:
        Invalid: the error names the header.
    """
    name = reserved_name(rows)
    if name is not None:
        raise refused(name)


def needs_proof(command: Command) -> bool:
    """Return whether a command has reserved headers that may be those of a message it ends."""
    if isinstance(command, Replace):
        return reserved_name((command.message,)) is not None
    if not isinstance(command, Transaction):
        return False
    return any(
        isinstance(part, Publish) and reserved_name(part.rows) is not None
        for _, part in command.parts
    )


def check_command(command: Command) -> None:
    """Refuse a command of another process that writes reserved headers or notes.

    Not so of the parts of a transaction and of `Replace`, which may move a message: see
    `needs_proof`.

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
