"""Batches that the store has not folded yet, and cached answers of the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec
from pyroaring import BitMap64

from millrace.core import bounds
from millrace.core.cells import Cell, ExpiryCell, Kind, expiry_key
from millrace.core.format.block import Block
from millrace.core.format.seq_sets import pack_seqs
from millrace.core.model import Index
from millrace.core.needs import (
    ExpiredRows,
    PinnedRows,
    RowFacts,
    StageFacts,
)
from millrace.core.state.deferred_cells import DeferredChanges


class UnfoldedBatch(msgspec.Struct, frozen=True):
    """Changes of keys, rows and stages by a batch that is not yet folded."""

    index: Index
    time_ms: int
    last_seq: int
    keys: dict[bytes, int]
    died: BitMap64
    kept: BitMap64
    deletes: BitMap64
    passed: int
    purged: int
    """Seq up to which all rows died, purged or by retention."""
    staged: list[tuple[str, Block]]
    ended: frozenset[str]
    """Stages that were published or dropped, after `staged`."""
    aside: BitMap64
    waits: DeferredChanges
    points: dict[tuple[Kind, bytes], Cell | None]
    """Cells outside the view, as this batch has left them."""


class ExpiryCells:
    """Changes of expiry cells in a batch so far."""

    __slots__ = ("put", "rows", "steps", "upto")

    def __init__(self) -> None:
        self.put = 0
        """Number of cells put."""
        self.rows: dict[int, BitMap64] = {}
        """Expiry time → the rows of this batch that expire then; the cells are made at its end."""
        self.upto = b""
        """Cells before this key have expired; `steps` counts the steps."""
        self.steps = 0

    def cells(self, index: int) -> Iterator[tuple[tuple[Kind, bytes], ExpiryCell]]:
        """Yield the expiry cells of the batch, which has this index."""
        for due_ms, seqs in self.rows.items():
            parts: Iterable[BitMap64] = (seqs,)
            if len(seqs) > bounds.EXPIRY_SEQS_MAX:
                parts = _parts(seqs)
            for part in parts:
                yield (Kind.EXPIRY, self.next_key(due_ms, index)), ExpiryCell((), pack_seqs(part))

    def next_key(self, due_ms: int, index: int) -> bytes:
        """Return the key of another cell of the batch, which has this index."""
        self.put += 1
        return expiry_key(due_ms, index, self.put - 1)


def _parts(seqs: BitMap64) -> Iterator[BitMap64]:
    left = iter(seqs)
    while part := BitMap64(islice(left, bounds.EXPIRY_SEQS_MAX)):
        yield part


class StoreFacts:
    """Answers of the store for the current commands, as of the last folded batch."""

    __slots__ = (
        "dead",
        "ended",
        "expiry",
        "held",
        "keys",
        "live",
        "names",
        "numbers",
        "old",
        "older",
        "outlived",
        "points",
        "rows",
        "stages",
    )

    def __init__(self) -> None:
        self.keys: dict[bytes, int] = {}
        """Key → newest live seq, 0 if there is none."""
        self.stages: dict[str, StageFacts] = {}
        self.rows: dict[int, RowFacts] = {}
        self.old: dict[Kind, list[bytes]] = {}
        """The first cells of messages that were deferred before the last purge."""
        self.points: dict[tuple[Kind, bytes], Cell | None] = {}
        """(kind, key) → the cell, None if there is none."""
        self.expiry: list[tuple[bytes, ExpiryCell]] | None = None
        """The first expiry cells; None: not fetched."""
        self.ended: dict[tuple[int, int], BitMap64] = {}
        """(first seq, last seq) → the dead, and the settled and kept rows between them."""
        self.dead: dict[tuple[int, int], BitMap64] = {}
        """(first seq, last seq) → the dead rows between them."""
        self.older: int | None = None
        """The first row that is younger than the retention time."""
        self.outlived: ExpiredRows | None = None
        """The first messages that are older than the queue's TTL."""
        self.held: dict[int, list[PinnedRows]] = {}
        """Pin → the dead rows that it keeps."""
        self.live: int | None = None
        """Number of live and kept rows."""
        self.names: dict[tuple[int, bool], tuple[object, list[tuple[Kind, bytes] | None]]] = {}
        """Cache of the dedup cells of publishes, by their identity and whether bodies have ids."""
        self.numbers: dict[int, tuple[object, list[int]]] = {}
        """Cache of the group numbers of published rows, by their identity."""

    def clear(self) -> None:
        """Drop all answers that were valid only for that moment."""
        if self.keys:
            self.keys = {}
        if self.stages:
            self.stages = {}
        if self.rows:
            self.rows = {}
        if self.old:
            self.old = {}
        if self.points:
            self.points = {}
        self.expiry = None
        if self.ended:
            self.ended = {}
        if self.dead:
            self.dead = {}
        if self.held:
            self.held = {}
        if self.names:
            self.names = {}
        if self.numbers:
            self.numbers = {}
        self.older = self.live = None
        self.outlived = None
