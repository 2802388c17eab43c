"""Positions: how far a follower has read, as a token that it may keep anywhere.

Rule 1: a position names the history of each shard. After a restore or a takeover the queue says
whether it still holds; a bare seq would go on silently among other messages.
Rule 2: a token is opaque, versioned and has a checksum, so that a damaged one is refused. It proves
nothing: whoever may read the queue may begin anywhere in it.
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
from millrace.core.model import Position as Place
from millrace.core.model import ShardId
from millrace.decoding import msgpack_decoder
from millrace.errors import Invalid, NotFound, NotYet, RolledBack

TOKEN = "pos1."
"""How every token of this version begins."""

_CHECKSUM_BYTES = 4
_CHARACTERS_MAX = 128 * limits.SHARDS_MAX
"""More than the longest token has."""

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
    """How far a follower has read a queue: exact also after a restore or a takeover.

    `str(position)` is a token to be stored, and `Position.parse` reads it again; wherever a
    position is taken, its token is taken too.
    """

    parts: tuple[tuple[ShardId, Place], ...]
    """Of each shard its id, and history, seq, snapshot start and snapshot end."""

    @classmethod
    def parse(cls, token: str) -> Position:
        """The position behind a token.

        Raises:
            Invalid: it is no token of a position, or it is damaged.
        """
        if len(token) > _CHARACTERS_MAX or not token.startswith(TOKEN):
            raise _no_position()
        text = token.removeprefix(TOKEN)
        try:
            data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
            if zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big") != checksum:
                raise _no_position()
            found = _decoder.decode(body)
        except (BadBase64, ValueError, msgspec.MsgspecError, RecursionError):
            raise _no_position() from None
        if any(not part.start <= part.seq <= part.end for part in found.parts):
            raise _no_position()
        return cls(
            tuple(
                (ShardId(part.shard), Place(part.history, part.seq, part.start, part.end))
                for part in found.parts
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
        """Of which unbroken sequence of changes it speaks; with several shards, the first one."""
        return self.parts[0][1].history

    @property
    def seq(self) -> int:
        """Everything up to it was read; with several shards, in the first one."""
        return self.parts[0][1].seq

    @property
    def seqs(self) -> tuple[int, ...]:
        """Everything up to these was read, in each shard."""
        return tuple(place.seq for _, place in self.parts)

    @property
    def snapshot_start(self) -> int:
        """Where the snapshot begins that it is in; with several shards, the first one's."""
        return self.parts[0][1].snapshot_start

    @property
    def snapshot_end(self) -> int:
        """Where that snapshot ends; with several shards, the first one's."""
        return self.parts[0][1].snapshot_end


def _no_position() -> Invalid:
    return Invalid(
        "this is not the token of a position, or it is damaged; take `position` of a snapshot, a "
        "cursor or the queue",
        field="position",
    )


def is_position(value: object) -> bool:
    """Whether it is meant as a position, or its token."""
    return isinstance(value, Position) or (type(value) is str and value.startswith(TOKEN))


def read_position(value: object, shards: Shards) -> dict[ShardId, Place]:
    """What a position, or its token, says of each shard of a queue.

    Raises:
        Invalid: it is no position.
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
    """Where a follower goes on in the present history; without a place, where the queue ends.

    Raises:
        CursorExpired: rows that it would have to read are gone.
    """
    found = await ask_all(
        engine,
        shards,
        lambda shard: Locate(None if places is None else places[shard]),
        Place,
    )
    return Position(tuple(zip(shards.ids, found, strict=True)))


async def see_places(
    engine: Engine, shards: Shards, places: dict[ShardId, Place], hint: str
) -> tuple[int, ...]:
    """See that what was read up to these places still stands; returns their seqs.

    Raises:
        RolledBack: it was taken back; the position says how far, the `hint` what to do.
        CursorExpired: rows that come next are gone.
    """
    found = await locate(engine, shards, places)
    seqs = tuple(places[shard].seq for shard in shards.ids)
    if found.seqs != seqs:
        raise RolledBack(
            f"what was read up to {'+'.join(map(str, seqs))} was taken back to "
            f"{'+'.join(map(str, found.seqs))} by a restore or a takeover; {hint}",
            field="position",
            position=str(found),
        )
    return seqs


async def await_cursor(
    engine: Engine, shards: Shards, name: str, places: dict[ShardId, Place], wait: float | None
) -> None:
    """Wait until the cursor has committed all up to these places.

    Raises:
        NotYet: it has not within `wait` seconds; None: however long that takes.
    """
    loop = asyncio.get_running_loop()
    until = None if wait is None else loop.time() + wait
    # A cursor does not fall back: what one shard has said holds while the others are asked.
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
    """The same error with the position to go back to, for one who has committed up to `places`."""
    position = await locate(engine, shards, dict(zip(shards.ids, places, strict=True)))
    return RolledBack(error.message, field=error.field, limit=error.limit, position=str(position))
