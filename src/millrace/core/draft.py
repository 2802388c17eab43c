"""A batch while it is being decided.

Every change goes through a draft, which writes it down and applies it to the view in the same
step: so the next command sees it, and a replica that folds the batch sees the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TypeVar

from pyroaring import BitMap64

from millrace import limits
from millrace.core.block import Block
from millrace.core.changes import Batch, Changes
from millrace.core.codec import encode_cell
from millrace.core.commands import SnapshotRef
from millrace.core.model import (
    CatalogCell,
    Cell,
    CursorCell,
    Death,
    DeletesCell,
    Index,
    Kind,
    Message,
    Millis,
    PinCell,
    Pointers,
    ProducerCell,
    QueueCell,
    QueueSpec,
    Seq,
    ShardId,
    StageCell,
    pack_seqs,
)
from millrace.core.view import Layer, LeaseState, View, number_key

K = TypeVar("K")
T = TypeVar("T")


class Draft:
    """The changes of one shard that are decided together."""

    def __init__(self, view: View, now: Millis) -> None:
        self.view = view
        self.now = view.clock(now)
        view.time_ms = self.now
        self.changes = Changes()
        self.blocks: list[Block] = []
        self.keys: dict[bytes, int] = {}
        self.deletes = BitMap64()
        self._messages: list[Message] = []
        self._staged: list[tuple[str, Block]] = []
        self._died: dict[Death, BitMap64] = {}
        self._settled = BitMap64()
        self._leases: dict[int, LeaseState | None] = {}
        self._cells: dict[tuple[Kind, bytes], Cell | None] = {}
        self._pinned: list[int] = []
        self._promised: list[SnapshotRef] = []
        self._deletes: set[int] = set()

    # --- Rows -------------------------------------------------------------------------------

    def put_rows(self, rows: Block | Sequence[Message]) -> Seq:
        """Append rows; returns the first one's seq."""
        first = Seq(self.view.last_seq + 1)
        if isinstance(rows, Block):
            self._flush()
            self._first(first)
            self.blocks.append(rows)
            count = rows.count
        else:
            if not self._messages:
                self._first(first)
            self._messages.extend(rows)
            count = len(rows)
        self.view.last_seq = Seq(self.view.last_seq + count)
        return first

    def _first(self, first: Seq) -> None:
        self.changes.firsts = [*self.changes.firsts, first]

    def _flush(self) -> None:
        if self._messages:
            self.blocks.append(Block.of_messages(self._messages))
            self._messages = []

    def put_deletes(self, seqs: BitMap64) -> None:
        """Rows of this batch without a body: workers never get them, and they die by age."""
        second = self.now // 1000
        self.deletes |= seqs
        self.view.deletes[second] = self.view.deletes.get(second, BitMap64()) | seqs
        self._deletes.add(second)

    def drop_delete(self, seqs: BitMap64) -> None:
        """These deletes are no longer waiting for their age."""
        for second, waiting in list(self.view.deletes.items()):
            if waiting.intersect(seqs):
                rest = waiting - seqs
                if rest:
                    self.view.deletes[second] = rest
                else:
                    del self.view.deletes[second]
                self._deletes.add(second)

    def stage(self, name: str, block: Block) -> None:
        self._staged.append((name, block))

    def publish_stage(self, name: str, rows: int) -> Seq:
        """A stage takes the next seqs; returns the first one."""
        first = Seq(self.view.last_seq + 1)
        self._flush()
        self.changes.published = [*self.changes.published, (name, first, rows)]
        self.view.last_seq = Seq(self.view.last_seq + rows)
        return first

    def drop_stage(self, name: str) -> None:
        self.changes.unstaged = [*self.changes.unstaged, name]

    # --- Ends of rows -----------------------------------------------------------------------

    def die(self, why: Death, seqs: BitMap64) -> None:
        """End rows that are live or kept."""
        view = self.view
        known = self._died.get(why)
        self._died[why] = seqs if known is None else known | seqs
        if view.scanned >= view.pointers.next:
            view.hidden |= seqs
        if view.deletes:
            self.drop_delete(seqs)

    def keep(self, seqs: BitMap64) -> None:
        """These rows are settled, and wait for retaining cursors."""
        self._settled |= seqs

    def pass_to(self, seq: Seq) -> None:
        """Kept rows up to `seq` are wanted by nobody any more."""
        self.changes.passed = max(self.changes.passed, seq)

    def purge_to(self, seq: Seq) -> None:
        self.changes.purged = max(self.changes.purged, seq)

    def still_live(self, seqs: BitMap64) -> BitMap64:
        """Those of `seqs` whose death was not decided in a batch that is not folded yet."""
        live = seqs.copy()
        for died in self._died.values():
            live -= died
        purged = self.changes.purged
        for layer in self.view.layers:
            live -= layer.died
            purged = max(purged, layer.purged)
        if purged:
            live.remove_range(0, purged + 1)
        return live

    # --- Cells ------------------------------------------------------------------------------

    def put_lease(self, lease: LeaseState) -> None:
        """The lease is new or was changed; it is written once, as it is when the batch ends."""
        self.view.leases[lease.id] = lease
        self._leases[lease.id] = lease

    def push_deadline(self, deadline_ms: int, lease: int) -> None:
        heapq.heappush(self.view.deadlines, (deadline_ms, lease))

    def pop_deadline(self) -> None:
        heapq.heappop(self.view.deadlines)

    def remember_lease(self, lease: int) -> None:
        """The lease has ended; it is remembered among a bounded number of others."""
        ended = self.view.ended
        ended.append(lease)
        while len(ended) > limits.LEASES_REMEMBERED_MAX:
            self.drop_lease(ended.popleft())

    def drop_lease(self, lease: int) -> None:
        del self.view.leases[lease]
        self._leases[lease] = None

    def put_spec(self, spec: QueueSpec) -> None:
        self.view.spec = spec
        self._cells[Kind.SPEC, b""] = spec

    def put_pointers(self, pointers: Pointers) -> None:
        self.view.pointers = pointers
        self._cells[Kind.POINTERS, b""] = pointers

    def put_producer(self, name: str, cell: ProducerCell | None) -> None:
        _put(self.view.producers, name, cell)
        self._cells[Kind.PRODUCER, name.encode()] = cell

    def put_cursor(self, name: str, cell: CursorCell | None) -> None:
        view = self.view
        before = view.cursors.get(name)
        view.retained += _retains(cell) - _retains(before)
        _put(view.cursors, name, cell)
        self._cells[Kind.CURSOR, name.encode()] = cell

    def put_pin(self, pin: int, cell: PinCell) -> None:
        self.view.pins[pin] = cell
        self._pinned.append(pin)

    def promise(self, ref: SnapshotRef) -> SnapshotRef:
        """An answer that names a pin; if the pin is of this batch, it is completed at its end."""
        if ref.pin in self._pinned:
            self._promised.append(ref)
        return ref

    def renew_pin(self, pin: int, cell: PinCell) -> None:
        self.view.pins[pin] = cell
        self._cells[Kind.PIN, number_key(pin)] = cell

    def drop_pin(self, pin: int) -> None:
        del self.view.pins[pin]
        if pin in self._pinned:
            self._pinned.remove(pin)
            return
        self.changes.unpinned = [*self.changes.unpinned, pin]
        self._cells[Kind.PIN, number_key(pin)] = None

    def put_stage(self, name: str, cell: StageCell | None) -> None:
        _put(self.view.stages, name, cell)
        self._cells[Kind.STAGE, name.encode()] = cell

    def put_queue(self, key: bytes, cell: QueueCell | None) -> None:
        _put(self.view.queues, key, cell)
        self._cells[Kind.QUEUE, key] = cell

    def put_catalog(self, cell: CatalogCell) -> None:
        self.view.catalog = cell
        self._cells[Kind.CATALOG, b""] = cell

    # --- The end ----------------------------------------------------------------------------

    def empty(self) -> bool:
        """Whether nothing was changed."""
        return not (
            self._messages
            or self.blocks
            or self._staged
            or self._died
            or self._settled
            or self._leases
            or self._cells
            or self._pinned
            or self._deletes
            or not self.changes.empty()
        )

    def hidden(self) -> BitMap64:
        """Rows that this batch has ended, and its deletes."""
        out = self.deletes.copy()
        for seqs in self._died.values():
            out |= seqs
        return out

    def finish(self) -> Batch:
        """The batch, under the shard's next index; the draft must not be used afterwards."""
        view, changes = self.view, self.changes
        self._flush()
        view.index = Index(view.index + 1)
        died = BitMap64()
        for why, seqs in sorted(self._died.items()):
            changes.died = {**changes.died, int(why): pack_seqs(seqs)}
            died |= seqs
        changes.settled = pack_seqs(self._settled)
        if self._staged:
            changes.staged = [(name, 1) for name, _ in self._staged]
            self.blocks.extend(block for _, block in self._staged)
        for pin in self._pinned:
            # A pin shows its own batch, whose index is known only now.
            cell = view.pins[pin]
            view.pins[pin] = _pin_at(cell, view)
            self._cells[Kind.PIN, number_key(pin)] = view.pins[pin]
        for ref in self._promised:
            ref.index, ref.boundary = view.index, view.last_seq
        changes.pinned = self._pinned
        changes.cells = self._encode_cells()
        view.layers.append(
            Layer(view.index, view.last_seq, self.keys, died, self.deletes, changes.purged)
        )
        return Batch(view.shard, view.index, self.now, changes, self.blocks)

    def _encode_cells(self) -> list[tuple[int, bytes, bytes | None]]:
        for lease, state in self._leases.items():
            self._cells[Kind.LEASE, number_key(lease)] = None if state is None else state.cell()
        for second in sorted(self._deletes):
            waiting = self.view.deletes.get(second)
            self._cells[Kind.DELETES, number_key(second)] = (
                None if waiting is None else DeletesCell(pack_seqs(waiting))
            )
        return [
            (int(kind), key, None if cell is None else encode_cell(cell))
            for (kind, key), cell in self._cells.items()
        ]


class Desk:
    """The drafts of one commit group's batch, made as commands need them."""

    def __init__(self, view: Callable[[ShardId], View | None], now: Millis) -> None:
        self._view = view
        self.now = now
        self.drafts: dict[ShardId, Draft] = {}

    def draft(self, shard: ShardId) -> Draft | None:
        """The shard's draft, or None if there is no such shard (any more)."""
        draft = self.drafts.get(shard)
        if draft is None:
            view = self._view(shard)
            if view is None or view.dropped:
                return None
            draft = self.drafts[shard] = Draft(view, self.now)
        return None if draft.view.dropped else draft

    def make(self, view: View) -> Draft:
        """A draft for a shard that begins with this batch."""
        draft = self.drafts[view.shard] = Draft(view, self.now)
        return draft


def _put(cells: dict[K, T], key: K, cell: T | None) -> None:
    if cell is None:
        cells.pop(key, None)
    else:
        cells[key] = cell


def _retains(cell: CursorCell | None) -> int:
    return int(cell is not None and cell.retain and not cell.dropped)


def _pin_at(cell: PinCell, view: View) -> PinCell:
    return PinCell(
        view.index,
        view.last_seq,
        view.pointers.floor,
        cell.deadline_ms,
        cell.cursor,
        cell.retain,
    )
