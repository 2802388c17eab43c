"""The hidden queues of endpoints, which buffer the messages to deliver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from millrace.client.queue import Queue
from millrace.client.settings import QueueSettings
from millrace.server.aws.names import read_arn
from millrace.server.aws.queue_info import PREFIX
from millrace.server.aws.topic_headers import HIDDEN
from millrace.server.sns.subscription_attributes import REDRIVE, delivery
from millrace.server.sns.topic_attributes import see_json
from millrace.server.sns.topic_cache import TopicCache, TopicInfo


def hidden_settings(notes: dict[str, str], topic: TopicInfo) -> QueueSettings:
    """Return the settings of an endpoint's hidden queue, for a subscription with these notes."""
    how = delivery(notes, topic)
    policy = notes.get(PREFIX + REDRIVE, "")
    dead = ""
    if policy:
        arn = read_arn(str(see_json(REDRIVE, policy).get("deadLetterTargetArn", "")))
        dead = "" if arn is None else arn.name
    return {
        "max_failures": how.retries.num_retries + 1,
        "rate": how.per_second,
        "dead_letter": dead,
        "notes": {f"{PREFIX}topic": topic.topic.name},
    }


async def make_hidden(
    exchange: TopicCache,
    known: TopicInfo,
    name: str,
    notes: dict[str, str],
    subscribe: Callable[[Queue], Awaitable[None]],
) -> str:
    """Create the hidden queue of an endpoint and subscribe it; return its name.

    If the subscription fails, the queue is deleted again.
    """
    await exchange.prepare()
    millrace, space = exchange.desk.millrace, known.topic.space
    hidden = f"{HIDDEN}{name}"
    queue = await millrace.queue(hidden, space=space, **hidden_settings(notes, known))
    try:
        await subscribe(queue)
    except BaseException:
        await millrace.delete_queue(hidden, space=space)
        raise
    return hidden
