"""Logical changes of a shard: the output of `decide` and the input of `fold`.

A batch says which rows were put, which seqs died and why, and which cells were put or deleted;
never where anything lies on disk. Fields are positional on disk (`docs/formats/log.md`): append
only.

Within a batch the order is fixed: rows, stages (staged, then published, then dropped), deaths,
passed, settled, expired, purged, unpinned, pinned, cells. So a pin shows its own batch whole, a
cursor that has passed a seq never ends rows that the same batch keeps for another cursor, and no
stage begins in the batch that ended one of the same name.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from millrace.core.format.block import Block
from millrace.core.model import Epoch, GroupId, History, Index, Millis, ShardId


class Changes(msgspec.Struct, array_like=True):
    """Everything of a batch but its rows."""

    firsts: list[int] = []
    """The first seq of each block of visible rows."""
    staged: list[tuple[str, int]] = []
    """(stage, number of blocks): the blocks after the visible ones, which take no seq yet."""
    published: list[tuple[str, int, int]] = []
    """(stage, first seq, rows): a stage that becomes visible here."""
    unstaged: list[str] = []
    """Stages that are dropped with their rows."""
    died: dict[int, bytes] = {}
    """`Death` → seqs, in the order of `Death`; none of them was dead before."""
    settled: bytes = b""
    """Seqs that are settled, and kept because a retaining cursor has not passed them."""
    passed: int = 0
    """All rows up to this seq that were kept before this batch die as settled."""
    purged: int = 0
    """All rows up to this seq die as purged."""
    unpinned: list[int] = []
    pinned: list[int] = []
    cells: list[tuple[int, bytes, bytes | None]] = []
    """(kind, key, value); without a value the cell is deleted."""
    made: int = 0
    """The shard begins here: 1, or 3 if it is keyed."""
    dropped: bool = False
    """The shard ends here, with all that it holds."""
    aside: bytes = b""
    """Seqs of deferred rows of this batch: they do not wait in the order of seqs, cells name
    them."""
    weight: int = 0
    """Bytes of the rows that become visible here, as their blocks were written."""
    expired: int = 0
    """All rows up to this seq that are still there die as expired."""

    def empty(self) -> bool:
        """Return True if it changes nothing, so that it needs no index."""
        return self == _NONE


_NONE = Changes()


class Batch:
    """The changes that a shard decided in one step; all or nothing. Treat as frozen."""

    __slots__ = ("blocks", "changes", "index", "places", "shard", "time_ms")

    def __init__(
        self,
        shard: ShardId,
        index: Index,
        time_ms: Millis,
        changes: Changes,
        blocks: list[Block],
    ) -> None:
        self.shard = shard
        self.index = index
        self.time_ms = time_ms
        self.changes = changes
        self.blocks = blocks
        self.places: list[tuple[int, int]] = []
        """(offset, length) of each block within its record's payload, once encoded or decoded."""


class EntryKind(IntEnum):
    """The kind of an entry in the log. Numbers are part of the format."""

    DATA = 1
    """Batches under `index`; voids the group's earlier entries of this and higher indexes."""
    VOID = 2
    """The group's entries above `index` are rolled back."""
    COMMIT = 3
    """The group's entries up to `index` are committed."""
    FACT = 4
    """State of this node alone about the group: term and vote."""


class Entry:
    """The batches of one commit group that commit together. Treat as frozen."""

    __slots__ = ("batches", "epoch", "fact", "group", "history", "index", "kind")

    def __init__(
        self,
        group: GroupId,
        epoch: Epoch,
        index: Index,
        history: History,
        batches: list[Batch],
        *,
        kind: EntryKind = EntryKind.DATA,
        fact: bytes = b"",
    ) -> None:
        self.group = group
        self.epoch = epoch
        self.index = index
        self.history = history
        self.batches = batches
        self.kind = kind
        self.fact = fact
