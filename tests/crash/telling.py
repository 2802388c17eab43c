"""Publishing to a topic, and looking at the queues that it is forwarded to."""

from __future__ import annotations

import asyncio
import random

from millrace import Message, Millrace, Topic
from tests.crash.events import LookTopic, Tell, body_of, tag_of
from tests.crash.player import Player
from tests.crash.scene import TOLD_ALL, TOLD_SOME, TOPIC
from tests.crash.told import is_wanted


async def find_topic(opened: Millrace) -> Topic:
    """The topic with its queues, made if they are missing."""
    topic = await opened.topic(TOPIC)
    for name, wanted in ((TOLD_ALL, None), (TOLD_SOME, {"wanted": {"exists": True}})):
        await opened.queue(name, retention="log")
        await topic.subscribe(name, filter=wanted)
    return topic


async def tell(player: Player, chance: random.Random) -> None:
    """Publish to the topic, now and then waiting until it is forwarded."""
    topic = await player.millrace.find_topic(TOPIC)
    while not player.is_stopping:
        tags = player.tags(chance.choice([1, 1, 3, 10]))
        messages = [
            Message(body_of(tag), headers={"wanted": "yes"} if is_wanted(tag) else {})
            for tag in tags
        ]
        call = topic.publish_many(messages, until_arrived=chance.random() < 0.3)
        await player.do(Tell(player.op(), tags), call)
        await asyncio.sleep(chance.random() * 0.1)


async def look_at_topic(player: Player) -> None:
    """Show both queues, once all that was published is forwarded."""
    topic = await player.millrace.find_topic(TOPIC)
    while (await topic.describe()).lag:  # noqa: ASYNC110
        # Whoever forwards is not to be waited for otherwise.
        await asyncio.sleep(0.002)
    rows = [await _tags(player.millrace, name) for name in (TOLD_ALL, TOLD_SOME)]
    player.say(LookTopic(*rows))


async def _tags(opened: Millrace, name: str) -> list[int]:
    async with (await opened.find(name)).snapshot() as snapshot:
        return [tag_of(row.body, ()) async for row in snapshot.rows()]
