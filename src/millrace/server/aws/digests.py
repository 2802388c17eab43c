"""MD5s of bodies that were sent here lately: whoever receives one here is told the same.

A digest is believed only of the very bytes that it was made of: what has the place of another
message, after whatever became of the queue, is digested anew.
"""

from __future__ import annotations

from hashlib import md5

from millrace import limits
from millrace.core.model import ShardId

_BESIDE_BYTES = 400
"""What one takes beside its body."""


def digest_of(body: bytes) -> str:
    """The MD5 of a body."""
    return md5(body, usedforsecurity=False).hexdigest()


class Digests:
    """Bodies that were sent and not received, and their digests; of too many, none is kept."""

    def __init__(self) -> None:
        self._of: dict[tuple[ShardId, int], tuple[bytes, str]] = {}
        """By shard and seq."""
        self._size = 0

    def keep(self, shard: ShardId, seq: int, body: bytes, digest: str) -> None:
        """A body was sent to this place."""
        self._drop(shard, seq)
        size = len(body) + _BESIDE_BYTES
        self._size += size
        if self._size > limits.SQS_DIGESTS_BYTES_MAX:
            self._of.clear()
            self._size = size
        if size <= limits.SQS_DIGESTS_BYTES_MAX:
            self._of[shard, seq] = body, digest

    def take(self, shard: ShardId, seq: int, body: bytes) -> str:
        """The digest of a body that was received from this place."""
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
