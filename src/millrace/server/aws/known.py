"""Queues as clients of AWS see them: what SQS knows of a queue and the core does not is kept in its
notes.
"""

from __future__ import annotations

import time
from asyncio import Lock
from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from weakref import WeakValueDictionary

from millrace import limits
from millrace.client.queue import Queue
from millrace.core.message_id import seq_of
from millrace.core.spec import QueueSpec
from millrace.server.aws.bounds import Bounds
from millrace.server.aws.lately import Lately, tags_of
from millrace.server.rest.desk import Desk

PREFIX = "aws."
"""Before the names of notes and headers that are of AWS."""

TAG = f"{PREFIX}tag:"
SALT = f"{PREFIX}salt"
CREATED = f"{PREFIX}created"
MODIFIED = f"{PREFIX}modified"
PURGED = f"{PREFIX}purged"
"""When PurgeQueue was last called, in ms; only noted where `Bounds.cooldown_seconds` is set."""
VISIBILITY = "VisibilityTimeout"
WAIT = "ReceiveMessageWaitTimeSeconds"
SIZE = "MaximumMessageSize"
SCOPE = "DeduplicationScope"
USUAL = {VISIBILITY: 30, WAIT: 0}
_NUMBER = Struct("<Q")


class Known:
    """A queue, and what SQS makes of its settings."""

    __slots__ = (
        "_ids",
        "bounds",
        "dedup_by_group",
        "is_fifo",
        "max_bytes",
        "notes",
        "queue",
        "spec",
        "visibility_seconds",
        "wait_seconds",
    )

    def __init__(self, queue: Queue, spec: QueueSpec, bounds: Bounds) -> None:
        self.queue = queue
        self.spec = spec
        self.bounds = bounds
        self.notes = dict(spec.notes)
        self.is_fifo = queue.name.endswith(".fifo")
        usual_seconds = min(USUAL[VISIBILITY], bounds.visibility_seconds)
        self.visibility_seconds = self._number(VISIBILITY, usual_seconds, bounds.visibility_seconds)
        self.wait_seconds = self._number(WAIT, USUAL[WAIT], limits.SQS_WAIT_SECONDS_MAX)
        self.max_bytes = self._number(SIZE, bounds.message_bytes, bounds.message_bytes)
        self.dedup_by_group = self.notes.get(PREFIX + SCOPE) == "messageGroup"
        salt = self.notes.get(SALT, "").encode()[:64]
        self._ids = blake2b(_NUMBER.pack(queue.shards.first), digest_size=16, key=salt)

    def note(self, attribute: str) -> str:
        """An attribute that is kept in the notes."""
        return self.notes.get(PREFIX + attribute, "")

    def _number(self, attribute: str, usual: int, most: int) -> int:
        """One that is a number. Notes are also written by other APIs, which do not look at them:
        what is none, or is too large, is as if nothing was said."""
        text = self.note(attribute)
        is_number = text.isascii() and text.isdigit() and len(text) < 10
        return int(text) if is_number and int(text) <= most else usual

    def was_purged(self, since_ms: int) -> bool:
        """Return whether PurgeQueue was called after this time."""
        text = self.notes.get(PURGED, "")
        # Other APIs may write notes as well: a text that is no number counts as no purge.
        return text.isascii() and text.isdigit() and len(text) < 16 and int(text) > since_ms

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the queue."""
        return tags_of(self.notes, TAG)

    def seq_of(self, name: int | None) -> int:
        """The seq of a message that a publish has called so; 0: that is forgotten."""
        key = self.queue.shards.key
        return seq_of(key, name) if key and name else name or 0

    def message_id(self, seq: int) -> str:
        """By which SQS knows a message: it follows from where the message is, and from the queue's
        own salt, so that those of a queue of the same name, elsewhere or before, are others."""
        made = self._ids.copy()
        made.update(_NUMBER.pack(seq))
        text = made.hexdigest()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class Directory(Lately[Known]):
    """The queues that were asked for lately."""

    kind = "queue"

    def __init__(
        self, desk: Desk, bounds: Bounds, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(now)
        self._desk = desk
        desk.listen(self.forget)
        self.bounds = bounds
        self._turns: WeakValueDictionary[tuple[str, str], Lock] = WeakValueDictionary()
        self._tried: dict[tuple[str, str], float] = {}
        """When it was last tried to make a queue fair."""
        self._deleted: dict[tuple[str, str], float] = {}
        """When DeleteQueue of this process ended a queue, as far as it matters."""

    async def read(self, space: str, name: str) -> Known:
        async def read(queue: Queue) -> Known:
            return Known(queue, await queue.spec(), self.bounds)

        return await self._desk.queue(space, name, read)

    def turn(self, space: str, name: str) -> Lock:
        """Held by whoever reads notes of a queue and writes what follows from them: others of this
        process do so before or after, and nothing that they wrote is lost."""
        return self._turns.setdefault((space, name), Lock())

    def note_deleted(self, space: str, name: str) -> None:
        """Remember that DeleteQueue ended a queue."""
        if self.bounds.cooldown_seconds:
            self._deleted.pop((space, name), None)
            if len(self._deleted) >= limits.AWS_KNOWN_MAX:
                self._deleted.pop(next(iter(self._deleted)))
            self._deleted[space, name] = self._now()

    def was_deleted(self, space: str, name: str) -> bool:
        """Return whether DeleteQueue ended a queue of this name too short a time ago."""
        deleted = self._deleted.get((space, name))
        return deleted is not None and self._now() - deleted < self.bounds.cooldown_seconds

    def is_fair_due(self, space: str, name: str) -> bool:
        """Whether it was not tried lately to make a queue fair."""
        tried = self._tried.get((space, name))
        return tried is None or self._now() - tried > limits.SQS_FAIR_AGAIN_SECONDS

    def tried_fair(self, space: str, name: str) -> None:
        """It is tried now."""
        self._tried.pop((space, name), None)
        if len(self._tried) >= limits.AWS_KNOWN_MAX:
            self._tried.pop(next(iter(self._tried)))
        self._tried[space, name] = self._now()
