"""Subscriptions of endpoints that have ended, and may be had back.

Whoever has an endpoint is told that its subscription has ended, with a token by which they have it
again. Nothing is kept of what has ended: the token holds what it was.

Rule: a token is sealed. Whoever has it can neither change what it holds nor read it: the attributes
of a subscription are the affair of those who manage its topic.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from millrace import limits
from millrace.decoding import json_decoder
from millrace.server.clock import now_ms
from millrace.server.sns.headers import PENDING, TOKEN
from millrace.server.sns.signing import Signer

_BEFORE = "ended-"
"""Before such a token: no other is called so."""


class Ended(msgspec.Struct, frozen=True):
    """A subscription that has ended, as it was."""

    space: str
    topic: str
    shard: int
    """Of the topic: one that was made anew under the name is another."""
    name: str
    time_ms: int
    """When it ended."""
    notes: dict[str, str]


_decoder = json_decoder(Ended)


def is_of_ended(token: str) -> bool:
    """Whether a token says that it is of a subscription that has ended."""
    return token.startswith(_BEFORE)


def token_of(ended: Ended, signer: Signer) -> str:
    """The token by which a subscription is had back."""
    kept = {name: text for name, text in ended.notes.items() if name not in (PENDING, TOKEN)}
    data = zlib.compress(msgspec.json.encode(msgspec.structs.replace(ended, notes=kept)), 9)
    return _BEFORE + urlsafe_b64encode(signer.seal(data)).decode().rstrip("=")


def read_ended(token: str, signer: Signer) -> Ended | None:
    """The subscription that a token is of; None: it is none, or too old."""
    text = token.removeprefix(_BEFORE)
    try:
        sealed = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except ValueError:
        return None
    data = signer.unseal(sealed)
    if data is None:
        return None
    ended = _decoder.decode(zlib.decompress(data))
    is_late = now_ms() - ended.time_ms > limits.SNS_PENDING_SECONDS_MAX * 1000
    return None if is_late else ended
