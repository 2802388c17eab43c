"""Messages that a client moves whole: they keep the headers that the server has given them.

A redrive of another process publishes dead letters elsewhere and settles them, in one transaction.
What came from a topic, or was sent by SQS, keeps the headers that say so, although a client may
write none of these (`client/reserved.py`).

Rule 1: a message of a transaction has reserved headers only where the same transaction settles one
with the same body and just these reserved headers, those of its death apart. One that is settled
vouches for one that is published.
Rule 2: a successor (`Replace`) keeps the headers of a death alone, and those of the message that it
replaces: its body is the client's own.
Rule 3: whether the client holds what it settles is the engine's to judge, in the same transaction;
here only rows are read, which never change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from hashlib import blake2b

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.reserved import is_reserved, needs_proof, refused
from millrace.core.block import Block
from millrace.core.bury import PREFIX as DEAD_PREFIX
from millrace.core.commands import Publish, Settle, Transaction
from millrace.core.leased_commands import Replace
from millrace.core.model import Headers, Message, Row, ShardId

_Proof = tuple[bytes, Headers]


async def check_moved(engine: Engine, shard: ShardId, command: Transaction | Replace) -> None:
    """Refuse reserved headers that are not those of a message which the command ends.

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


def _messages(part: Publish) -> Iterable[Message | Row]:
    rows = part.rows
    return rows.rows(0, rows.count, 0, 0) if isinstance(rows, Block) else rows


def _first(headers: Headers) -> str:
    return next(name for name, _ in headers if is_reserved(name))


def _kept(headers: Headers) -> Headers:
    return tuple(pair for pair in headers if is_reserved(pair[0]))


def _proof(row: Row) -> _Proof:
    """What a message that is settled vouches for: its death is told anew when it dies again."""
    alive = [pair for pair in row.headers if not pair[0].startswith(DEAD_PREFIX)]
    return _digest(row.body), _kept(tuple(alive))


def _digest(body: bytes | None) -> bytes:
    return blake2b(body or b"", digest_size=16).digest()


async def _rows(engine: Engine, shard: ShardId, seqs: BitMap64) -> AsyncIterator[Row]:
    """Rows of a shard that are there, a bounded number of bytes at a time."""
    left = BitMap64(seqs)
    while left:
        rows = await engine.rows(shard, left, limits.BURY_BYTES_MAX)
        if not rows:
            return
        for row in rows:
            yield row
        left -= BitMap64([row.seq for row in rows])
