"""Positions: how far a follower has read, as a token that it can store anywhere.

Rule 1: a position names the history of each shard. After a restore or takeover the queue checks
whether it still holds; a bare seq would silently continue among other messages.
Rule 2: a token is opaque, versioned and has a checksum, so that a damaged one is refused. It grants
nothing: any reader of the queue may start anywhere in it.
"""

from __future__ import annotations

import asyncio
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.shards import Shards, ask_all
from millrace.core.commands import AwaitCursor, Locate
from millrace.core.model import CursorPosition as Place
from millrace.core.model import ShardId
from millrace.decoding import msgpack_decoder
from millrace.errors import Invalid, NotFound, NotYet, RolledBack

TOKEN = "pos1."
"""Prefix of every token of this version."""

_CHECKSUM_BYTES = 4
_CHARACTERS_MAX = 128 * limits.SHARDS_MAX
"""Longer than any token."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_History = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]


class _Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    shard: _Count
    history: _History
    seq: _Count
    start: _Count
    end: _Count


class _Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[1]
    parts: Annotated[tuple[_Part, ...], msgspec.Meta(min_length=1, max_length=limits.SHARDS_MAX)]


_decoder = msgpack_decoder(_Token)


class Position(msgspec.Struct, frozen=True):
    """A follower's offset in a queue, exact even after a restore or takeover.

    `str(position)` is a token to store, and `Position.parse` reads it; functions that take a
    position also take its token.
    """

    parts: tuple[tuple[ShardId, Place], ...]
    """For each shard its id, and history, seq, snapshot start and snapshot end."""

    @classmethod
    def parse(cls, token: str) -> Position:
        """Parse the token of a position.

        Raises:
            Invalid: the text is not a token of a position, or is damaged.
        """
        if len(token) > _CHARACTERS_MAX or not token.startswith(TOKEN):
            raise _no_position()
        text = token.removeprefix(TOKEN)
        try:
            data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
            if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
                raise _no_position()
            decoded = _decoder.decode(body)
        except (BadBase64, ValueError, msgspec.MsgspecError, RecursionError):
            raise _no_position() from None
        if any(not part.start <= part.seq <= part.end for part in decoded.parts):
            raise _no_position()
        return cls(
            tuple(
                (ShardId(part.shard), Place(part.history, part.seq, part.start, part.end))
                for part in decoded.parts
            )
        )

    def __str__(self) -> str:
        parts = tuple(
            _Part(shard, place.history, place.seq, place.snapshot_start, place.snapshot_end)
            for shard, place in self.parts
        )
        body = msgspec.msgpack.encode(_Token(1, parts))
        checksum = zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big")
        return TOKEN + urlsafe_b64encode(body + checksum).rstrip(b"=").decode()

    def __repr__(self) -> str:
        seqs = "+".join(str(place.seq) for _, place in self.parts)
        return f"<Position {seqs} of {self.history.hex()[:8]}>"

    @property
    def history(self) -> bytes:
        """History (unbroken sequence of changes) that the position is in; with several shards, the
        first one's."""
        return self.parts[0][1].history

    @property
    def seq(self) -> int:
        """Seq up to which everything was read; with several shards, in the first one."""
        return self.parts[0][1].seq

    @property
    def seqs(self) -> tuple[int, ...]:
        """Seq up to which everything was read, for each shard."""
        return tuple(place.seq for _, place in self.parts)

    @property
    def snapshot_start(self) -> int:
        """Start of the snapshot that the position lies in; with several shards, the first one's."""
        return self.parts[0][1].snapshot_start

    @property
    def snapshot_end(self) -> int:
        """End of that snapshot; with several shards, the first one's."""
        return self.parts[0][1].snapshot_end


def _no_position() -> Invalid:
    return Invalid(
        "this is not the token of a position, or it is damaged; take `position` of a snapshot, a "
        "cursor or the queue",
        field="position",
    )


def is_position(value: object) -> bool:
    """Return True if a value is a position, or text that begins like a token."""
    return isinstance(value, Position) or (type(value) is str and value.startswith(TOKEN))


def read_position(value: object, shards: Shards) -> dict[ShardId, Place]:
    """Return the place in each shard of a queue, from a position or its token.

    Raises:
        Invalid: the value is not a position.
        NotFound: it is of another queue, or of an earlier one of the same name.
    """
    if not isinstance(value, Position):
        if type(value) is not str:
            raise _no_position()
        value = Position.parse(value)
    if tuple(shard for shard, _ in value.parts) != shards.ids:
        raise NotFound(
            f"the position is not of the queue {shards.label!r}, or the queue was deleted and made "
            "anew since; start at the beginning",
            field="position",
        )
    return dict(value.parts)


async def locate(
    engine: Engine, shards: Shards, places: dict[ShardId, Place] | None = None
) -> Position:
    """Return where a follower continues in the current history; without places, the queue's end.

    Raises:
        CursorExpired: rows that it would have to read next have been removed.
    """
    current = await ask_all(
        engine,
        shards,
        lambda shard: Locate(None if places is None else places[shard]),
        Place,
    )
    return Position(tuple(zip(shards.ids, current, strict=True)))


async def see_places(
    engine: Engine, shards: Shards, places: dict[ShardId, Place], hint: str
) -> tuple[int, ...]:
    """Check that everything up to these places still stands; return their seqs.

    Raises:
        RolledBack: it was undone; the position says how far, the `hint` what to do.
        CursorExpired: rows that come next have been removed.
    """
    current = await locate(engine, shards, places)
    seqs = tuple(places[shard].seq for shard in shards.ids)
    if current.seqs != seqs:
        raise RolledBack(
            f"what was read up to {'+'.join(map(str, seqs))} was taken back to "
            f"{'+'.join(map(str, current.seqs))} by a restore or a takeover; {hint}",
            field="position",
            position=str(current),
        )
    return seqs


async def await_cursor(
    engine: Engine, shards: Shards, name: str, places: dict[ShardId, Place], wait: float | None
) -> None:
    """Wait until the cursor has committed everything up to these places.

    Raises:
        NotYet: the timeout of `wait` seconds has passed; None waits without limit.
    """
    loop = asyncio.get_running_loop()
    until = None if wait is None else loop.time() + wait
    # A cursor only advances: the answer of one shard holds while the others are asked.
    for shard in shards.ids:
        command = AwaitCursor(name, places[shard])
        while True:
            left = limits.WAIT_STEP_MS
            if until is not None:
                left = min(left, max(round((until - loop.time()) * 1000), 0))
            is_reached: bool | None = await engine.ask(shard, command, bool, wait_ms=left)
            if is_reached:
                break
            if until is not None and loop.time() >= until:
                raise NotYet(
                    f"cursor {name!r} has not committed the position within {wait} seconds; wait "
                    "for it again, and see that its follower runs",
                    field="wait",
                )


async def rolled_back(
    engine: Engine, shards: Shards, error: RolledBack, places: Sequence[Place]
) -> RolledBack:
    """Return the error with the position to go back to, for a follower that committed `places`."""
    position = await locate(engine, shards, dict(zip(shards.ids, places, strict=True)))
    return RolledBack(error.message, field=error.field, limit=error.limit, position=str(position))
