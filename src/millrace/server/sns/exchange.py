"""What a process keeps for SNS: the topics that were asked for lately, and who signs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from millrace import limits
from millrace.client.topic import Topic, engine_and_topic
from millrace.core.topic import deleted
from millrace.core.topic_cells import SubscriptionCell
from millrace.errors import NotFound
from millrace.server.aws.known import PREFIX, TAG
from millrace.server.aws.lately import Lately, tags_of
from millrace.server.clock import now_ms
from millrace.server.rest.desk import Desk
from millrace.server.sns.envelope import Around
from millrace.server.sns.headers import PENDING
from millrace.server.sns.message import Told
from millrace.server.sns.signing import SIGNING_KEY_FILE, Signer, open_signer


def is_size(text: str) -> bool:
    """Whether a text says how large messages of a topic may be."""
    is_number = text.isascii() and text.isdigit() and len(text) < 8
    return is_number and limits.SNS_MESSAGE_BYTES_MIN <= int(text) <= limits.SNS_MESSAGE_BYTES_MAX


class KnownTopic:
    """A topic, and what SNS makes of its notes."""

    __slots__ = ("notes", "topic")

    def __init__(self, topic: Topic, notes: dict[str, str]) -> None:
        self.topic = topic
        self.notes = notes

    @property
    def is_fifo(self) -> bool:
        """Whether it has an order."""
        return self.topic.name.endswith(".fifo")

    @property
    def shard(self) -> int:
        """By which it is told from others that had or will have its name."""
        return engine_and_topic(self.topic)[1]

    def note(self, attribute: str) -> str:
        """An attribute; empty: it has none."""
        return self.notes.get(PREFIX + attribute, "")

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the topic."""
        return tags_of(self.notes, TAG)

    def told(self, arn: str) -> Told:
        """What it says about its messages."""
        return Told(
            arn,
            self.is_fifo,
            self.note("ContentBasedDeduplication") == "true",
            self.note("FifoThroughputScope") == "MessageGroup",
            self.note("SignatureVersion") or "1",
            self.bytes_max,
        )

    @property
    def bytes_max(self) -> int:
        """Bytes of a message, and of all messages of a batch."""
        text = self.note("MaximumMessageSize")
        # Other protocols may write whatever they like into notes.
        return int(text) if is_size(text) else limits.SNS_MESSAGE_BYTES

    async def subscriptions(self) -> list[SubscriptionCell]:
        """Its subscriptions, oldest first, without those that nobody has confirmed in time."""
        return [cell for cell in await self.cells() if not is_forgotten(dict(cell.notes))]

    async def cells(self) -> list[SubscriptionCell]:
        """All of its subscriptions, oldest first."""
        engine, shard = engine_and_topic(self.topic)
        try:
            return list((await engine.subscriptions(shard)).values())
        except NotFound as error:
            raise deleted() from error


def is_forgotten(notes: Mapping[str, str]) -> bool:
    """Whether a subscription waits for its endpoint's word, and has done so for too long."""
    asked = notes.get(PENDING, "")
    if not (asked.isascii() and asked.isdigit()):
        return False
    return now_ms() - int(asked) > limits.SNS_PENDING_SECONDS_MAX * 1000


class Exchange(Lately[KnownTopic]):
    """The topics that were asked for lately, and who signs."""

    kind = "topic"

    def __init__(self, desk: Desk, folder: Path) -> None:
        super().__init__()
        self.desk = desk
        desk.listen(self.forget)
        self._folder = folder
        self._signer: Signer | None = None
        self._opening: asyncio.Task[Signer] | None = None

    @property
    def has_key(self) -> bool:
        """Whether a key was made, by this process or another."""
        return self._signer is not None or (self._folder / SIGNING_KEY_FILE).exists()

    @property
    def signer(self) -> Signer:
        """Who signs what subscribers are handed; of what was signed before there is a key.

        Raises:
            Invalid: there is no key, and none can be made.
        """
        if self._signer is None:
            self._signer = open_signer(self._folder)
        return self._signer

    async def prepare(self) -> Signer:
        """Return the signer. Its key is read or made in a thread, once for all who wait for it.

        Raises:
            Invalid: there is no key, and none can be made.
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

    def around(self, base: str) -> Around:
        """What is added to messages for those who have the server at this address."""
        return Around(self.signer.sign, base, self.signer.path)

    async def read(self, space: str, name: str) -> KnownTopic:
        async def read(topic: Topic) -> KnownTopic:
            engine, shard = engine_and_topic(topic)
            try:
                cell = await engine.topic_cell(shard)
            except NotFound as error:
                raise deleted() from error
            return KnownTopic(topic, dict(cell.notes))

        return await self.desk.topic(space, name, read)
