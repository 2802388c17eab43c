"""A story: the same batches of one shard for a store and for the reference store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from pyroaring import BitMap64

from millrace.core.cells import Kind, PinCell, StageCell, TakeoverCell
from millrace.core.changes import Batch, Changes, Entry
from millrace.core.format.block import Block
from millrace.core.format.codec import decode_cell, encode_cell
from millrace.core.format.seq_sets import pack_seqs
from millrace.core.model import (
    Death,
    Epoch,
    History,
    Index,
    Millis,
    NewMessage,
    ShardId,
)
from millrace.core.state.view import number_key
from millrace.store.memory_store import MemoryStore
from tests.support.contracts.compare_stores import GROUP, compare
from tests.support.contracts.store_subject import Subject

Make = Callable[[], Subject]

DISTURBANCES = 16
"""How many different ways there are to disturb a subject."""

SHARD = ShardId(1)


class Story:
    """Feeds batches of one shard to a subject and to the reference store."""

    def __init__(self, make: Make, *, keyed: bool = False) -> None:
        self.subject = make()
        self.model = MemoryStore()
        self.entries = 0
        self.index = 0
        self.last = 0
        self.now = 1_000_000
        self.history = History(b"h" * 16)
        self.keys: set[bytes] = set()
        self.batch(made=3 if keyed else 1)

    def entry(self, *batches: Batch) -> Entry:
        self.entries += 1
        return Entry(GROUP, Epoch(1), Index(self.entries), self.history, list(batches))

    def batch(self, blocks: Sequence[Block] = (), **changes: object) -> None:
        """Feed one batch; named changes are those of `Changes`."""
        self.index += 1
        self.now += 1000
        made = msgspec.structs.replace(Changes(), **changes)
        batch = Batch(SHARD, Index(self.index), Millis(self.now), made, list(blocks))
        self.feed(self.entry(batch))

    def feed(self, entry: Entry) -> None:
        self.subject.feed(entry)
        self.model.fold(entry, None)

    def publish(self, *messages: NewMessage, **changes: object) -> int:
        """Rows, and what else happens in their batch; returns the first seq."""
        first = self.last + 1
        self.last += len(messages)
        self.keys |= {message.key for message in messages if message.key is not None}
        self.batch([Block.of_messages(messages)], firsts=[first], **changes)
        return first

    def bodies(self, count: int, size: int = 10) -> int:
        return self.publish(*(NewMessage(b"%05d" % at * (size // 5)) for at in range(count)))

    def die(self, why: Death, *seqs: int) -> None:
        self.batch(died={int(why): pack_seqs(BitMap64(seqs))})

    def pin(self, pin: int) -> None:
        cell = encode_cell(PinCell(self.index + 1, self.last, 0, 0))
        self.batch(pinned=[pin], cells=[(int(Kind.PIN), number_key(pin), cell)])

    def unpin(self, pin: int) -> None:
        self.batch(unpinned=[pin], cells=[(int(Kind.PIN), number_key(pin), None)])

    def stage(self, name: str, *messages: NewMessage) -> None:
        self.keys |= {message.key for message in messages if message.key is not None}
        cell = encode_cell(StageCell(len(messages), 0, 0))
        self.batch(
            [Block.of_messages(messages)],
            staged=[(name, 1)],
            cells=[(int(Kind.STAGE), name.encode(), cell)],
        )

    def table(self) -> list[TakeoverCell]:
        """The takeover table, as the subject has it."""
        cells = self.subject.store.cells(SHARD, Kind.TAKEOVER)
        found = [decode_cell(kind, value) for kind, _, value in cells]
        return [cell for cell in found if isinstance(cell, TakeoverCell)]

    def compare(self) -> None:
        compare(self.subject.store, self.model, sorted(self.keys))

    def check_held(self, pin: int) -> None:
        """Both count the same rows that died since the pin was made."""
        held = [store.held(SHARD, pin) for store in (self.subject.store, self.model)]
        counts = [sum(part.rows for part in parts) for parts in held]
        assert counts[0] == counts[1] > 0
        assert all(0 < part.low <= part.high <= self.last for part in held[0])

    def check(self) -> None:
        """Compare, disturb, compare, in every way."""
        self.compare()
        for how in range(DISTURBANCES):
            self.subject.disturb(how)
            self.compare()
        self.subject.close()
