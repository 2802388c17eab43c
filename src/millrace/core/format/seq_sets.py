"""Canonical encoding of sets of seqs: equal sets have equal bytes."""

from __future__ import annotations

import struct

from pyroaring import AbstractBitMap64, BitMap64

from millrace.errors import Corrupt

_ONE = struct.Struct("<QIIIHHIH")
"""A set of one seq in the portable format: number of upper halves, the upper half, and of the
lower half a cookie, the number of containers, and of the only one its key, its count less one,
and its offset."""

_COOKIE = 12346
"""Containers without runs."""


def pack_seqs(seqs: AbstractBitMap64) -> bytes:
    """Encode a set in the portable roaring format, canonically; the empty set is empty bytes."""
    if not seqs:
        return b""
    if len(seqs) == 1:
        # The fast path of a single message.
        seq = seqs.min()
        return _ONE.pack(1, seq >> 32, _COOKIE, 1, seq >> 16 & 0xFFFF, 0, 16, seq & 0xFFFF)
    seqs.run_optimize()
    return bytes(_without_ties(seqs).serialize())


def _without_ties(seqs: AbstractBitMap64) -> AbstractBitMap64:
    """Return the set in canonical form: runs only where they are shorter than a list of the seqs.

    If both are equally long, `run_optimize` leaves the container as it is, so that the bytes would
    depend on how the set was built.
    """
    facts = seqs.get_statistics()
    if not facts["n_run_containers"]:
        return seqs
    if facts["n_containers"] == 1:
        return BitMap64(seqs.to_array()) if _is_tied(seqs) else seqs
    tied = BitMap64()
    first: int | None = seqs.min()
    while first is not None:
        end = (first | 0xFFFF) + 1
        part = seqs & BitMap64(range(first, end))
        if _is_tied(part):
            tied |= part
        first = next(seqs.iter_equal_or_larger(end), None)
    return (seqs - tied) | BitMap64(tied.to_array()) if tied else seqs


def _is_tied(part: AbstractBitMap64) -> bool:
    """Return True if a set of one container is stored as runs exactly as long as a list."""
    facts = part.get_statistics()
    return 0 < facts["n_bytes_run_containers"] == 2 * facts["n_values_run_containers"]


def unpack_seqs(data: bytes) -> BitMap64:
    """Decode a set that `pack_seqs` encoded.

    Raises:
        Corrupt: the bytes are no set.
    """
    if not data:
        return BitMap64()
    try:
        return BitMap64.deserialize(data)
    except ValueError as error:
        raise Corrupt(f"{len(data)} bytes are no set of seqs: {error}") from error
