"""Makes queue subscriptions of earlier versions durable when the server starts.

In those versions a subscription ended with its queue (ADR 0078).
"""

from __future__ import annotations

import logging

from millrace.client.millrace import Millrace
from millrace.client.topic import Topic, configure_durably, engine_and_topic
from millrace.core import validate
from millrace.core.cells import SubscriptionCell
from millrace.core.topic_commands import ConfigureSubscription
from millrace.errors import NotFound, Refused, Retry
from millrace.server.aws.names import AccountRegion, arn_of, home_of
from millrace.server.aws.topic_headers import PROTOCOL, SUBSCRIPTION
from millrace.server.sns.subscription_attributes import letters_of, queue_notes_of

_logger = logging.getLogger("millrace.server")


async def make_durable(millrace: Millrace, usual: AccountRegion) -> int:
    """Make every queue subscription durable that was created by a manager of its queue.

    Returns the number of changed subscriptions: 0 after the first start.
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
    millrace: Millrace, topic: Topic, cell: SubscriptionCell, usual: AccountRegion, arn: str
) -> bool:
    """Make one subscription durable, unless the queue's notes show that a guest created it."""
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
            queue_notes=validate.notes(queue_notes_of(arn, cell.name, notes)),
        )
        await configure_durably(topic, command)
    except NotFound:
        # The queue or the topic was deleted since it was listed.
        return False
    except (Refused, Retry) as error:
        # A topic in quarantine, or a full disk: the subscription ends with its queue until the next
        # start.
        _logger.warning("%s/%s ends with its queue: %s", topic.name, cell.name, error)
        return False
    return True
