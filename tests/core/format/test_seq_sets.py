"""Canonical encoding of sets of seqs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace.core.format.seq_sets import pack_seqs, unpack_seqs


@given(st.integers(0, 2**64 - 1))
def test_a_set_of_one_has_the_form_of_any_other(seq: int) -> None:
    seqs = BitMap64([seq])
    assert pack_seqs(seqs) == bytes(seqs.serialize())
    assert unpack_seqs(pack_seqs(seqs)) == seqs
