"""Makes subscriptions of queues that earlier versions made durable, when the server starts.

Those ended with their queues (ADR 0078).
"""

from __future__ import annotations

import logging

from millrace.client.millrace import Millrace
from millrace.client.topic import Topic, configure_durably, engine_and_topic
from millrace.core import check
from millrace.core.topic_cells import SubscriptionCell
from millrace.core.topic_commands import ConfigureSubscription
from millrace.errors import NotFound, Refused, Retry
from millrace.server.aws.names import Home, arn_of, home_of
from millrace.server.sns.headers import PROTOCOL, SUBSCRIPTION
from millrace.server.sns.subscription_attributes import letters_of, queue_notes_of

_logger = logging.getLogger("millrace.server")


async def make_durable(millrace: Millrace, usual: Home) -> int:
    """Have every subscription of a queue by one who may manage the queue outlive it.

    Returns the number of subscriptions that did not: none after the first start.
    """
    changed = 0
    for space in await millrace.spaces():
        home = home_of(space, usual)
        for name in await millrace.topics(space=space) if home is not None else ():
            assert home is not None
            topic = await millrace.find_topic(name, space=space)
            engine, shard = engine_and_topic(topic)
            for cell in (await engine.subscriptions(shard)).values():
                if not cell.durable and dict(cell.notes).get(PROTOCOL) == "sqs":
                    changed += await _change(
                        millrace, topic, cell, usual, arn_of("sns", home, name)
                    )
    return changed


async def _change(
    millrace: Millrace, topic: Topic, cell: SubscriptionCell, usual: Home, arn: str
) -> bool:
    """Change one, unless a user made it who may not manage its queue, as the queue's notes tell."""
    space, _, name = cell.target.partition("/")
    notes = dict(cell.notes)
    try:
        spec = await (await millrace.find(name, space=space)).spec()
        if dict(spec.notes).get(f"{SUBSCRIPTION}{arn}") != cell.name:
            return False
        command = ConfigureSubscription(
            cell.name,
            durable=True,
            dead_letter=letters_of(notes, usual),
            queue_notes=check.notes(queue_notes_of(arn, cell.name, notes)),
        )
        await configure_durably(topic, command)
    except NotFound:
        # It has ended meanwhile.
        return False
    except (Refused, Retry) as error:
        # A topic in quarantine, or a full disk: it ends with its queue until the next start.
        _logger.warning("%s/%s ends with its queue: %s", topic.name, cell.name, error)
        return False
    return True
