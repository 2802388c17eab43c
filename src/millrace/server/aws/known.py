"""Queues as clients of AWS see them: what SQS knows of a queue and the core does not is kept in its
notes.

Rule: a queue is taken as it was last seen for a moment (`SQS_KNOWN_SECONDS`): AWS promises no more.
What was changed by this process is seen at once.
"""

from __future__ import annotations

import time
from asyncio import Lock
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from struct import Struct
from typing import TypeVar
from weakref import WeakValueDictionary

from millrace import limits
from millrace.client.queue import Queue
from millrace.core.spec import QueueSpec
from millrace.errors import NotFound
from millrace.server.rest.desk import Desk

T = TypeVar("T")

PREFIX = "aws."
"""Before the names of notes and headers that are of AWS."""

TAG = f"{PREFIX}tag:"
SALT = f"{PREFIX}salt"
CREATED = f"{PREFIX}created"
MODIFIED = f"{PREFIX}modified"
VISIBILITY = "VisibilityTimeout"
WAIT = "ReceiveMessageWaitTimeSeconds"
SIZE = "MaximumMessageSize"
SCOPE = "DeduplicationScope"
USUAL = {
    VISIBILITY: "30",
    WAIT: "0",
    SIZE: str(limits.SQS_MESSAGE_BYTES_MAX),
}
_PLACE = Struct("<QQ")


class Known:
    """A queue, and what SQS makes of its settings."""

    __slots__ = (
        "dedup_by_group",
        "is_fifo",
        "max_bytes",
        "notes",
        "queue",
        "salt",
        "seen",
        "spec",
        "visibility_seconds",
        "wait_seconds",
    )

    def __init__(self, queue: Queue, spec: QueueSpec, seen: float) -> None:
        self.queue = queue
        self.spec = spec
        self.seen = seen
        self.notes = dict(spec.notes)
        self.is_fifo = queue.name.endswith(".fifo")
        self.visibility_seconds = self._number(VISIBILITY)
        self.wait_seconds = self._number(WAIT)
        self.max_bytes = self._number(SIZE)
        self.dedup_by_group = self.notes.get(PREFIX + SCOPE) == "messageGroup"
        self.salt = self.notes.get(SALT, "").encode()[:64]

    def note(self, attribute: str) -> str:
        """An attribute that is kept in the notes."""
        return self.notes.get(PREFIX + attribute, USUAL.get(attribute, ""))

    def _number(self, attribute: str) -> int:
        """One that is a number. Notes are also written by other APIs, which do not look at them:
        what is none is as if nothing was said."""
        text = self.note(attribute)
        is_number = text.isascii() and text.isdigit() and len(text) < 10
        return int(text) if is_number else int(USUAL[attribute])

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the queue."""
        return {
            name.removeprefix(TAG): text[1:]
            for name, text in self.notes.items()
            if name.startswith(TAG)
        }

    def message_id(self, seq: int) -> str:
        """By which SQS knows a message: it follows from where the message is, and from the queue's
        own salt, so that those of a queue of the same name, elsewhere or before, are others."""
        place = _PLACE.pack(self.queue.shards.first, seq)
        text = blake2b(place, digest_size=16, key=self.salt).hexdigest()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Directory:
    """The queues that were asked for lately."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._known: dict[tuple[str, str], Known] = {}
        self._looks: dict[tuple[str, str], object] = {}
        """The newest look at a queue that is under way."""
        self._turns: WeakValueDictionary[tuple[str, str], Lock] = WeakValueDictionary()
        self._tried: dict[tuple[str, str], float] = {}
        """When it was last tried to make a queue fair."""

    def known(self, space: str, name: str) -> Known | None:
        """The queue, if it was seen a moment ago."""
        found = self._known.get((space, name))
        if found is None or time.monotonic() - found.seen > limits.SQS_KNOWN_SECONDS:
            return None
        return found

    async def use(self, space: str, name: str, use: Callable[[Known], Awaitable[T]]) -> T:
        """What `use` comes to with the queue.

        Raises:
            NotFound: there is none of this name; its field is `queue`.
        """
        known = self.known(space, name)
        if known is not None:
            try:
                return await use(known)
            except NotFound as error:
                if error.field != "queue":
                    raise
        return await use(await self.look(space, name))

    async def look(self, space: str, name: str) -> Known:
        """The queue as it is now.

        Raises:
            NotFound: there is none of this name.
        """
        self.forget(space, name)
        mark = self._looks[space, name] = object()

        async def read(queue: Queue) -> Known:
            return Known(queue, await queue.spec(), time.monotonic())

        try:
            found = await self._desk.queue(space, name, read)
        finally:
            is_newest = self._looks.get((space, name)) is mark
            if is_newest:
                del self._looks[space, name]
        if not is_newest:
            # It was changed meanwhile, or is being looked at anew.
            return found
        if len(self._known) >= limits.SQS_KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[space, name] = found
        return found

    def turn(self, space: str, name: str) -> Lock:
        """Held by whoever reads notes of a queue and writes what follows from them: others of this
        process do so before or after, and nothing that they wrote is lost."""
        return self._turns.setdefault((space, name), Lock())

    def is_fair_due(self, space: str, name: str) -> bool:
        """Whether it was not tried lately to make a queue fair."""
        tried = self._tried.get((space, name))
        return tried is None or time.monotonic() - tried > limits.SQS_FAIR_AGAIN_SECONDS

    def tried_fair(self, space: str, name: str) -> None:
        """It is tried now."""
        self._tried.pop((space, name), None)
        if len(self._tried) >= limits.SQS_KNOWN_MAX:
            self._tried.pop(next(iter(self._tried)))
        self._tried[space, name] = time.monotonic()

    def forget(self, space: str, name: str) -> None:
        """Something of it was changed."""
        self._known.pop((space, name), None)
        self._looks.pop((space, name), None)
