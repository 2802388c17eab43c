"""The cells of topics; see `model`."""

from __future__ import annotations

import msgspec

from millrace.core.notes import Notes


class TopicCell(msgspec.Struct, frozen=True, array_like=True):
    """A topic: in the catalog under its name, and the same in its own shard under no name."""

    shard: int
    max_lag: int
    """So many rows wait at most for its slowest subscription; then publishes are refused."""
    notes: Notes = ()
    """What a front end keeps with the topic."""


class SubscriptionCell(msgspec.Struct, frozen=True, array_like=True):
    """What a topic forwards to a queue, and how far it has come. Its number is never given twice
    within a history, and is taken from the pointer `cursor`."""

    name: str
    queue: int
    """The queue's first shard: of a queue that is made anew under its name it is another one. 0:
    there is no queue of the name now, as may be where the subscription is durable."""
    target: str
    """The queue as space/name."""
    filter: str
    """As `filters.text` writes it; empty: everything is forwarded."""
    history: bytes
    """In which it was made."""
    since: int
    """The topic's last seq when it was made: it gets what comes after."""
    passed: int
    """Rows up to this one are in the queue, or were filtered."""
    forwarded: int = 0
    filtered: int = 0
    moved_ms: int = 0
    notes: Notes = ()
    """What a front end keeps with the subscription."""
    durable: bool = False
    """It outlives its queue, and forwards to the next one of its name."""
    dead_letter: str = ""
    """As space/name, the queue of what a durable one cannot forward; empty: it is dropped."""
    dead_lettered: int = 0
    dropped: int = 0
    """Rows that passed the filter when there was no queue, or were too large for it, and went
    there, or nowhere."""
    queue_notes: Notes = ()
    """What a queue of this name has among its notes when it is made."""

    @property
    def is_unbound(self) -> bool:
        """Whether it waits for its queue to be made."""
        return self.durable and not self.queue


class AwaitedCell(msgspec.Struct, frozen=True, array_like=True):
    """A subscription that waits for its queue to be made, in the catalog under the queue's name."""

    topic: int
    """The topic's shard."""
    number: int
    """Of the subscription."""


def awaited_key(target: str, cell: AwaitedCell) -> bytes:
    """The key of such a cell; `target`: the queue as space/name."""
    numbers = cell.topic.to_bytes(8, "big") + cell.number.to_bytes(8, "big")
    return target.encode() + b"\0" + numbers


def awaited_name(key: bytes) -> str:
    """The queue that a key names, as space/name."""
    return key[:-17].decode()
