"""Tokens that confirm the subscriptions of endpoints.

Rule: a token is a keyed MAC of the subscription's name. It is not stored, so that nobody learns one
who can read a topic, its cells or a backup.
"""

from __future__ import annotations

import hmac

from millrace.core.cells import SubscriptionCell
from millrace.server.aws.topic_headers import TOKEN, is_endpoint
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
