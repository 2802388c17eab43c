"""Receipts: only those that this cluster made are taken, and each has one text."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.model import History, LeaseId, Seq, ShardId
from millrace.core.receipt import Receipt, seal, unseal
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
    text = "AQcAAAAAAAAAaGhoaGhoaGhoaGhoaGhoaF4BAAAAAAAADAAAAAAAAAC2yqQosbA1k-mGJYjP4b8A"
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


def test_an_unknown_version_is_forged() -> None:
    raw = bytearray(base64.urlsafe_b64decode(seal(RECEIPT, SECRET)))
    raw[0] = 2
    tag = hashlib.blake2b(raw[:-16], digest_size=16, key=SECRET).digest()
    with pytest.raises(Forged, match="version 2"):
        unseal(base64.urlsafe_b64encode(bytes(raw[:-16]) + tag).decode(), SECRET)
