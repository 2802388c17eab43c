"""Snapshots as text tokens, for stateless servers between two calls.

A token grants nothing: it says what to read, and its holder could have requested the same. It is
validated field by field when it comes back.
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
from millrace.core import bounds, validate
from millrace.core.answers import SnapshotRef
from millrace.core.cells import CursorCell
from millrace.core.model import CursorPosition, ShardId
from millrace.core.state.fold import Reader
from millrace.decoding import msgpack_decoder
from millrace.errors import Invalid, NotFound

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_History = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class _Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a snapshot in one shard."""

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


class _Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[1, 2]
    """1: from before cursors had claims. Such a token commits if the cursor was not claimed
    since."""
    parts: Annotated[tuple[_Part, ...], msgspec.Meta(min_length=1, max_length=limits.SHARDS_MAX)]
    cursor: str
    number: _Count


_decoder = msgpack_decoder(_Token)


def write_snapshot_token(snapshot: Snapshot) -> str:
    """Return the token of a snapshot."""
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
    data = msgspec.msgpack.encode(_Token(2, parts, name, snapshot._number))
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def read_snapshot_token(queue: Queue, text: str) -> Snapshot:
    """Return the snapshot of a token; whether it is still pinned shows when it is read.

    Raises:
        Invalid: the text is not a token.
        NotFound: it is of another queue, or of an earlier one of the same name.
    """
    token = _decoded(text)
    engine, shards = engine_and_shards(queue)
    if tuple(part.shard for part in token.parts) != shards.ids:
        raise NotFound("the snapshot is not of this queue; take another", field="snapshot")
    refs: list[SnapshotRef] = []
    for part in token.parts:
        # Without a pin there is nothing to read.
        if part.boundary < part.after or (part.boundary > part.after and not part.pin):
            raise _no_token()
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
    if not token.cursor:
        return Snapshot(engine, shards, refs)
    ids = [part.cursor for part in token.parts]
    cells = [
        CursorCell(
            number,
            ref.retain,
            CursorPosition(ref.history, ref.after, ref.start, ref.boundary),
            0,
            claim=ref.claim,
        )
        for number, ref in zip(ids, refs, strict=True)
    ]
    cursor = Cursor(engine, shards, validate.name(token.cursor, "snapshot"), cells)
    return Snapshot(engine, shards, refs, cursor, ids, token.number)


def _decoded(text: str) -> _Token:
    try:
        return _decoder.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (BadBase64, ValueError, msgspec.MsgspecError, RecursionError):
        raise _no_token() from None


def _no_token() -> Invalid:
    return Invalid("this is not the text of a snapshot; take another", field="snapshot")


def cursor_of(snapshot: Snapshot) -> Cursor | None:
    """Return the cursor of a snapshot; None if it has none."""
    return snapshot._cursor


def resume_after(cursor: Cursor, snapshot: Snapshot) -> None:
    """Set the cursor's read position after an uncommitted snapshot.

    Raises:
        Invalid: it is a snapshot of another cursor.
    """
    owner = cursor_of(snapshot)
    if owner is None or owner.name != cursor.name:
        raise Invalid("the snapshot is not of this cursor", field="read")
    cursor._read = [ref.boundary for ref in snapshot._refs]
    cursor._history = snapshot._refs[0].history
    use_claims(cursor, [ref.claim for ref in snapshot._refs])


def claims_of(cursor: Cursor) -> list[bytes]:
    """Return the claims that the follower got when it opened the cursor, one per shard."""
    return list(cursor._claims)


def write_claim(cursor: Cursor) -> str:
    """Return the claims of a cursor as text."""
    return urlsafe_b64encode(b"".join(cursor._claims)).rstrip(b"=").decode()


def read_claims(text: str) -> list[bytes]:
    """Return the claims of a text; whether they are valid shows when they are used.

    Raises:
        Invalid: the text is not a claim.
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
    """Use these claims for the cursor; None: claim it with the next snapshot.

    Raises:
        Invalid: their number differs from that of the queue's shards.
    """
    if claims is not None and len(claims) != len(cursor._cells):
        raise Invalid("the claim is not of a cursor of this queue", field="claim")
    cursor._takes = claims is None
    cursor._claims = list(claims or [b""] * len(cursor._cells))


def resume_at(cursor: Cursor, seqs: Sequence[int]) -> None:
    """Set the cursor's read position in each shard, without committing it."""
    cursor._read = list(seqs)


def shard_ranges(snapshot: Snapshot) -> Sequence[tuple[ShardId, int, int, Reader]]:
    """Return the range (after, boundary] to read in each shard, and the reader."""
    return [
        (shard, ref.after, ref.boundary, Reader(ref.pin, ref.retain))
        for shard, ref in zip(snapshot._shards.ids, snapshot._refs, strict=True)
    ]


def narrow_snapshot(snapshot: Snapshot, afters: Sequence[int], uptos: Sequence[int]) -> Snapshot:
    """Return the part of a pinned snapshot between two places of each shard.

    It is read through the same pin, and cannot be committed.
    """
    refs = [
        msgspec.structs.replace(ref, after=after, boundary=upto)
        for ref, after, upto in zip(snapshot._refs, afters, uptos, strict=True)
    ]
    return Snapshot(snapshot._engine, snapshot._shards, refs)


def with_retained(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the settled rows that are retained for cursors: all that counts as
    live."""
    refs = [msgspec.structs.replace(ref, retain=True) for ref in snapshot._refs]
    return Snapshot(snapshot._engine, snapshot._shards, refs)
