"""The draft of a batch: changes that are decided and not yet appended.

Every change goes through a draft, which records it and applies it to the view in the same step, so
that the next command sees it, and a replica that folds the batch sees the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from pyroaring import BitMap64, FrozenBitMap64

from millrace import limits
from millrace.core.answers import SnapshotRef
from millrace.core.cells import (
    AttemptCell,
    AwaitedCell,
    CatalogCell,
    Cell,
    CursorCell,
    DeletesCell,
    Kind,
    PinCell,
    Pointers,
    ProducerCell,
    QuarantineCell,
    QueueCell,
    SessionCell,
    StageCell,
    SubscriptionCell,
    TopicCell,
    awaited_key,
)
from millrace.core.changes import Batch, Changes
from millrace.core.format.block import Block
from millrace.core.format.codec import encode_cell
from millrace.core.format.seq_sets import pack_seqs
from millrace.core.model import NEVER_MS, Death, Index, LeaseId, Millis, NewMessage, Seq, ShardId
from millrace.core.spec import QueueSpec
from millrace.core.state.deferred_cells import DeferredChanges, DeferredMessages
from millrace.core.state.group_state import ChosenGroup
from millrace.core.state.lease_state import LeaseState, SessionInFlight
from millrace.core.state.unfolded import ExpiryCells, UnfoldedBatch
from millrace.core.state.view import View, number_key

# --- The cells of a batch while it is being decided ----------------------------------------------
#
# Each change is recorded and applied to the view in the same step, as every change of a `Draft`.

K = TypeVar("K")
T = TypeVar("T")


class CellDraft:
    """Changes of cells in a draft; the base of `Draft`."""

    def __init__(self, view: View, now: Millis) -> None:
        self.view = view
        self.now = view.clock(now)
        view.time_ms = self.now
        self.changes = Changes()
        self.hands_out_in_order = view.spec.hands_out_in_order()
        self.takes_plain = view.takes_plain()
        self.waits: DeferredChanges = {}
        self.points: dict[tuple[Kind, bytes], Cell | None] = {}
        """Cells outside the view that this batch has put or deleted (None)."""
        self._leases: dict[int, LeaseState | None] = {}
        self._cells: dict[tuple[Kind, bytes], Cell | None] = {}
        self._pinned: list[int] = []
        self.moved: set[str] = set()
        """Cursors that were changed here."""
        self._promised: list[SnapshotRef] = []
        self._seconds: dict[int, None] = {}
        self._born: set[tuple[Kind, bytes]] = set()

    def put_lease(self, lease: LeaseState) -> None:
        """Record a lease that is new or was changed; it is written once, in its final state.

        A lease without messages has ended: it is remembered for a while to answer late retries,
        among a bounded number of others.
        """
        view = self.view
        view.leases[lease.id] = lease
        self._leases[lease.id] = lease
        if lease.session:
            view.note_held(lease)
        if view.parts is not None:
            view.parts.touch(lease.id)
        if not lease.ended_ms and lease.is_over():
            self._end_lease(lease)

    def end_lease(self, lease: LeaseState) -> None:
        """Record a lease without a session of which no message is left, as `put_lease`."""
        self._leases[lease.id] = lease
        self._end_lease(lease)

    def _end_lease(self, lease: LeaseState) -> None:
        view = self.view
        lease.ended_ms = max(self.now, 1)
        heapq.heappush(view.ended, (lease.ended_ms, lease.id))
        while len(view.ended) > limits.LEASES_REMEMBERED_MAX:
            self.forget_lease()

    def new_lease(self, seqs: BitMap64, lease_ms: int) -> LeaseState:
        """Create a lease of these seqs with the next number; it is not stored until `add_lease`
        is called and the pointers name it."""
        view = self.view
        number, index = LeaseId(view.pointers.lease + 1), view.index + 1
        return LeaseState(number, index, FrozenBitMap64(seqs), self.now + lease_ms, lease_ms)

    def add_lease(self, lease: LeaseState) -> None:
        """Record a new lease without a session, as `put_lease`."""
        self.view.leases[lease.id] = self._leases[lease.id] = lease
        self.push_deadline(lease.deadline_ms, lease.id)

    def push_deadline(self, deadline_ms: int, lease: int) -> None:
        view = self.view
        if deadline_ms >= NEVER_MS:
            return
        heapq.heappush(view.deadlines, (deadline_ms, lease))
        if len(view.deadlines) > view.deadlines_max:
            view.gather_deadlines()

    def pop_deadline(self) -> None:
        heapq.heappop(self.view.deadlines)

    def forget_lease(self) -> None:
        """Forget the lease that ended first."""
        _, lease = heapq.heappop(self.view.ended)
        del self.view.leases[lease]
        self._leases[lease] = None

    def put_spec(self, spec: QueueSpec) -> None:
        self.view.spec = spec
        self.hands_out_in_order = spec.hands_out_in_order()
        self.takes_plain = self.view.takes_plain()
        self._cells[Kind.SPEC, b""] = spec

    def put_pointers(self, pointers: Pointers) -> None:
        self.view.pointers = pointers
        self._cells[Kind.POINTERS, b""] = pointers

    def put_producer(self, name: str, cell: ProducerCell | None) -> None:
        # Removed first, so that the least recently used one stays in front.
        self.view.producers.pop(name, None)
        _put(self.view.producers, name, cell)
        self._cells[Kind.PRODUCER, name.encode()] = cell

    def put_attempt(self, name: str, cell: AttemptCell | None) -> None:
        # As with producers: the oldest stays in front.
        self.view.attempts.pop(name, None)
        _put(self.view.attempts, name, cell)
        self._cells[Kind.ATTEMPT, name.encode()] = cell

    def put_cursor(self, name: str, cell: CursorCell | None) -> None:
        view = self.view
        previous = view.cursors.get(name)
        self._count_readers(
            0 if previous is None else previous.pin, 0 if cell is None else cell.pin
        )
        _put(view.cursors, name, cell)
        retains = cell is not None and cell.retain and not cell.dropped
        if retains or name in view.retaining:
            _put(view.retaining, name, cell if retains else None)
            view.retain_floor_known = None
        self._cells[Kind.CURSOR, name.encode()] = cell
        self.moved.add(name)

    def _count_readers(self, old: int, new: int) -> None:
        """Count that a cursor reads another pin, or none (0)."""
        readers, pins = self.view.readers, self.view.pins
        if old == new:
            return
        if old in pins:
            readers[old] -= 1
        if new in pins:
            readers[new] = readers.get(new, 0) + 1

    def put_session(self, session: int, cell: SessionCell | None) -> None:
        view = self.view
        _put(view.sessions, session, cell)
        if cell is None:
            view.held.pop(session, None)
        else:
            view.held.setdefault(session, SessionInFlight())
        self._cells[Kind.SESSION, number_key(session)] = cell

    def put_pin(self, pin: int, cell: PinCell) -> None:
        self.view.pins[pin] = cell
        self._pinned.append(pin)

    def is_new_pin(self, pin: int) -> bool:
        """Return True if the pin is of this batch, so that its index and boundary are not known
        yet."""
        return pin in self._pinned

    def promise(self, ref: SnapshotRef) -> SnapshotRef:
        """Return an answer with a pin; if the pin is of this batch, the answer is completed at
        its end."""
        if self.is_new_pin(ref.pin):
            self._promised.append(ref)
        return ref

    def renew_pin(self, pin: int, cell: PinCell) -> None:
        self.view.pins[pin] = cell
        if not self.is_new_pin(pin):
            self._cells[Kind.PIN, number_key(pin)] = cell

    def drop_pin(self, pin: int) -> None:
        del self.view.pins[pin]
        self.view.readers.pop(pin, None)
        self.view.scale.pinned.pop(pin, None)
        if self.is_new_pin(pin):
            self._pinned.remove(pin)
            return
        self.changes.unpinned.append(pin)
        self._cells[Kind.PIN, number_key(pin)] = None

    def put_stage(self, name: str, cell: StageCell | None) -> None:
        _put(self.view.stages, name, cell)
        self._cells[Kind.STAGE, name.encode()] = cell

    def put_queue(self, key: bytes, cell: QueueCell | None) -> None:
        view = self.view
        previous = view.queues.get(key)
        if previous is not None:
            for shard in previous.shards:
                del view.owners[shard]
        if cell is not None:
            view.owners.update(dict.fromkeys(cell.shards, key))
        _put(view.queues, key, cell)
        self._cells[Kind.QUEUE, key] = cell

    def put_catalog(self, cell: CatalogCell) -> None:
        self.view.catalog = cell
        self._cells[Kind.CATALOG, b""] = cell

    def put_topic(self, key: bytes, cell: TopicCell | None) -> None:
        """Put the topic under its name in the catalog, or under the empty key in its own shard."""
        if key:
            _put(self.view.topics, key, cell)
        else:
            self.view.topic = cell
        self._cells[Kind.TOPIC, key] = cell

    def put_quarantine(self, key: bytes, cell: QuarantineCell | None) -> None:
        _put(self.view.quarantine, key, cell)
        self.takes_plain = self.view.takes_plain()
        self._cells[Kind.QUARANTINE, key] = cell

    def put_subscription(self, number: int, cell: SubscriptionCell | None) -> None:
        _put(self.view.subscriptions, number, cell)
        self._cells[Kind.SUBSCRIPTION, number_key(number)] = cell

    def put_awaited(self, target: str, cell: AwaitedCell, *, waits: bool) -> None:
        """Record that a subscription waits, or no longer waits, for the creation of a queue
        (space/name)."""
        waiting = self.view.awaited.setdefault(target, set())
        (waiting.add if waits else waiting.discard)(cell)
        if not waiting:
            del self.view.awaited[target]
        self._cells[Kind.AWAITED, awaited_key(target, cell)] = cell if waits else None

    def put_waiting(self, kind: Kind, key: bytes, cell: DeferredMessages | None) -> None:
        """Put a cell of deferred messages under this key, or (None) delete it."""
        name = (kind, key)
        window = self.view.windows[kind]
        if cell is not None:
            window.put(key, cell)
            if name not in self.waits:
                self._born.add(name)
            self.waits[name] = cell
            return
        window.drop(key)
        self.end_waiting(kind, (key,))

    def end_waiting(self, kind: Kind, keys: Iterable[bytes]) -> None:
        """Delete cells that were taken out of their window, as `put_waiting` of None."""
        waits, born = self.waits, self._born
        for key in keys:
            name = (kind, key)
            if name in born:
                # The cell existed only within this batch.
                del waits[name]
                born.discard(name)
            else:
                waits[name] = None

    def _encode_cells(self) -> list[tuple[int, bytes, bytes | None]]:
        cells = [
            (int(kind), key, None if cell is None else encode_cell(cell))
            for changed in (self._cells, self.points)
            for (kind, key), cell in changed.items()
        ]
        for lease, state in self._leases.items():
            value = None if state is None else encode_cell(state.cell())
            cells.append((int(Kind.LEASE), number_key(lease), value))
        for (kind, key), cell in self.waits.items():
            cells.append((int(kind), key, None if cell is None else cell.encoded()))
        for second in self._seconds:
            waiting = self.view.deletes.get(second)
            value = None if waiting is None else encode_cell(DeletesCell(pack_seqs(waiting)))
            cells.append((int(Kind.DELETES), number_key(second), value))
        return cells


def _put(cells: dict[K, T], key: K, cell: T | None) -> None:
    if cell is None:
        cells.pop(key, None)
    else:
        cells[key] = cell


class Draft(CellDraft):
    """The changes of one shard in one batch."""

    def __init__(self, view: View, now: Millis) -> None:
        super().__init__(view, now)
        self.blocks: list[Block] = []
        self.keys: dict[bytes, int] = {}
        """The newest seq of each key that was published here."""
        self.deletes = BitMap64()
        """The deletes that were published here, dead ones too."""
        self.aside = BitMap64()
        """The rows that were deferred here."""
        self.expiring = ExpiryCells()
        self.gathering: dict[tuple[int, int], bytes] = {}
        """(due time, priority) → the cell of this batch that gathers such messages."""
        self.promoted = 0
        """Number of cells of messages whose delay has expired."""
        self.found_dead = 0
        """Dead messages that were found at the head of the queue."""
        self.ready_known = 0
        """On a keyed queue: number of ready deferred messages that are known to be live."""
        self.passed = 0
        """Number of useless turns of groups, and of their dead messages."""
        self.taken_bytes = 0
        """Bytes of the rows that were published here, if the queue has a limit."""
        self.chosen: list[ChosenGroup] = []
        self.staged: list[tuple[str, Block]] = []
        self.ended_stages: set[str] = set()
        self._messages: list[NewMessage] = []
        self._died: dict[Death, BitMap64] = {}
        self._kept = BitMap64()

    @property
    def index(self) -> Index:
        """The index that the batch will have."""
        return Index(self.view.index + 1)

    # --- Rows -------------------------------------------------------------------------------

    def put_rows(self, rows: Block | Sequence[NewMessage]) -> Seq:
        """Append rows; returns the seq of the first one."""
        view = self.view
        first = Seq(view.last_seq + 1)
        count = rows.count if isinstance(rows, Block) else len(rows)
        if not count:
            return first
        if view.retaining:
            self._refresh_retaining()
        if isinstance(rows, Block):
            self._flush()
            self.changes.firsts.append(first)
            self.blocks.append(rows)
        else:
            if not self._messages:
                self.changes.firsts.append(first)
            self._messages.extend(rows)
        view.last_seq = Seq(view.last_seq + count)
        return first

    def _flush(self) -> None:
        if self._messages:
            self.blocks.append(Block.of_messages(self._messages))
            self._messages = []

    def _refresh_retaining(self) -> None:
        for name, cell in self.view.waiting_cursors(self.now):
            self.put_cursor(name, cell)

    def put_deletes(self, seqs: BitMap64) -> None:
        """Record rows of this batch without a body: they are never delivered, and expire by age."""
        self.deletes |= seqs
        live = self.still_live(seqs)
        if live:
            second = self.now // 1000
            self.view.deletes.add(second, live)
            self._seconds[second] = None

    def stage(self, name: str, block: Block) -> None:
        """Add rows to a stage that was not ended in this batch."""
        if block.count:
            self.staged.append((name, block))

    def publish_stage(self, name: str, rows: int) -> Seq:
        """Publish a stage under the next seqs; returns the first one."""
        first = Seq(self.view.last_seq + 1)
        self._flush()
        self.ended_stages.add(name)
        if not rows:
            return first
        if self.view.retaining:
            self._refresh_retaining()
        self.changes.published.append((name, first, rows))
        self.view.last_seq = Seq(self.view.last_seq + rows)
        return first

    def drop_stage(self, name: str) -> None:
        self.changes.unstaged.append(name)
        self.ended_stages.add(name)

    # --- Ends of rows -----------------------------------------------------------------------

    def die(self, why: Death, seqs: BitMap64) -> None:
        """End rows that are live or kept."""
        view = self.view
        died = self._died.get(why)
        if died is None:
            self._died[why] = seqs.copy()
        else:
            died |= seqs
        if self._kept:
            self._kept -= seqs
        first = view.first_fresh()
        if view.scanned >= first and seqs.min() <= view.scanned:
            # Rows above the window are read when the window gets there.
            within = seqs.copy()
            within.remove_range(0, first)
            within.remove_range(view.scanned + 1, seqs.max() + 1)
            view.hidden |= within
        if view.deletes:
            self._seconds.update(dict.fromkeys(view.deletes.discard(seqs)))

    def keep(self, seqs: BitMap64) -> None:
        """Keep settled rows for retaining cursors."""
        self._kept |= seqs

    def kept(self) -> BitMap64:
        """Return the rows that unfolded batches have kept."""
        return self._kept.union(*(layer.kept for layer in self.view.layers))

    def pass_to(self, seq: Seq) -> None:
        """End kept rows up to `seq`, which no retaining cursor needs any more."""
        if not self.changes.purged:
            # Otherwise rows kept before this batch are dead already.
            self.changes.passed = max(self.changes.passed, seq)
        if self._kept and self._kept.min() <= seq:
            # Rows kept by this batch are not passed together with older ones: it may keep others
            # below `seq` for a cursor that comes later.
            passed = self._kept.copy()
            passed.remove_range(seq + 1, passed.max() + 1)
            self.die(Death.SETTLED, passed)

    def purge(self) -> Seq:
        """End all present rows; returns the last seq."""
        upto = self.view.last_seq
        self.purge_to(upto)
        return upto

    def purge_to(self, upto: int) -> None:
        """End every row up to `upto`; no row after it may have ended before."""
        self.changes.purged = max(self.changes.purged, upto)
        self.end_to(upto)

    def end_to(self, upto: int) -> None:
        """Forget all rows up to `upto`; the changes contain the reason."""
        view = self.view
        view.ended_to = max(view.ended_to, upto)
        self._kept.remove_range(0, upto + 1)
        view.hidden.remove_range(0, upto + 1)
        view.scanned = max(view.scanned, upto)
        gone = view.deletes.seqs.copy()
        gone.remove_range(upto + 1, view.last_seq + 1)
        self._seconds.update(dict.fromkeys(view.deletes.discard(gone)))

    @property
    def ended_to(self) -> int:
        """Seq up to which all rows die in this batch."""
        return max(self.changes.purged, self.changes.expired)

    def still_live(self, seqs: BitMap64) -> BitMap64:
        """Return the seqs whose death was not decided in an unfolded batch.

        Rows that died because retaining cursors passed them are only known to `publish`.
        """
        live = seqs.copy()
        for died in self._died.values():
            live -= died
        purged = self.ended_to
        for layer in self.view.layers:
            live -= layer.died
            purged = max(purged, layer.purged)
        if purged:
            live.remove_range(0, purged + 1)
        return live

    # --- The end ----------------------------------------------------------------------------

    def empty(self) -> bool:
        """Return True if nothing was changed."""
        return not (
            self._messages
            or self.blocks
            or self.staged
            or self._died
            or self._kept
            or self._leases
            or self._cells
            or self._pinned
            or self._seconds
            or self.aside
            or self.waits
            or self.points
            or not self.changes.empty()
        )

    def changes_rows(self) -> bool:
        """Return whether a snapshot of this batch shows other rows than one of the batch before."""
        changes = self.changes
        return bool(
            changes.firsts or changes.published or self._died or self._kept or self.ended_to
        )

    def hidden(self) -> BitMap64:
        """Return the rows that this batch has ended, kept or deferred, and its deletes."""
        return self.deletes | self.aside | self._kept | self.died()

    def died(self) -> BitMap64:
        """Return the rows that this batch has ended."""
        return BitMap64().union(*self._died.values())

    def finish(self) -> Batch:
        """Return the batch, under the shard's next index; the draft must not be used afterwards."""
        view, changes = self.view, self.changes
        self._flush()
        view.index = self.index
        if codec := view.spec.compressed:
            self.blocks = [block.squeezed(codec) for block in self.blocks]
            self.staged = [(name, block.squeezed(codec)) for name, block in self.staged]
        if changes.firsts or changes.weight:
            changes.weight += sum([block.size() for block in self.blocks])
            size, limit = changes.weight, view.spec.max_bytes
            self._cells.update(view.scale.publish(size, view.last_seq, view.weighed_from, limit))
        if self.changes_rows():
            view.changed = self.index
        died = BitMap64()
        for why, seqs in sorted(self._died.items()):
            changes.died[int(why)] = pack_seqs(seqs)
            died |= seqs
        if self._kept:
            changes.settled = pack_seqs(self._kept)
        changes.aside = pack_seqs(self.aside)
        if self.staged:
            changes.staged = [(name, 1) for name, _ in self.staged]
            self.blocks.extend(block for _, block in self.staged)
        for pin in self._pinned:
            # A pin shows its own batch, whose index is known only now.
            cell = view.pins[pin]
            view.pins[pin] = view.pinned(cell)
            self._cells[Kind.PIN, number_key(pin)] = view.pins[pin]
        for ref in self._promised:
            ref.index, ref.boundary = view.index, view.last_seq
        changes.pinned = self._pinned
        if self.expiring.rows:
            self.points.update(self.expiring.cells(view.index))
        changes.cells = self._encode_cells()
        view.layers.append(
            UnfoldedBatch(
                view.index,
                self.now,
                view.last_seq,
                self.keys,
                died,
                self._kept,
                self.deletes,
                changes.passed,
                self.ended_to,
                self.staged,
                frozenset(self.ended_stages),
                self.aside,
                self.waits,
                self.points,
            )
        )
        return Batch(view.shard, view.index, self.now, changes, self.blocks)


# --- The drafts of all shards of a commit group for one batch ------------------------------------


class BatchContext:
    """The drafts of one batch of a commit group, created as commands need them."""

    def __init__(self, view: Callable[[ShardId], View | None], now: Millis) -> None:
        self._view = view
        self.now = now
        self.drafts: dict[ShardId, Draft] = {}

    def draft(self, shard: ShardId) -> Draft | None:
        """Return the shard's draft, or None if there is no such shard (any more)."""
        draft = self.drafts.get(shard)
        if draft is None:
            view = self._view(shard)
            if view is None or view.dropped:
                return None
            draft = self.drafts[shard] = Draft(view, self.now)
        return None if draft.view.dropped else draft

    def view(self, shard: ShardId) -> View | None:
        """Return the view of the shard, changes of its draft included, or None if there is none."""
        view = self._view(shard)
        return None if view is None or view.dropped else view

    def make(self, view: View) -> Draft:
        """Return a draft for a shard that begins with this batch."""
        draft = self.drafts[view.shard] = Draft(view, self.now)
        return draft
