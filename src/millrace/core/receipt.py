"""Receipts: what proves a lease, to any node of the cluster and past any takeover.

A receipt names the shard (which is its incarnation), the history, the seq and the lease call; the
lease call's number only rises, so that it is a fencing token for the worker's own database. Its
proof is made with a key that is a fact of the cluster (`docs/formats/receipt.md`), and is the same
for all messages of a lease call: whoever was handed the call can write their receipts, nobody else.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
import struct
from collections.abc import Iterable
from typing import NamedTuple, Self

from millrace.core.model import History, LeaseId, Seq, ShardId
from millrace.errors import Forged

_BODY = struct.Struct("<BQ16sQQ")
_CALL = struct.Struct("<BQ16sQ")
_VERSION = 2
_CHECK_BYTES = 4
_LEASE, _SESSION = 0, 1

PROOF_BYTES = 12
"""Enough that nobody guesses one by asking."""

_TEXT_CHARS = (_BODY.size + PROOF_BYTES + _CHECK_BYTES) * 4 // 3
_TEXT = re.compile(rf"[A-Za-z0-9_-]{{{_TEXT_CHARS}}}")
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")

SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 64
"""What BLAKE2b takes as a key; a short one could be guessed, and an empty one is none."""


class Receipt(NamedTuple):
    """A lease of one message, proven; with the seq 0, a session."""

    shard: ShardId
    history: History
    seq: Seq
    lease: LeaseId


class Proved(int):
    """The number of a lease call or of a session, with what proves it to those who made it."""

    history: bytes
    """In which it was given."""
    proof: bytes

    @classmethod
    def of(cls, number: int, history: bytes, proof: bytes) -> Self:
        made = cls(number)
        made.history = history
        made.proof = proof
        return made


def prove(shard: int, history: bytes, number: int, secret: bytes, *, session: bool) -> bytes:
    """What only the holder of `secret` can make for a lease call, or for a session."""
    call = _CALL.pack(_SESSION if session else _LEASE, shard, history, number)
    return hashlib.blake2b(call, digest_size=PROOF_BYTES, key=secret).digest()


def seal(receipt: Receipt, secret: bytes) -> str:
    """The receipt as text that only the holder of `secret` could have made."""
    shard, history, seq, lease = receipt
    return write(receipt, prove(shard, history, lease, secret, session=seq == 0))


def write(receipt: Receipt, proof: bytes) -> str:
    """The receipt as text, by someone who was given the proof."""
    shard, history, seq, lease = receipt
    [text] = write_all(shard, history, lease, (seq,), proof)
    return text


def write_all(
    shard: ShardId, history: History, lease: LeaseId, seqs: Iterable[int], proof: bytes
) -> list[str]:
    """The receipts of messages of one lease call as texts, by someone who was given its proof."""
    parts: list[bytes] = []
    for seq in seqs:
        proven = _BODY.pack(_VERSION, shard, history, seq, lease) + proof
        parts += (proven, _check(proven))
    # The texts end where the bytes do, for their length is a multiple of 3.
    text = binascii.b2a_base64(b"".join(parts), newline=False).translate(_TO_URL).decode("ascii")
    return [text[at : at + _TEXT_CHARS] for at in range(0, len(text), _TEXT_CHARS)]


def unseal(text: str, secret: bytes) -> Receipt:
    """The receipt behind the text.

    Raises:
        Forged: it is not a receipt, or was not made with `secret`.
    """
    receipt, proof = read(text)
    shard, history, seq, lease = receipt
    if not hmac.compare_digest(proof, prove(shard, history, lease, secret, session=seq == 0)):
        raise Forged("this receipt was not made here, or was changed", field="receipt")
    return receipt


def read(text: str) -> tuple[Receipt, bytes]:
    """The receipt behind the text and its proof, which is not judged.

    Raises:
        Forged: it is not a receipt, or was damaged.
    """
    # The length is a multiple of 3, so that no bit of the text is unused: one text per receipt.
    if _TEXT.fullmatch(text) is None:
        raise Forged("this is not a receipt", field="receipt")
    raw = binascii.a2b_base64(text.encode("ascii").translate(_FROM_URL))
    if raw[-_CHECK_BYTES:] != _check(raw[:-_CHECK_BYTES]):
        raise Forged("this receipt was not made here, or was changed", field="receipt")
    version, shard, history, seq, lease = _BODY.unpack_from(raw)
    if version != _VERSION:
        raise Forged(f"this receipt has the unknown version {version}", field="receipt")
    receipt = Receipt(ShardId(shard), History(history), Seq(seq), LeaseId(lease))
    return receipt, raw[_BODY.size : -_CHECK_BYTES]


def _check(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECK_BYTES).digest()
