"""Tokens that confirm the subscriptions of endpoints, and tokens that restore ended ones.

Rule: a token is a keyed MAC of the subscription's name. It is not stored, so that nobody learns one
who can read a topic, its cells or a backup.
"""

from __future__ import annotations

import hmac
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from millrace import limits
from millrace.core.cells import SubscriptionCell
from millrace.decoding import json_decoder
from millrace.server.aws.topic_headers import PENDING, TOKEN, is_endpoint
from millrace.server.clock import now_ms
from millrace.server.sns.signing import Signer
from millrace.server.sns.topic_cache import TopicCache, TopicInfo


async def token_of_cell(exchange: TopicCache, known: TopicInfo, cell: SubscriptionCell) -> str:
    """Return the confirmation token of a subscription.

    Tokens of an earlier version are stored with the subscription until it is confirmed.
    """
    kept = dict(cell.notes).get(TOKEN)
    if kept is not None:
        return kept
    await exchange.prepare()
    space, topic = known.topic.space, known.topic.name
    proof = exchange.signer.proof(f"{space}/{topic}/{known.shard}/{cell.name}")
    return f"{space}/{topic}/{cell.name}/{proof}".encode().hex()


async def is_token(
    exchange: TopicCache, known: TopicInfo, cell: SubscriptionCell, token: str
) -> bool:
    """Return whether a token confirms this subscription."""
    if not is_endpoint(cell):
        return False
    made = await token_of_cell(exchange, known, cell)
    return hmac.compare_digest(made.encode(), token.encode())


# --- Tokens that restore ended subscriptions of endpoints ----------------------------------------
#
# When a subscription ends, its endpoint gets a token that restores it. Nothing is stored for it:
# the token contains the subscription.
# Rule: a token is encrypted and authenticated. Its holder can neither read nor change it, since
# the attributes of a subscription concern only the managers of its topic.

_BEFORE = "ended-"
"""Prefix of these tokens; other tokens never begin with it."""


class EndedSubscription(msgspec.Struct, frozen=True):
    """An ended subscription, with all that is needed to restore it."""

    space: str
    topic: str
    shard: int
    """The shard of the topic, which differs for a new topic of the same name."""
    name: str
    time_ms: int
    """Time of its end in milliseconds."""
    notes: dict[str, str]


_decoder = json_decoder(EndedSubscription)


def is_of_ended(token: str) -> bool:
    """Return whether a token has the form of those of ended subscriptions."""
    return token.startswith(_BEFORE)


def token_of(ended: EndedSubscription, signer: Signer) -> str:
    """Return the token that restores a subscription."""
    kept = {name: text for name, text in ended.notes.items() if name not in (PENDING, TOKEN)}
    data = zlib.compress(msgspec.json.encode(msgspec.structs.replace(ended, notes=kept)), 9)
    return _BEFORE + urlsafe_b64encode(signer.seal(data)).decode().rstrip("=")


def read_ended(token: str, signer: Signer) -> EndedSubscription | None:
    """Return the subscription in a token, or None if the token is invalid or too old."""
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
