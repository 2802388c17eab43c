"""Verification of messages that a client moves: they keep the headers that the server has set.

A redrive by another process publishes dead letters elsewhere and settles them, in one transaction.
Messages that came from a topic, or from SQS, keep the headers that say so, although clients may not
write such headers (`client/reserved.py`).

Rule 1: a published message in a transaction may have reserved headers only if the same transaction
settles a message with the same body and the same reserved headers, except those of its death. Each
settled message permits one published message.
Rule 2: a successor (`Replace`) keeps only the headers of a death, and only those of the message
that it replaces: its body is the client's own.
Rule 3: the engine checks, in the same transaction, that the client holds the leases that it
settles; this module reads rows only, which never change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from hashlib import blake2b

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.reserved import is_reserved, needs_proof, refused
from millrace.core.commands import (
    ApplyTransaction,
    Publish,
    Replace,
    Settle,
)
from millrace.core.format.block import Block
from millrace.core.model import (
    Headers,
    NewMessage,
    Row,
    ShardId,
)
from millrace.core.transfer.dead_letter import PREFIX as DEAD_PREFIX

_Proof = tuple[bytes, Headers]


async def check_moved(engine: Engine, shard: ShardId, command: ApplyTransaction | Replace) -> None:
    """Refuse reserved headers unless a message that the command ends has the same.

    Raises:
        Invalid: the error names the header.
    """
    if not needs_proof(command):
        return
    if isinstance(command, Replace):
        known: Headers = ()
        async for row in _rows(engine, shard, command.seqs):
            known += tuple(pair for pair in row.headers if pair[0].startswith(DEAD_PREFIX))
        if _kept(command.message.headers) != known:
            raise refused(_first(command.message.headers))
        return
    wanted: dict[_Proof, int] = {}
    name = ""
    for _, part in command.parts:
        for message in _messages(part) if isinstance(part, Publish) else ():
            kept = _kept(message.headers)
            if kept:
                proof = (_digest(message.body), kept)
                wanted[proof] = wanted.get(proof, 0) + 1
                name = kept[0][0]
    for at, part in command.parts:
        if not isinstance(part, Settle):
            continue
        async for row in _rows(engine, at, part.seqs):
            proof = _proof(row)
            if proof in wanted:
                wanted[proof] -= 1
                if not wanted[proof]:
                    del wanted[proof]
            if not wanted:
                return
    raise refused(name)


def _messages(part: Publish) -> Iterable[NewMessage | Row]:
    rows = part.rows
    return rows.rows(0, rows.count, 0, 0) if isinstance(rows, Block) else rows


def _first(headers: Headers) -> str:
    return next(name for name, _ in headers if is_reserved(name))


def _kept(headers: Headers) -> Headers:
    return tuple(pair for pair in headers if is_reserved(pair[0]))


def _proof(row: Row) -> _Proof:
    """Return the digest and headers that a settled message permits; those of its death are set anew
    when it dies again."""
    alive = [pair for pair in row.headers if not pair[0].startswith(DEAD_PREFIX)]
    return _digest(row.body), _kept(tuple(alive))


def _digest(body: bytes | None) -> bytes:
    return blake2b(body or b"", digest_size=16).digest()


async def _rows(engine: Engine, shard: ShardId, seqs: BitMap64) -> AsyncIterator[Row]:
    """Yield the existing rows of a shard, reading a bounded number of bytes at a time."""
    left = BitMap64(seqs)
    while left:
        rows = await engine.rows(shard, left, limits.BURY_BYTES_MAX)
        if not rows:
            return
        for row in rows:
            yield row
        left -= BitMap64([row.seq for row in rows])
