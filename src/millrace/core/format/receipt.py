"""Receipts: signed proofs of a lease, valid at any node and after any takeover.

A receipt names the shard (which is its incarnation), the history, the seq and the lease call; the
number of the lease call only rises, so that it is a fencing token for the worker's own database.
The signature uses a key of the whole cluster (`docs/formats/receipt.md`), and is the same for all
messages of a lease call: only the client that received the call can write their receipts.
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
"""Enough to make guessing impractical."""

_TEXT_CHARS = (_BODY.size + PROOF_BYTES + _CHECK_BYTES) * 4 // 3
_TEXT = re.compile(rf"[A-Za-z0-9_-]{{{_TEXT_CHARS}}}")
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")

SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 64
"""Longest key of BLAKE2b; a short key could be guessed, and an empty one is none."""


class Receipt(NamedTuple):
    """A signed lease of one message; with the seq 0, a session."""

    shard: ShardId
    history: History
    seq: Seq
    lease: LeaseId


class Proved(int):
    """The number of a lease call or session, with its signature."""

    history: bytes
    """The history in which it was created."""
    proof: bytes

    @classmethod
    def of(cls, number: int, history: bytes, proof: bytes) -> Self:
        made = cls(number)
        made.history = history
        made.proof = proof
        return made


def prove(shard: int, history: bytes, number: int, secret: bytes, *, session: bool) -> bytes:
    """Return the signature of a lease call or session, which only a holder of `secret` can make."""
    call = _CALL.pack(_SESSION if session else _LEASE, shard, history, number)
    return hashlib.blake2b(call, digest_size=PROOF_BYTES, key=secret).digest()


def seal(receipt: Receipt, secret: bytes) -> str:
    """Return the receipt as text, signed with `secret`."""
    shard, history, seq, lease = receipt
    return write(receipt, prove(shard, history, lease, secret, session=seq == 0))


def write(receipt: Receipt, proof: bytes) -> str:
    """Return the receipt as text, with a given signature."""
    shard, history, seq, lease = receipt
    [text] = write_all(shard, history, lease, (seq,), proof)
    return text


def write_all(
    shard: ShardId, history: History, lease: LeaseId, seqs: Iterable[int], proof: bytes
) -> list[str]:
    """Return the receipts of the messages of one lease call as texts, with its signature."""
    parts: list[bytes] = []
    for seq in seqs:
        proven = _BODY.pack(_VERSION, shard, history, seq, lease) + proof
        parts += (proven, _check(proven))
    # The texts end where the bytes do, for their length is a multiple of 3.
    text = binascii.b2a_base64(b"".join(parts), newline=False).translate(_TO_URL).decode("ascii")
    return [text[at : at + _TEXT_CHARS] for at in range(0, len(text), _TEXT_CHARS)]


def unseal(text: str, secret: bytes) -> Receipt:
    """Verify a receipt's text with `secret`, and return the receipt.

    Raises:
        Forged: it is not a receipt, or was not signed with `secret`.
    """
    receipt, proof = read(text)
    shard, history, seq, lease = receipt
    if not hmac.compare_digest(proof, prove(shard, history, lease, secret, session=seq == 0)):
        raise Forged("this receipt was not made here, or was changed", field="receipt")
    return receipt


def read(text: str) -> tuple[Receipt, bytes]:
    """Return the receipt in the text and its signature, unverified.

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
