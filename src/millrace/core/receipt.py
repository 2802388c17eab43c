"""Receipts: what proves a lease, to any node of the cluster and past any takeover.

A receipt names the shard (which is its incarnation), the history, the seq and the lease call; the
lease call's number only rises, so that it is a fencing token for the worker's own database. It is
authenticated with a key that is a fact of the cluster (`docs/formats/receipt.md`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from typing import NamedTuple

from millrace.core.model import History, LeaseId, Seq, ShardId
from millrace.errors import Forged

_BODY = struct.Struct("<BQ16sQQ")
_VERSION = 1
_MAC_BYTES = 16


class Receipt(NamedTuple):
    """A lease of one message, proven."""

    shard: ShardId
    history: History
    seq: Seq
    lease: LeaseId


def seal(receipt: Receipt, secret: bytes) -> str:
    """The receipt as text that only the holder of `secret` could have made."""
    body = _BODY.pack(_VERSION, receipt.shard, receipt.history, receipt.seq, receipt.lease)
    return base64.urlsafe_b64encode(body + _mac(body, secret)).rstrip(b"=").decode()


def unseal(text: str, secret: bytes) -> Receipt:
    """The receipt behind the text.

    Raises:
        Forged: it is not a receipt, or was not made with `secret`.
    """
    if len(text) > 128 or not text.isascii():
        raise Forged("this is not a receipt", field="receipt")
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError) as error:
        raise Forged("this is not a receipt", field="receipt") from error
    body, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
    if len(body) != _BODY.size or not hmac.compare_digest(mac, _mac(body, secret)):
        raise Forged("this receipt was not made here, or was changed", field="receipt")
    version, shard, history, seq, lease = _BODY.unpack(body)
    if version != _VERSION:
        raise Forged(f"this receipt has the unknown version {version}", field="receipt")
    return Receipt(ShardId(shard), History(history), Seq(seq), LeaseId(lease))


def _mac(body: bytes, secret: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_MAC_BYTES, key=secret).digest()
