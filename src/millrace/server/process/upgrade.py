"""Migrations of subscriptions and queues of earlier versions when the server starts.

In those versions a subscription ended with its queue (ADR 0078).
"""

from __future__ import annotations

import asyncio
import logging

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.client.settings import QueueSettings
from millrace.client.topic import Topic, configure_durably, engine_and_topic
from millrace.core import validate
from millrace.core.cells import SubscriptionCell
from millrace.core.spec import QueueSpec
from millrace.core.topic_commands import ConfigureSubscription
from millrace.errors import NotFound, Refused, Retry
from millrace.server.aws.names import AccountRegion, arn_of, home_of
from millrace.server.aws.queue_info import PREFIX, SALT, SIZE
from millrace.server.aws.topic_headers import PROTOCOL, SUBSCRIPTION
from millrace.server.sns.subscription_attributes import letters_of, queue_notes_of

_sns_logger = logging.getLogger("millrace.server")


async def make_subscriptions_durable(millrace: Millrace, usual: AccountRegion) -> int:
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
                    changed += await _change_subscription(
                        millrace, topic, cell, usual, arn_of("sns", home, name)
                    )
    return changed


async def _change_subscription(
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
        _sns_logger.warning("%s/%s ends with its queue: %s", topic.name, cell.name, error)
        return False
    return True


# --- Migrates queues of earlier versions to today's settings when the server starts --------------
#
# Earlier versions created FIFO queues with `group_blocking` `lease`, so that one message of a
# batch that was released or extended kept its whole group back (ADR 0074), and stored
# MaximumMessageSize only as a note, so that topics forwarded larger messages (ADR 0078).

_logger = logging.getLogger("millrace.server")


async def migrate_queues(millrace: Millrace) -> int:
    """Migrate the settings of all queues that SQS created.

    FIFO queues get `group_blocking` `message`; queues with a MaximumMessageSize get it as limit, so
    that topics forward no larger messages.

    Returns the number of queues with outdated settings: 0 after the first start.
    """
    outdated: list[tuple[Queue, QueueSettings]] = []
    for space in await millrace.spaces():
        for name in await millrace.queues(space=space):
            queue = await millrace.find(name, space=space)
            wanted = _wanted(name, await queue.spec())
            if wanted:
                outdated.append((queue, wanted))
    # Concurrent changes share a commit.
    for at in range(0, len(outdated), limits.SQS_UPGRADED_TOGETHER):
        some = outdated[at : at + limits.SQS_UPGRADED_TOGETHER]
        await asyncio.gather(*(_change_settings(queue, wanted) for queue, wanted in some))
    return len(outdated)


async def _change_settings(queue: Queue, wanted: QueueSettings) -> None:
    try:
        await queue.configure(**wanted)
    except (Refused, Retry) as error:
        # The disk may be full: the queue keeps the old settings until the next start.
        _logger.warning("%s/%s keeps its older settings: %s", queue.space, queue.name, error)


def _wanted(name: str, spec: QueueSpec) -> QueueSettings:
    """Return the settings that a queue lacks; none if SQS did not create it (it has no salt)."""
    notes, wanted = dict(spec.notes), QueueSettings()
    if SALT not in notes:
        return wanted
    if name.endswith(".fifo") and spec.blocking == "lease":
        wanted["group_blocking"] = "message"
    size = notes.get(PREFIX + SIZE, "")
    # Other APIs can write this note without validation.
    is_number = size.isascii() and size.isdigit() and len(size) < 10
    if is_number and not spec.message_bytes_max:
        most = int(size)
        if limits.SQS_MESSAGE_BYTES_MIN <= most <= limits.SQS_MESSAGE_BYTES_MAX:
            wanted["message_bytes_max"] = most
    return wanted
