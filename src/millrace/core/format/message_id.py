"""Message ids of queues with partitions: 63 bits that look random and encode the seq.

A queue has a key of its own, which is derived from the secret of the catalog when it is created.
The key maps seqs to ids one to one: ids are unique, a repeat is answered with the first message's
id, and with the key a message is found without an index. The mapping never changes, in no version.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

ID_BITS = 63
IDS = 1 << ID_BITS
"""Number of ids, which begin at 0."""

_MASK = IDS - 1
_FIRST = 0x3243F6A8885A308D
_SECOND = 0x2B7E151628AED2A7
_FIRST_BACK = pow(_FIRST, -1, IDS)
_SECOND_BACK = pow(_SECOND, -1, IDS)


def key_of(secret: bytes, shard: int) -> int:
    """Return the key of a queue, which is unique, since shard numbers are never reused."""
    digest = blake2b(shard.to_bytes(8, "big"), key=secret[:64], digest_size=8, person=b"ids")
    return int.from_bytes(digest.digest(), "big") & _MASK or 1


def id_of(key: int, seq: int) -> int:
    """Return the id of a message."""
    x = (seq + key) & _MASK
    x = (x ^ x >> 31) * _FIRST & _MASK
    x = (x ^ x >> 29) * _SECOND & _MASK
    return x ^ x >> 32


def seq_of(key: int, id_: int) -> int:
    """Return the seq that has the id, whether or not such a message exists."""
    x = id_ ^ id_ >> 32
    x = x * _SECOND_BACK & _MASK
    x ^= x >> 29 ^ x >> 58
    x = x * _FIRST_BACK & _MASK
    x ^= x >> 31 ^ x >> 62
    return (x - key) & _MASK


def ids_of(key: int, first: int, count: int) -> list[int]:
    """Return the ids of consecutive messages, as `id_of` computes each."""
    ids: list[int] = ids_at(key, np.arange(first, first + count, dtype=np.int64)).tolist()
    return ids


def ids_at(key: int, seqs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids of messages, as `id_of` computes each."""
    mask = np.uint64(_MASK)
    x = (seqs.astype(np.uint64) + np.uint64(key)) & mask
    x = (x ^ x >> np.uint64(31)) * np.uint64(_FIRST) & mask
    x = (x ^ x >> np.uint64(29)) * np.uint64(_SECOND) & mask
    return (x ^ x >> np.uint64(32)).astype(np.int64)
