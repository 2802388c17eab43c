"""The cache of topic metadata, with the signing key of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from millrace import limits
from millrace.client.topic import Topic, engine_and_topic
from millrace.core.cells import SubscriptionCell
from millrace.core.topics.topic import deleted
from millrace.errors import NotFound
from millrace.server.aws.queue_info import PREFIX, TAG
from millrace.server.aws.refreshing_cache import RefreshingCache, tags_of
from millrace.server.aws.topic_envelope import EnvelopeContext
from millrace.server.aws.topic_headers import PENDING
from millrace.server.clock import now_ms
from millrace.server.sns.message import TopicPublishSettings
from millrace.server.sns.signing import SIGNING_KEY_FILE, Signer, open_signer
from millrace.server.web.queue_cache import QueueCache


def is_size(text: str) -> bool:
    """Return whether a text is a valid MaximumMessageSize of a topic."""
    is_number = text.isascii() and text.isdigit() and len(text) < 8
    return is_number and limits.SNS_MESSAGE_BYTES_MIN <= int(text) <= limits.SNS_MESSAGE_BYTES_MAX


class TopicInfo:
    """A topic with its notes, interpreted by SNS."""

    __slots__ = ("notes", "topic")

    def __init__(self, topic: Topic, notes: dict[str, str]) -> None:
        self.topic = topic
        self.notes = notes

    @property
    def is_fifo(self) -> bool:
        """True for a FIFO topic, by its name."""
        return self.topic.name.endswith(".fifo")

    @property
    def shard(self) -> int:
        """The shard of the topic, which differs for another topic of the same name."""
        return engine_and_topic(self.topic)[1]

    def note(self, attribute: str) -> str:
        """Return an attribute that is stored in the notes; empty if it is not set."""
        return self.notes.get(PREFIX + attribute, "")

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the topic."""
        return tags_of(self.notes, TAG)

    def told(self, arn: str) -> TopicPublishSettings:
        """Return the settings that publishing needs."""
        return TopicPublishSettings(
            arn,
            self.is_fifo,
            self.note("ContentBasedDeduplication") == "true",
            self.note("FifoThroughputScope") == "MessageGroup",
            self.note("SignatureVersion") or "1",
            self.bytes_max,
        )

    @property
    def bytes_max(self) -> int:
        """Limit of a message, and of all messages of a batch together, in bytes."""
        text = self.note("MaximumMessageSize")
        # Other APIs can write notes without validation.
        return int(text) if is_size(text) else limits.SNS_MESSAGE_BYTES

    async def subscriptions(self) -> list[SubscriptionCell]:
        """Return the subscriptions, oldest first, without those that have expired unconfirmed."""
        return [cell for cell in await self.cells() if not is_forgotten(dict(cell.notes))]

    async def cells(self) -> list[SubscriptionCell]:
        """Return all subscriptions, oldest first."""
        engine, shard = engine_and_topic(self.topic)
        try:
            return list((await engine.subscriptions(shard)).values())
        except NotFound as error:
            raise deleted() from error


def is_forgotten(notes: Mapping[str, str]) -> bool:
    """Return whether a subscription has waited too long for its endpoint's confirmation."""
    asked = notes.get(PENDING, "")
    if not (asked.isascii() and asked.isdigit()):
        return False
    return now_ms() - int(asked) > limits.SNS_PENDING_SECONDS_MAX * 1000


class TopicCache(RefreshingCache[TopicInfo]):
    """A TTL cache of topics, and the signer of their messages."""

    kind = "topic"

    def __init__(self, desk: QueueCache, folder: Path) -> None:
        super().__init__()
        self.desk = desk
        desk.listen(self.forget)
        self._folder = folder
        self._signer: Signer | None = None
        self._opening: asyncio.Task[Signer] | None = None

    @property
    def has_key(self) -> bool:
        """True if a key exists, created by this process or another."""
        return self._signer is not None or (self._folder / SIGNING_KEY_FILE).exists()

    @property
    def signer(self) -> Signer:
        """The signer of messages; it is opened on first use.

        Raises:
            Invalid: there is no key, and none can be created.
        """
        if self._signer is None:
            self._signer = open_signer(self._folder)
        return self._signer

    async def prepare(self) -> Signer:
        """Return the signer. Its key is read or created in a thread, once for concurrent callers.

        Raises:
            Invalid: there is no key, and none can be created.
        """
        if self._signer is None:
            if self._opening is None:
                opening = asyncio.to_thread(open_signer, self._folder)
                self._opening = asyncio.get_running_loop().create_task(opening)
                self._opening.add_done_callback(self._opened)
            await asyncio.shield(self._opening)
        return self.signer

    def _opened(self, opening: asyncio.Task[Signer]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._signer = opening.result()

    def around(self, base: str) -> EnvelopeContext:
        """Return the signer and the URLs for envelopes, for a server with this base URL."""
        return EnvelopeContext(self.signer.sign, base, self.signer.path)

    async def read(self, space: str, name: str) -> TopicInfo:
        async def read(topic: Topic) -> TopicInfo:
            engine, shard = engine_and_topic(topic)
            try:
                cell = await engine.topic_cell(shard)
            except NotFound as error:
                raise deleted() from error
            return TopicInfo(topic, dict(cell.notes))

        return await self.desk.topic(space, name, read)
