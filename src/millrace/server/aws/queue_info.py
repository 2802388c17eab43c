"""Queue metadata for AWS clients: attributes of SQS without a setting in the core are notes."""

from __future__ import annotations

import time
from asyncio import Lock
from collections.abc import Callable
from hashlib import blake2b
from struct import Struct
from weakref import WeakValueDictionary

import msgspec

from millrace import limits
from millrace.client.queue import Queue
from millrace.core.format.message_id import seq_of
from millrace.core.spec import QueueSpec
from millrace.server.aws.refreshing_cache import RefreshingCache, tags_of
from millrace.server.web.queue_cache import QueueCache

PREFIX = "aws."
"""Prefix of notes and headers that belong to AWS."""

TAG = f"{PREFIX}tag:"
SALT = f"{PREFIX}salt"
CREATED = f"{PREFIX}created"
MODIFIED = f"{PREFIX}modified"
PURGED = f"{PREFIX}purged"
"""When PurgeQueue was last called, in ms; only noted where `SqsLimits.cooldown_seconds` is set."""
VISIBILITY = "VisibilityTimeout"
WAIT = "ReceiveMessageWaitTimeSeconds"
SIZE = "MaximumMessageSize"
SCOPE = "DeduplicationScope"
USUAL = {VISIBILITY: 30, WAIT: 0}
_NUMBER = Struct("<Q")


class QueueInfo:
    """A queue with its settings, interpreted by SQS."""

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

    def __init__(self, queue: Queue, spec: QueueSpec, bounds: SqsLimits) -> None:
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
        """Return an attribute that is stored in the notes; empty if it is not set."""
        return self.notes.get(PREFIX + attribute, "")

    def _number(self, attribute: str, usual: int, most: int) -> int:
        """Return a numeric attribute, or the default if the note is not a valid number.

        Other APIs can write notes without validation.
        """
        text = self.note(attribute)
        is_number = text.isascii() and text.isdigit() and len(text) < 10
        return int(text) if is_number and int(text) <= most else usual

    def was_purged(self, since_ms: int) -> bool:
        """Return whether PurgeQueue was called after this time."""
        text = self.notes.get(PURGED, "")
        # Other APIs may write notes as well: an invalid text counts as no purge.
        return text.isascii() and text.isdigit() and len(text) < 16 and int(text) > since_ms

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the queue."""
        return tags_of(self.notes, TAG)

    def seq_of(self, name: int | None) -> int:
        """Return the seq of a published message; 0 if the engine has forgotten it."""
        key = self.queue.shards.key
        return seq_of(key, name) if key and name else name or 0

    def message_id(self, seq: int) -> str:
        """Return the message id of SQS for a seq.

        It is derived from shard, seq and the queue's salt, so that messages of another queue of the
        same name have other ids.
        """
        made = self._ids.copy()
        made.update(_NUMBER.pack(seq))
        text = made.hexdigest()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class QueueDirectory(RefreshingCache[QueueInfo]):
    """A TTL cache of queues, with the locks and cooldowns of their changes."""

    kind = "queue"

    def __init__(
        self, desk: QueueCache, bounds: SqsLimits, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(now)
        self._desk = desk
        desk.listen(self.forget)
        self.bounds = bounds
        self._turns: WeakValueDictionary[tuple[str, str], Lock] = WeakValueDictionary()
        self._tried: dict[tuple[str, str], float] = {}
        """Time of the last attempt to switch a queue to fair order."""
        self._deleted: dict[tuple[str, str], float] = {}
        """Times at which DeleteQueue of this process deleted queues, kept during the cooldown."""

    async def read(self, space: str, name: str) -> QueueInfo:
        async def read(queue: Queue) -> QueueInfo:
            return QueueInfo(queue, await queue.spec(), self.bounds)

        return await self._desk.queue(space, name, read)

    def turn(self, space: str, name: str) -> Lock:
        """Return the lock for changing notes of a queue.

        It is held while notes are read and changed, so that concurrent changes of this process are
        not lost.
        """
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
        """Return whether a switch to fair order has not been attempted recently."""
        tried = self._tried.get((space, name))
        return tried is None or self._now() - tried > limits.SQS_FAIR_AGAIN_SECONDS

    def tried_fair(self, space: str, name: str) -> None:
        """Record an attempt to switch a queue to fair order."""
        self._tried.pop((space, name), None)
        if len(self._tried) >= limits.AWS_KNOWN_MAX:
            self._tried.pop(next(iter(self._tried)))
        self._tried[space, name] = self._now()


# --- Limits of SQS that an operator can set; the defaults are those of AWS -----------------------


class SqsLimits(msgspec.Struct, frozen=True):
    """Limits of one queue, message or call."""

    message_bytes: int = limits.SQS_MESSAGE_BYTES_MAX
    batch: int = limits.SQS_BATCH_MAX
    in_flight: int = limits.SQS_IN_FLIGHT_MAX
    visibility_seconds: int = limits.SQS_VISIBILITY_SECONDS_MAX
    cooldown_seconds: int = 0
    """Cooldown after a purge or delete, until the queue can be purged or created again."""


AS_AWS = SqsLimits()
