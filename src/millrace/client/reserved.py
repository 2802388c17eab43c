"""Names of headers and notes that the server alone writes.

The server acts on them, tells them as its own and signs some of them: which topic a message came
from, who sent it, in which queue it became a dead letter. A client that could write them would
speak in the name of others.

Rule 1: every API over a network or a socket refuses them, in messages and in notes. A front end
calls `check_headers`, `check_column` or `check_notes` on what a client names; commands of other
processes go through `check_command`.
Rule 2: programs that copy messages drop them (`plain_headers`, `plain_column`): the copy is a
message of their own.
Rule 3: the server moves messages with these headers, and a client may have a message moved whole
(`server/moved.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core import check
from millrace.core.block import Block
from millrace.core.bury import PREFIX as DEAD_PREFIX
from millrace.core.carry import DELAY, PRIORITY, TTL
from millrace.core.column import Array
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


def check_column(column: pa.ChunkedArray[Any]) -> None:
    """Refuse a column of headers that has some which a client may not name.

    A column of another type is left to the code that reads it: it has no names.

    Raises:
        Invalid: the error names the first of them.
    """
    for chunk in column.chunks:
        names = _names(chunk)
        if names is None:
            continue
        flags = _reserved(names)
        for parameter in PARAMETERS:
            flags |= np.asarray(pc.equal(names, pa.scalar(parameter)))
        at = np.flatnonzero(flags)
        if len(at):
            raise refused(str(names[int(at[0])].as_py()))


def plain_column(column: Array) -> Array:
    """Return a column of headers without those that a copy of a message may not have."""
    names = _names(column)
    flags = None if names is None else _reserved(names)
    if flags is None or not flags.any():
        return column
    lists = cast("pa.ListArray[pa.StructScalar]", column)
    lengths = np.asarray(lists.value_lengths().fill_null(0), np.int64)
    of_rows = np.repeat(np.arange(len(lists)), lengths)
    left = np.bincount(of_rows[~flags], minlength=len(lists))
    offsets = pa.array(np.concatenate([[0], np.cumsum(left)]), pa.int32())
    items = lists.flatten().filter(pa.array(~flags))
    # A row without headers has an empty list then, which means the same.
    return cast("Array", pa.ListArray.from_arrays(offsets, items).cast(column.type))


def _names(column: Array) -> Any:
    """The names of all headers in a column, one after the other; None: it is no such column."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    pairs: Any = cast("pa.ListArray[pa.StructScalar]", column).flatten()
    if not pa.types.is_struct(pairs.type) or not pairs.type.num_fields:
        return None
    # Of the type that a queue stores: a cast fails where the publish would.
    try:
        return pairs.field(0).cast(pa.utf8()).fill_null("")
    except pa.ArrowException as error:
        raise Invalid(f"column 'headers' is {kind}: {error}", field="headers") from error


def _reserved(names: Any) -> Flags:
    flags = np.zeros(len(names), np.bool_)
    for prefix in PREFIXES:
        flags |= np.asarray(pc.starts_with(names, prefix))
    return flags


def in_block(block: Block) -> bool:
    """Return whether a message of a block has a header that a client may not name."""
    names = block.header_names
    if names is None:
        return False
    # Most blocks have none of these letters in a row; to look for them costs little.
    data = bytes(names.data)
    if not any(mark in data for mark in _MARKS):
        return False
    count = len(names.offsets) // 4 - 1
    return bool(_reserved(names.array(pa.utf8(), count)).any())


# --- Commands ------------------------------------------------------------------------------------


def in_messages(rows: Block | tuple[Message, ...]) -> bool:
    """Return whether one of these messages has a header that a client may not name."""
    if isinstance(rows, Block):
        return in_block(rows)
    return any(name.startswith(PREFIXES) for message in rows for name, _ in message.headers)


def check_messages(rows: Block | tuple[Message, ...]) -> None:
    """Refuse messages with headers that a client may not name.

    Raises:
        Invalid: the error names the header.
    """
    if not in_messages(rows):
        return
    found = rows.rows(0, rows.count, 0, 0) if isinstance(rows, Block) else rows
    for message in found:
        for name, _ in message.headers:
            if name.startswith(PREFIXES):
                raise refused(name)


def needs_proof(command: Command) -> bool:
    """Return whether a command has reserved headers that may be those of a message it ends."""
    if isinstance(command, Replace):
        return in_messages((command.message,))
    if not isinstance(command, Transaction):
        return False
    return any(isinstance(part, Publish) and in_messages(part.rows) for _, part in command.parts)


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
        case CreateTopic() | ConfigureTopic() | Subscribe() | ConfigureSubscription():
            check_notes(command.notes)
        case _:
            pass
