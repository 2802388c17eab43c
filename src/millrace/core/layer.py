"""What a view knows of batches that are not folded yet, and of what it asked the store for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec
from pyroaring import BitMap64

from millrace.core import bounds
from millrace.core.block import Block
from millrace.core.commands import Held, Outlived, RowFacts, StageFacts
from millrace.core.idcells import ExpiryCell, expiry_key
from millrace.core.model import Cell, Index, Kind
from millrace.core.seqs import pack_seqs
from millrace.core.waiting import Waits


class Layer(msgspec.Struct, frozen=True):
    """What a batch that is not yet folded did to keys, rows and stages."""

    index: Index
    time_ms: int
    last_seq: int
    keys: dict[bytes, int]
    died: BitMap64
    kept: BitMap64
    deletes: BitMap64
    passed: int
    purged: int
    """All rows up to it died, purged or by retention."""
    staged: list[tuple[str, Block]]
    ended: frozenset[str]
    """Stages that were published or dropped; `staged` comes before them."""
    aside: BitMap64
    waits: Waits
    points: dict[tuple[Kind, bytes], Cell | None]
    """Cells that are asked for by their keys: as this batch has left them."""


class Expiring:
    """What a batch has done so far to the cells of what goes by itself."""

    __slots__ = ("put", "rows", "steps", "upto")

    def __init__(self) -> None:
        self.put = 0
        """So many were put."""
        self.rows: dict[int, BitMap64] = {}
        """Due time → the rows of this batch that expire then; cells name them when it ends."""
        self.upto = b""
        """Those before this key were let go, in so many steps."""
        self.steps = 0

    def cells(self, index: int) -> Iterator[tuple[tuple[Kind, bytes], ExpiryCell]]:
        """The cells of all rows of the batch, which has this index."""
        for due_ms, seqs in self.rows.items():
            parts: Iterable[BitMap64] = (seqs,)
            if len(seqs) > bounds.EXPIRY_SEQS_MAX:
                parts = _parts(seqs)
            for part in parts:
                yield (Kind.EXPIRY, self.next_key(due_ms, index)), ExpiryCell((), pack_seqs(part))

    def next_key(self, due_ms: int, index: int) -> bytes:
        """The key of another cell of the batch, which has this index."""
        self.put += 1
        return expiry_key(due_ms, index, self.put - 1)


def _parts(seqs: BitMap64) -> Iterator[BitMap64]:
    left = iter(seqs)
    while part := BitMap64(islice(left, bounds.EXPIRY_SEQS_MAX)):
        yield part


class Facts:
    """What was fetched from the store for the commands at hand; as of the last folded batch."""

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
        """The first cells of messages that were put aside before the last purge."""
        self.points: dict[tuple[Kind, bytes], Cell | None] = {}
        """Kind and key → the cell, None if there is none."""
        self.expiry: list[tuple[bytes, ExpiryCell]] | None = None
        """The first cells of what goes by itself; None: they were not asked for."""
        self.ended: dict[tuple[int, int], BitMap64] = {}
        """First and last seq → those between them that are dead, or settled and kept."""
        self.dead: dict[tuple[int, int], BitMap64] = {}
        """First and last seq → those between them that are dead."""
        self.older: int | None = None
        """The first row that is not older than retention keeps rows."""
        self.outlived: Outlived | None = None
        """The first messages that are older than the queue lets them live."""
        self.held: dict[int, list[Held]] = {}
        """Pin → the dead rows that it keeps."""
        self.live: int | None = None
        """How many rows are live or kept."""
        self.names: dict[tuple[int, bool], tuple[object, list[tuple[Kind, bytes] | None]]] = {}
        """Publishes, by their identity and whether bodies have ids, and the cells of their rows'
        ids."""
        self.numbers: dict[int, tuple[object, list[int]]] = {}
        """Rows that are published, by their identity, and the numbers of their groups."""

    def clear(self) -> None:
        """They were as of now; what comes later must ask again."""
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
