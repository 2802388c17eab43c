"""Sets of seqs as bytes: the same bytes for the same set."""

from __future__ import annotations

import struct

from pyroaring import AbstractBitMap64, BitMap64

from millrace.errors import Corrupt

_ONE = struct.Struct("<QIIIHHIH")
"""A set of one, in the portable form: how many upper halves there are, which one, and of the lower
half a cookie, how many containers, of the only one its key, its count less one, and where it is."""

_COOKIE = 12346
"""Containers without runs."""


def pack_seqs(seqs: AbstractBitMap64) -> bytes:
    """The portable roaring form, the same bytes for the same set; empty for the empty set."""
    if not seqs:
        return b""
    if len(seqs) == 1:
        # The way of a single message, which must cost little.
        seq = seqs.min()
        return _ONE.pack(1, seq >> 32, _COOKIE, 1, seq >> 16 & 0xFFFF, 0, 16, seq & 0xFFFF)
    seqs.run_optimize()
    return bytes(_without_ties(seqs).serialize())


def _without_ties(seqs: AbstractBitMap64) -> AbstractBitMap64:
    """The set in its one form: runs only where they are shorter than the list of their seqs.

    Where both are as long, `run_optimize` leaves what is there, so that the bytes would tell how
    the set came to be.
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
    """Whether a set within one container is held as runs, and those are as long as a list."""
    facts = part.get_statistics()
    return 0 < facts["n_bytes_run_containers"] == 2 * facts["n_values_run_containers"]


def unpack_seqs(data: bytes) -> BitMap64:
    """The set that `pack_seqs` packed.

    Raises:
        Corrupt: the bytes are no set.
    """
    if not data:
        return BitMap64()
    try:
        return BitMap64.deserialize(data)
    except ValueError as error:
        raise Corrupt(f"{len(data)} bytes are no set of seqs: {error}") from error
