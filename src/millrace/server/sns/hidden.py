"""The queues of endpoints: what is for an endpoint waits in one of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from millrace.client.queue import Queue
from millrace.client.settings import QueueSettings
from millrace.server.aws.known import PREFIX
from millrace.server.aws.names import read_arn
from millrace.server.sns.exchange import Exchange, KnownTopic
from millrace.server.sns.headers import HIDDEN
from millrace.server.sns.subscription_attributes import REDRIVE, delivery
from millrace.server.sns.topic_attributes import see_json


def hidden_settings(notes: dict[str, str], topic: KnownTopic) -> QueueSettings:
    """How the queue of an endpoint is, whose subscription to the topic has these notes."""
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
    exchange: Exchange,
    known: KnownTopic,
    name: str,
    notes: dict[str, str],
    subscribe: Callable[[Queue], Awaitable[None]],
) -> str:
    """Make the queue of an endpoint and have it subscribed; where that fails it is gone again.
    Returns its name."""
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
