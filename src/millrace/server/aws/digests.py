"""A cache of MD5 digests of bodies that were sent through this process, for their receive.

A digest is used only for exactly the bytes that it was computed of: if another message has the same
shard and seq, because the queue was replaced, its digest is computed anew.
"""

from __future__ import annotations

from hashlib import md5

from millrace import limits
from millrace.core.model import ShardId

_BESIDE_BYTES = 400
"""Memory that an entry needs in addition to its body."""


def digest_of(body: bytes) -> str:
    """Return the MD5 of a body in hexadecimal."""
    return md5(body, usedforsecurity=False).hexdigest()


class Digests:
    """Bodies that were sent but not received yet, with their digests; cleared when it is full."""

    def __init__(self) -> None:
        self._of: dict[tuple[ShardId, int], tuple[bytes, str]] = {}
        """Body and digest by shard and seq."""
        self._size = 0

    def keep(self, shard: ShardId, seq: int, body: bytes, digest: str) -> None:
        """Cache the digest of a body that was sent to this shard and seq."""
        self._drop(shard, seq)
        size = len(body) + _BESIDE_BYTES
        self._size += size
        if self._size > limits.SQS_DIGESTS_BYTES_MAX:
            self._of.clear()
            self._size = size
        if size <= limits.SQS_DIGESTS_BYTES_MAX:
            self._of[shard, seq] = body, digest

    def take(self, shard: ShardId, seq: int, body: bytes) -> str:
        """Return the digest of a body that was received, and remove it from the cache."""
        known = self._drop(shard, seq)
        if known is None:
            return digest_of(body)
        kept, digest = known
        return digest if kept == body else digest_of(body)

    def _drop(self, shard: ShardId, seq: int) -> tuple[bytes, str] | None:
        known = self._of.pop((shard, seq), None)
        if known is not None:
            self._size -= len(known[0]) + _BESIDE_BYTES
        return known
