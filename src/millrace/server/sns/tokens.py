"""The tokens by which endpoints confirm their subscriptions.

Rule: a token is what the server's key makes of the subscription's name. Nothing of it is kept, so
that nobody who reads a topic, its cells or a backup learns one.
"""

from __future__ import annotations

import hmac

from millrace.core.topic_cells import SubscriptionCell
from millrace.server.sns.exchange import Exchange, KnownTopic
from millrace.server.sns.headers import TOKEN, is_endpoint


async def token_of_cell(exchange: Exchange, known: KnownTopic, cell: SubscriptionCell) -> str:
    """The token by which an endpoint confirms its subscription.

    One of an earlier version is kept with the subscription until it is confirmed.
    """
    kept = dict(cell.notes).get(TOKEN)
    if kept is not None:
        return kept
    await exchange.prepare()
    space, topic = known.topic.space, known.topic.name
    proof = exchange.signer.proof(f"{space}/{topic}/{known.shard}/{cell.name}")
    return f"{space}/{topic}/{cell.name}/{proof}".encode().hex()


async def is_token(
    exchange: Exchange, known: KnownTopic, cell: SubscriptionCell, token: str
) -> bool:
    """Whether a token is that of a subscription of an endpoint."""
    if not is_endpoint(cell):
        return False
    made = await token_of_cell(exchange, known, cell)
    return hmac.compare_digest(made.encode(), token.encode())
