"""Receipts: what proves a lease, to any node of the cluster and past any takeover.

A receipt names the shard (which is its incarnation), the history, the seq and the lease call; the
lease call's number only rises, so that it is a fencing token for the worker's own database. It is
authenticated with a key that is a fact of the cluster (`docs/formats/receipt.md`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from typing import NamedTuple

from millrace.core.model import History, LeaseId, Seq, ShardId
from millrace.errors import Forged

_BODY = struct.Struct("<BQ16sQQ")
_VERSION = 1
_MAC_BYTES = 16
_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_TEXT_CHARS = (_BODY.size + _MAC_BYTES) * 4 // 3

SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 64
"""What BLAKE2b takes as a key; a short one could be guessed, and an empty one is none."""


class Receipt(NamedTuple):
    """A lease of one message, proven."""

    shard: ShardId
    history: History
    seq: Seq
    lease: LeaseId


def seal(receipt: Receipt, secret: bytes) -> str:
    """The receipt as text that only the holder of `secret` could have made."""
    body = _BODY.pack(_VERSION, receipt.shard, receipt.history, receipt.seq, receipt.lease)
    return base64.urlsafe_b64encode(body + _mac(body, secret)).decode()


def unseal(text: str, secret: bytes) -> Receipt:
    """The receipt behind the text.

    Raises:
        Forged: it is not a receipt, or was not made with `secret`.
    """
    # The length is a multiple of 3, so that no bit of the text is unused: one text per receipt.
    if len(text) != _TEXT_CHARS or not _ALPHABET.issuperset(text):
        raise Forged("this is not a receipt", field="receipt")
    raw = base64.urlsafe_b64decode(text)
    body, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(body, secret)):
        raise Forged("this receipt was not made here, or was changed", field="receipt")
    version, shard, history, seq, lease = _BODY.unpack(body)
    if version != _VERSION:
        raise Forged(f"this receipt has the unknown version {version}", field="receipt")
    return Receipt(ShardId(shard), History(history), Seq(seq), LeaseId(lease))


def _mac(body: bytes, secret: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_MAC_BYTES, key=secret).digest()
