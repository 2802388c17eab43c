"""What a process keeps for SNS: the topics that were asked for lately, and who signs.

Rule: a topic is taken as it was last seen for a moment (`SNS_KNOWN_SECONDS`). What was changed by
this process is seen at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from millrace import limits
from millrace.client.topic import Topic, engine_and_topic
from millrace.core.topic import deleted
from millrace.core.topic_cells import SubscriptionCell
from millrace.errors import NotFound
from millrace.server.aws.known import PREFIX, TAG
from millrace.server.rest.desk import Desk
from millrace.server.sns.envelope import Around
from millrace.server.sns.message import Told
from millrace.server.sns.signing import Signer, open_signer

T = TypeVar("T")


class KnownTopic:
    """A topic, and what SNS makes of its notes."""

    __slots__ = ("notes", "seen", "topic")

    def __init__(self, topic: Topic, notes: Mapping[str, str], seen: float) -> None:
        self.topic = topic
        self.notes = notes
        self.seen = seen

    @property
    def is_fifo(self) -> bool:
        """Whether it has an order."""
        return self.topic.name.endswith(".fifo")

    def note(self, attribute: str) -> str:
        """An attribute; empty: it has none."""
        return self.notes.get(PREFIX + attribute, "")

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the topic."""
        return {
            name.removeprefix(TAG): text[1:]
            for name, text in self.notes.items()
            if name.startswith(TAG)
        }

    def told(self, arn: str) -> Told:
        """What it says about its messages."""
        return Told(
            arn,
            self.is_fifo,
            self.note("ContentBasedDeduplication") == "true",
            self.note("FifoThroughputScope") == "MessageGroup",
            self.note("SignatureVersion") or "1",
        )

    async def subscriptions(self) -> list[SubscriptionCell]:
        """Its subscriptions, oldest first."""
        engine, shard = engine_and_topic(self.topic)
        try:
            return list((await engine.subscriptions(shard)).values())
        except NotFound as error:
            raise deleted() from error


class Exchange:
    """The topics that were asked for lately, and who signs."""

    def __init__(self, desk: Desk, folder: Path) -> None:
        self.desk = desk
        self._folder = folder
        self._known: dict[tuple[str, str], KnownTopic] = {}

    @cached_property
    def signer(self) -> Signer:
        """Who signs what subscribers are handed.

        Raises:
            Invalid: there is no key, and none can be made.
        """
        return open_signer(self._folder)

    async def prepare(self) -> None:
        """See that there is a key, before there is anything to sign: to make one takes a while."""
        await asyncio.to_thread(lambda: self.signer)

    def around(self, base: str) -> Around:
        """What is added to messages for those who have the server at this address."""
        return Around(self.signer.sign, base, self.signer.path)

    async def use(self, space: str, name: str, use: Callable[[KnownTopic], Awaitable[T]]) -> T:
        """What `use` comes to with the topic.

        Raises:
            NotFound: there is none of this name; its field is `topic`.
        """
        known = self._known.get((space, name))
        if known is not None and time.monotonic() - known.seen <= limits.SNS_KNOWN_SECONDS:
            try:
                return await use(known)
            except NotFound as error:
                if error.field != "topic":
                    raise
        return await use(await self.look(space, name))

    async def look(self, space: str, name: str) -> KnownTopic:
        """The topic as it is now.

        Raises:
            NotFound: there is none of this name.
        """
        self.forget(space, name)

        async def read(topic: Topic) -> KnownTopic:
            engine, shard = engine_and_topic(topic)
            try:
                cell = await engine.topic_cell(shard)
            except NotFound as error:
                raise deleted() from error
            return KnownTopic(topic, dict(cell.notes), time.monotonic())

        found = await self.desk.topic(space, name, read)
        if len(self._known) >= limits.SNS_KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[space, name] = found
        return found

    def forget(self, space: str, name: str) -> None:
        """Something of it was changed."""
        self._known.pop((space, name), None)
