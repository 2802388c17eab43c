"""A snapshot as text, for those who hold nothing in memory between two calls.

A ticket proves nothing: it says what to read, and whoever may read the queue could have asked for
that. It is checked field by field when it comes back.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from millrace import limits
from millrace.client.cursor import Cursor, Snapshot
from millrace.client.queue import Queue, engine_and_shards
from millrace.core import bounds, check
from millrace.core.answers import SnapshotRef
from millrace.core.fold import Reader
from millrace.core.model import CursorCell, Position, ShardId
from millrace.decoding import msgpack_decoder
from millrace.errors import Invalid, NotFound

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_History = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class _Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a snapshot is of one shard."""

    shard: _Count
    pin: _Count
    history: _History
    after: _Count
    retain: bool
    index: _Count
    boundary: _Count
    start: _Count
    cursor: _Count
    claim: Annotated[bytes, msgspec.Meta(max_length=bounds.CURSOR_CLAIM_BYTES)] = b""


class _Ticket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[1, 2]
    """1: of before cursors were claimed. Such a one commits where nobody has claimed since."""
    parts: Annotated[tuple[_Part, ...], msgspec.Meta(min_length=1, max_length=limits.SHARDS_MAX)]
    cursor: str
    number: _Count


_decoder = msgpack_decoder(_Ticket)


def write_ticket(snapshot: Snapshot) -> str:
    """The snapshot as text."""
    ids = snapshot._cursor_ids or [0] * len(snapshot._refs)
    parts = tuple(
        _Part(
            shard,
            ref.pin,
            ref.history,
            ref.after,
            ref.retain,
            ref.index,
            ref.boundary,
            ref.start,
            cursor,
            ref.claim,
        )
        for shard, ref, cursor in zip(snapshot._shards.ids, snapshot._refs, ids, strict=True)
    )
    name = snapshot._cursor.name if snapshot._cursor is not None else ""
    data = msgspec.msgpack.encode(_Ticket(2, parts, name, snapshot._number))
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def read_ticket(queue: Queue, text: str) -> Snapshot:
    """The snapshot behind the text; whether it is still pinned is seen when it is read.

    Raises:
        Invalid: it is no ticket.
        NotFound: it is of another queue, or of an earlier one of the same name.
    """
    ticket = _decoded(text)
    engine, shards = engine_and_shards(queue)
    if tuple(part.shard for part in ticket.parts) != shards.ids:
        raise NotFound("the snapshot is not of this queue; take another", field="snapshot")
    refs: list[SnapshotRef] = []
    for part in ticket.parts:
        # Without a pin there is nothing to read.
        if part.boundary < part.after or (part.boundary > part.after and not part.pin):
            raise _no_ticket()
        refs.append(
            SnapshotRef(
                part.pin,
                part.history,
                part.after,
                part.retain,
                part.index,
                part.boundary,
                part.start,
                part.claim,
            )
        )
    if not ticket.cursor:
        return Snapshot(engine, shards, refs)
    ids = [part.cursor for part in ticket.parts]
    cells = [
        CursorCell(
            number,
            ref.retain,
            Position(ref.history, ref.after, ref.start, ref.boundary),
            0,
            claim=ref.claim,
        )
        for number, ref in zip(ids, refs, strict=True)
    ]
    cursor = Cursor(engine, shards, check.name(ticket.cursor, "snapshot"), cells)
    return Snapshot(engine, shards, refs, cursor, ids, ticket.number)


def _decoded(text: str) -> _Ticket:
    try:
        return _decoder.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (BadBase64, ValueError, msgspec.MsgspecError, RecursionError):
        raise _no_ticket() from None


def _no_ticket() -> Invalid:
    return Invalid("this is not the text of a snapshot; take another", field="snapshot")


def cursor_of(snapshot: Snapshot) -> Cursor | None:
    """Whose snapshot it is; None: nobody's."""
    return snapshot._cursor


def go_on_after(cursor: Cursor, snapshot: Snapshot) -> None:
    """The cursor's reader has read this, and has not committed it.

    Raises:
        Invalid: it is a snapshot of something else.
    """
    owner = cursor_of(snapshot)
    if owner is None or owner.name != cursor.name:
        raise Invalid("the snapshot is not of this cursor", field="read")
    cursor._read = [ref.boundary for ref in snapshot._refs]
    cursor._history = snapshot._refs[0].history
    use_claims(cursor, [ref.claim for ref in snapshot._refs])


def claims_of(cursor: Cursor) -> list[bytes]:
    """What its follower was given when it opened it, in each shard."""
    return list(cursor._claims)


def write_claim(cursor: Cursor) -> str:
    """The same as text."""
    return urlsafe_b64encode(b"".join(cursor._claims)).rstrip(b"=").decode()


def read_claims(text: str) -> list[bytes]:
    """The claims behind the text; whether they hold is seen when they are used.

    Raises:
        Invalid: it is no claim.
    """
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (BadBase64, ValueError):
        data = b""
    size = bounds.CURSOR_CLAIM_BYTES
    if not data or len(data) % size or len(data) > size * limits.SHARDS_MAX:
        raise Invalid("this is no claim; open the cursor to be given one", field="claim")
    return [data[at : at + size] for at in range(0, len(data), size)]


def use_claims(cursor: Cursor, claims: Sequence[bytes] | None) -> None:
    """Go on by these claims; None: there are none, and the next snapshot is claimed.

    Raises:
        Invalid: they are not as many as the queue has shards.
    """
    if claims is not None and len(claims) != len(cursor._cells):
        raise Invalid("the claim is not of a cursor of this queue", field="claim")
    cursor._takes = claims is None
    cursor._claims = list(claims or [b""] * len(cursor._cells))


def go_on_at(cursor: Cursor, seqs: Sequence[int]) -> None:
    """The cursor's reader has read so far in each shard, and has not committed it."""
    cursor._read = list(seqs)


def spans_of(snapshot: Snapshot) -> Sequence[tuple[ShardId, int, int, Reader]]:
    """What is read of each shard: (after, boundary], and by whom."""
    return [
        (shard, ref.after, ref.boundary, Reader(ref.pin, ref.retain))
        for shard, ref in zip(snapshot._shards.ids, snapshot._refs, strict=True)
    ]


def narrowed(snapshot: Snapshot, afters: Sequence[int], uptos: Sequence[int]) -> Snapshot:
    """The rows of a pinned snapshot after one place of each shard, up to and with another.

    It is read through the same pin, and cannot be committed.
    """
    refs = [
        msgspec.structs.replace(ref, after=after, boundary=upto)
        for ref, after, upto in zip(snapshot._refs, afters, uptos, strict=True)
    ]
    return Snapshot(snapshot._engine, snapshot._shards, refs)


def with_kept(snapshot: Snapshot) -> Snapshot:
    """The same, with the rows that are settled and kept for cursors: all that counts as live."""
    refs = [msgspec.structs.replace(ref, retain=True) for ref in snapshot._refs]
    return Snapshot(snapshot._engine, snapshot._shards, refs)
