"""Receipts: only those signed by this cluster are accepted, and each has one text."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.format.receipt import (
    Receipt,
    prove,
    read,
    seal,
    unseal,
    write,
    write_all,
)
from millrace.core.model import History, LeaseId, Seq, ShardId
from millrace.errors import Forged

SECRET = bytes(range(32))
RECEIPT = Receipt(ShardId(7), History(b"h" * 16), Seq(350), LeaseId(12))
NUMBERS = st.integers(0, 2**64 - 1)


@given(NUMBERS, st.binary(min_size=16, max_size=16), NUMBERS, NUMBERS)
def test_a_receipt_comes_out_as_it_went_in(
    shard: int, history: bytes, seq: int, lease: int
) -> None:
    receipt = Receipt(ShardId(shard), History(history), Seq(seq), LeaseId(lease))
    assert unseal(seal(receipt, SECRET), SECRET) == receipt


def test_the_text_never_changes() -> None:
    """Receipts outlive the process that made them: this text must be taken for ever."""
    text = "AgcAAAAAAAAAaGhoaGhoaGhoaGhoaGhoaF4BAAAAAAAADAAAAAAAAADCW0PxMusBdlIsZ28cFrDe"
    assert seal(RECEIPT, SECRET) == text
    assert unseal(text, SECRET) == RECEIPT


def test_another_cluster_takes_nothing() -> None:
    with pytest.raises(Forged):
        unseal(seal(RECEIPT, b"x" * 32), SECRET)


def test_every_changed_character_is_forged() -> None:
    text = seal(RECEIPT, SECRET)
    for at, old in enumerate(text):
        for new in "Az0-_+/=~ \n\0é":
            if new != old:
                with pytest.raises(Forged):
                    unseal(text[:at] + new + text[at + 1 :], SECRET)


def test_every_other_length_is_forged() -> None:
    text = seal(RECEIPT, SECRET)
    for length in range(len(text)):
        with pytest.raises(Forged):
            unseal(text[:length], SECRET)
    for more in ("=", "A", "AAAA", "\n", text, " " * 10_000):
        with pytest.raises(Forged):
            unseal(text + more, SECRET)


@given(st.text(max_size=200) | st.text("Aa0-_", min_size=76, max_size=76))
def test_noise_is_forged(text: str) -> None:
    with pytest.raises(Forged):
        unseal(text, SECRET)


def with_check(raw: bytes) -> str:
    tag = hashlib.blake2b(raw, digest_size=4).digest()
    return base64.urlsafe_b64encode(raw + tag).decode()


def test_an_unknown_version_is_forged() -> None:
    raw = base64.urlsafe_b64decode(seal(RECEIPT, SECRET))
    with pytest.raises(Forged, match="version 3"):
        unseal(with_check(b"\3" + raw[1:-4]), SECRET)


@given(st.lists(NUMBERS, max_size=20))
def test_those_of_a_call_are_written_at_once(seqs: list[int]) -> None:
    proof = prove(7, b"h" * 16, 12, SECRET, session=False)
    assert write_all(ShardId(7), History(b"h" * 16), LeaseId(12), seqs, proof) == [
        write(RECEIPT._replace(seq=Seq(seq)), proof) for seq in seqs
    ]


def test_whoever_has_the_proof_of_a_call_writes_its_receipts() -> None:
    proof = prove(7, b"h" * 16, 12, SECRET, session=False)
    other = RECEIPT._replace(seq=Seq(351))
    assert write(other, proof) == seal(other, SECRET)
    assert read(seal(other, SECRET)) == (other, proof)


@pytest.mark.parametrize(
    "other",
    [
        RECEIPT._replace(shard=ShardId(8)),
        RECEIPT._replace(history=History(b"g" * 16)),
        RECEIPT._replace(lease=LeaseId(13)),
    ],
)
def test_a_proof_is_good_for_its_own_call_alone(other: Receipt) -> None:
    with pytest.raises(Forged, match="not made here"):
        unseal(write(other, prove(7, b"h" * 16, 12, SECRET, session=False)), SECRET)


def test_the_proof_of_a_lease_is_none_of_a_session() -> None:
    lease = prove(7, b"h" * 16, 12, SECRET, session=False)
    with pytest.raises(Forged):
        unseal(write(RECEIPT._replace(seq=Seq(0)), lease), SECRET)
    session = prove(7, b"h" * 16, 12, SECRET, session=True)
    with pytest.raises(Forged):
        unseal(write(RECEIPT, session), SECRET)
