"""The decider's memory of a shard: its cells as values, and indexes derived from them.

A view is loaded from the store and then changed only through a `Draft`, ahead of the commit. It
holds nothing that could not be loaded again: when an append fails, the view is dropped.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import (
    AttemptCell,
    AwaitedCell,
    CatalogCell,
    CursorCell,
    DedupCell,
    DeferredCell,
    DeletesCell,
    ExpiryCell,
    GroupCell,
    IdCell,
    Kind,
    LeaseCell,
    PartitionCell,
    PinCell,
    Pointers,
    ProducerCell,
    QuarantineCell,
    QueueCell,
    RingCell,
    RowSizesCell,
    RunsCell,
    SessionCell,
    SlicesCell,
    StageCell,
    SubscriptionCell,
    TakeoverCell,
    TopicCell,
    TurnCell,
    awaited_name,
)
from millrace.core.format.codec import decode_cell
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.model import (
    NEVER_MS,
    Epoch,
    History,
    Index,
    LeaseId,
    Millis,
    Seq,
    ShardId,
)
from millrace.core.spec import QueueSpec
from millrace.core.state.cell_window import CellWindow
from millrace.core.state.deferred_cells import DeferredMessages
from millrace.core.state.fold import ShardMeta
from millrace.core.state.group_state import GroupIndex
from millrace.core.state.histories import resume
from millrace.core.state.kept_deletes import KeptDeletes
from millrace.core.state.lease_state import LeaseState, SessionInFlight
from millrace.core.state.partition_state import Partitions
from millrace.core.state.row_sizes import RowSizes
from millrace.core.state.unfolded import StoreFacts, UnfoldedBatch

_REFRESH_MS = limits.CURSOR_RETAIN_MS_MAX // 100
"""Precision of the time at which a waiting cursor begins to lag: each update writes a cell."""


class View:
    """One shard as its decider sees it, with all decisions, committed or not."""

    def __init__(self, shard: ShardId, epoch: Epoch, history: History) -> None:
        self.shard = shard
        self.epoch = epoch
        self.history = history
        self.index = Index(0)
        self.last_seq = Seq(0)
        self.time_ms = Millis(0)
        self.dropped = False

        self.spec = QueueSpec()
        self.pointers = Pointers()
        self.leases: dict[int, LeaseState] = {}
        self.producers: dict[str, ProducerCell] = {}
        """Least recently used producer first."""
        self.cursors: dict[str, CursorCell] = {}
        self.sessions: dict[int, SessionCell] = {}
        self.pins: dict[int, PinCell] = {}
        """Ordered by number."""
        self.stages: dict[str, StageCell] = {}
        self.deletes = KeptDeletes()
        self.takeovers: list[TakeoverCell] = []
        self.queues: dict[bytes, QueueCell] = {}
        self.owners: dict[int, bytes] = {}
        """Shard → the key of its queue in `queues`."""
        self.catalog: CatalogCell | None = None
        self.attempts: dict[str, AttemptCell] = {}
        """Lease calls that may be repeated, oldest first."""
        self.topics: dict[bytes, TopicCell] = {}
        self.topic: TopicCell | None = None
        """The settings, if this shard is a topic."""
        self.subscriptions: dict[int, SubscriptionCell] = {}
        self.awaited: dict[str, set[AwaitedCell]] = {}
        """In the catalog: name of a missing queue, as space/name → the subscriptions that wait
        for it."""
        self.scale = RowSizes()
        self.partition: PartitionCell | None = None
        """The partitions, if the queue's delivery is "partitions"."""
        self.pages: dict[int, SlicesCell] = {}
        """Their pages, until `parts` is built from them."""
        self.quarantine: dict[bytes, QuarantineCell] = {}
        """Why the shard is quarantined; empty: it is not. See `delivery/quarantine.py`."""

        # Derived: never stored, rebuilt by `load`.
        self.holder: dict[int, int] = {}
        """Seq → the lease of its latest delivery, for delivered messages that have not ended."""
        self.returned = BitMap64()
        """Released or expired messages that are ready for redelivery."""
        self.postponed = BitMap64()
        """Released messages whose retry delay has not expired."""
        self.held: dict[int, SessionInFlight] = {}
        """Session → its messages in flight."""
        self.doomed = BitMap64()
        """Dead letters that are not moved yet."""
        self.overdue = BitMap64()
        """Messages in flight with an expired TTL; some may have ended since."""
        self.deadlines: list[tuple[int, int]] = []
        """A heap of (deadline, lease) with outdated entries."""
        self.deadlines_max = limits.DEADLINES_SPARE
        """Size at which the heap is rebuilt without moved deadlines."""
        self.ended: list[tuple[int, int]] = []
        """A heap of (end, lease): the leases that are only remembered."""
        self.readers: dict[int, int] = {}
        """Pin → number of cursors that read it, if any."""
        self.changed = Index(0)
        """The last batch that may have changed what a reader sees."""
        self.retaining: dict[str, CursorCell] = {}
        """Retaining cursors that were not dropped."""
        self.refreshed_ms = 0
        """Time at which retaining cursors at the end were last refreshed."""
        self.retain_floor_known: int | None = None
        """Cache of `retain_floor`, until a retaining cursor moves."""
        self.hidden = BitMap64()
        """Up to `scanned`: rows from `next` on that are not delivered in the order of seqs."""
        self.scanned = 0
        self.skipped = 0
        """Seq up to which, from `next` on, all rows are hidden: `hidden` no longer contains
        them."""
        self.served = 0
        """The shard of a queue with the smallest number is the least recently served one."""
        self.set_windows(
            CellWindow(limits.WINDOW_CELLS, None), CellWindow(limits.WINDOW_CELLS, None)
        )
        self.groups = GroupIndex()
        self.parts: Partitions | None = None
        self.swept_from: int | None = None
        """The batch since which garbage cells of an earlier era may exist."""
        self.swept_to: dict[Kind, bytes] = {}
        self.expiry_ms: int | None = None
        """Nothing that `core/retention/expiry.py` knows of expires before then; None: nothing."""
        self.tidied_index = Index(0)
        self.tidied_ms = 0
        """Batch and time of the last garbage collection of expiry cells."""
        self.tidied_to = b""
        """The key from which it goes on."""
        self.aged = 0
        """All rows up to here have ended, or are marked as overdue in the lease that holds them."""
        self.eldest_ms = 0
        """No later row was published before this time."""
        self.looked_index = Index(0)
        """The batch as of which it was checked whether there are any."""
        self.ended_to = 0
        """Seq up to which all rows died, purged or by retention."""
        self.aged_ms = 0
        """Time of the last search for rows that are too old."""
        self.weighed_ms = 0
        """Time at which pins were last measured."""
        self.drop_from = 0
        """No undelivered row waits before this seq."""
        self.stored_seq = 0
        """The last seq that the store has."""
        self.stored_index = Index(0)
        """The last batch that the store has folded; 0: it does not know the shard."""
        self.facts = StoreFacts()
        self.layers: list[UnfoldedBatch] = []
        """Batches that were decided and are not folded yet, oldest first."""

    @classmethod
    def load(
        cls,
        shard: ShardId,
        epoch: Epoch,
        history: History,
        meta: ShardMeta,
        cells: Iterable[tuple[Kind, bytes, bytes]],
    ) -> View:
        """Load the view of a shard whose folded state is `meta` and `cells`."""
        view = cls(shard, epoch, history)
        view.index = Index(meta.index)
        view.last_seq = Seq(meta.last_seq)
        view.stored_seq = meta.last_seq
        view.stored_index = Index(meta.index)
        view.time_ms = Millis(meta.time_ms)
        view.ended_to = meta.floor
        view.looked_index = view.index
        view.aged = meta.floor
        if not meta.live:
            view.aged, view.eldest_ms = meta.last_seq, meta.time_ms
        view.scale.total = meta.weight
        for kind, key, value in cells:
            view._load_cell(kind, key, value)
        if meta.history and meta.history != history:
            # The new history is stored with its first batch; until then it is known only here.
            view.takeovers.append(TakeoverCell(meta.history, meta.index, meta.last_seq))
        view._derive()
        return view

    def _load_cell(self, kind: Kind, key: bytes, value: bytes) -> None:
        match decode_cell(kind, value):
            case QueueSpec() as cell:
                self.spec = cell
            case Pointers() as cell:
                self.pointers = cell
            case LeaseCell() as cell:
                lease = LeaseId(number(key))
                self.leases[lease] = LeaseState.load(lease, cell)
            case ProducerCell() as cell:
                self.producers[key.decode()] = cell
            case CursorCell() as cell:
                self.cursors[key.decode()] = cell
            case SessionCell() as cell:
                self.sessions[number(key)] = cell
            case PinCell() as cell:
                self.pins[number(key)] = cell
            case StageCell() as cell:
                self.stages[key.decode()] = cell
            case DeletesCell() as cell:
                self.deletes.add(number(key), unpack_seqs(cell.seqs))
            case TakeoverCell() as cell:
                self.takeovers.append(cell)
            case QueueCell() as cell:
                self.queues[key] = cell
                self.owners.update(dict.fromkeys(cell.shards, key))
            case CatalogCell() as cell:
                self.catalog = cell
            case TopicCell() as cell:
                if key:
                    self.topics[key] = cell
                else:
                    self.topic = cell
            case SubscriptionCell() as cell:
                self.subscriptions[number(key)] = cell
            case AwaitedCell() as cell:
                self.awaited.setdefault(awaited_name(key), set()).add(cell)
            case AttemptCell() as cell:
                self.attempts[key.decode()] = cell
            case RowSizesCell() as cell:
                self.scale.add(number(key), cell)
            case PartitionCell() as cell:
                self.partition = cell
            case SlicesCell() as cell:
                self.pages[number(key)] = cell
            case QuarantineCell() as cell:
                self.quarantine[key] = cell
            case DeferredCell() | DedupCell() | ExpiryCell() | IdCell() | RunsCell():
                # There may be too many of these: they are read on demand.
                pass
            case TurnCell() | GroupCell() | RingCell():
                # There may be too many of these: they are read on demand.
                pass

    def _derive(self) -> None:
        self.scanned = self.pointers.next - 1
        if self.pointers.aside:
            low = number_key(self.pointers.era)
            self.set_windows(
                CellWindow(limits.WINDOW_CELLS, low), CellWindow(limits.WINDOW_CELLS, low)
            )
        self.swept_from = 0 if self.pointers.era else None
        self.expiry_ms = 0 if self.pointers.expires else None
        oldest_first = sorted(self.producers.items(), key=lambda item: item[1].time_ms)
        self.producers = dict(oldest_first)
        self.attempts = dict(sorted(self.attempts.items(), key=lambda item: item[1].time_ms))
        self.pins = dict(sorted(self.pins.items()))
        for cell in self.cursors.values():
            if cell.pin in self.pins:
                self.readers[cell.pin] = self.readers.get(cell.pin, 0) + 1
        self.changed = self.index
        self.retaining = {
            name: cell for name, cell in self.cursors.items() if cell.retain and not cell.dropped
        }
        self.held = {session: SessionInFlight() for session in self.sessions}
        for lease in self.leases.values():
            self.note_held(lease)
            if lease.ended_ms:
                self.ended.append((lease.ended_ms, lease.id))
                continue
            self.holder.update(dict.fromkeys(lease.open, lease.id))
            self.holder.update(dict.fromkeys(lease.freed, lease.id))
            self.holder.update(dict.fromkeys(lease.doomed, lease.id))
            postponed = lease.delayed()
            self.returned |= lease.freed - postponed
            self.postponed |= postponed
            self.doomed |= BitMap64(lease.doomed)
            self.overdue |= lease.overdue
        heapq.heapify(self.ended)
        self.gather_deadlines()
        if self.partition is not None:
            self.parts = Partitions.load(self.partition, self.pages, self.ended_to)
            self.pages.clear()
        if self.spec.is_grouped:
            known_to = number_key(self.pointers.era) if self.pointers.turn else None
            self.groups = GroupIndex(known_to, self.pointers.front)
            held = (one for lease in self.leases.values() for one in lease.groups.items())
            self.groups.load(held, self.returned, self.overdue, blocking=self.spec.blocking)

    def gather_deadlines(self) -> None:
        """Rebuild the heap of deadlines without those that were moved or have ended."""
        self.deadlines = [
            (deadline, lease.id)
            # The leases that are only remembered, by far the most, hold nothing.
            for lease in map(self.leases.__getitem__, dict.fromkeys(self.holder.values()))
            for deadline in sorted({lease.deadline_ms, *lease.deadlines.values()})
            if deadline < NEVER_MS
        ]
        heapq.heapify(self.deadlines)
        self.deadlines_max = 2 * len(self.deadlines) + limits.DEADLINES_SPARE

    def note_held(self, lease: LeaseState) -> None:
        """Update the session's count of messages in flight after a change of the lease."""
        if lease.session in self.held:
            self.held[lease.session].note(lease.id, len(lease.open))

    def set_windows(
        self, due: CellWindow[DeferredMessages], ready: CellWindow[DeferredMessages]
    ) -> None:
        """Set the windows of deferred messages."""
        self.due, self.ready = due, ready
        self.windows = {Kind.DUE: due, Kind.READY: ready}

    # --- Queries ----------------------------------------------------------------------------

    def clock(self, now: Millis) -> Millis:
        """Return the shard's time, which never falls even if the machine's clock does."""
        return max(now, self.time_ms)

    def folded(self, index: Index) -> None:
        """Note that the store has folded every batch up to `index`, and answers for them from
        here on."""
        layers = self.layers
        while layers and layers[0].index <= index:
            layer = layers.pop(0)
            self.stored_seq, self.stored_index = layer.last_seq, layer.index
        # Answers fetched before are older than the batches that are left.
        self.facts.clear()
        self.groups.forget()

    def first_fresh(self) -> int:
        """Return the first row that may be undelivered and ready."""
        return max(self.pointers.next, self.skipped + 1)

    def takes_plain(self) -> bool:
        """Return True if a publish without number, deletes, ids and schedules needs no check."""
        return self.spec.is_plain() and self.topic is None and not self.quarantine

    def is_behind(self) -> bool:
        """Return True if it is a topic with rows that are not forwarded yet."""
        return any(cell.passed < self.last_seq for cell in self.subscriptions.values())

    def is_idle(self) -> bool:
        """Return True if the view may be evicted: all is folded, and only remembered state can
        expire.

        Producers and ended leases are then forgotten when the view is loaded again.
        """
        return not (
            self.layers
            or self.doomed
            or self.is_behind()
            or self.pins
            or self.sessions
            or self.stages
            or self.retaining
            or self.deletes
            or (self.spec.keep_ms and self.ended_to < self.last_seq)
            or self.catalog is not None
            or self.swept_from is not None
            or self.expiry_ms is not None
            or (self.spec.ttl_ms and self.aged < self.last_seq)
            or any(seq in self.holder for seq in self.overdue)
        )

    def pinned(self, cell: PinCell) -> PinCell:
        """Return the pin with the index of its batch."""
        return msgspec.structs.replace(
            cell, index=self.index, boundary=self.last_seq, floor=self.pointers.floor
        )

    def place_of(self, cell: CursorCell) -> int:
        """Return the seq up to which the cursor has read, as far as its history is shared."""
        if cell.position.history == self.history:
            return cell.position.seq
        back = resume(self.takeovers, self.history, self.last_seq, 0, cell.position)
        return cell.position.seq if back is None else back

    def waiting_cursors(self, now: Millis) -> list[tuple[str, CursorCell]]:
        """Return retaining cursors that wait at the end, and begin to lag only now.

        Their age counts from here, and not from their last move: otherwise a cursor on a queue that
        was quiet for longer than the limit would be dropped with the next message.
        """
        if now - self.refreshed_ms < _REFRESH_MS:
            return []
        self.refreshed_ms = now
        return [
            (name, msgspec.structs.replace(cell, moved_ms=now))
            for name, cell in self.retaining.items()
            if cell.moved_ms + _REFRESH_MS <= now and self.place_of(cell) >= self.last_seq
        ]

    def weighed_from(self) -> int:
        """Return the seq up to which nobody keeps rows whose bytes are counted."""
        upto: int = self.ended_to
        if self.spec.retention == "work":
            upto = min(self.pointers.next - 1, self.retain_floor())
        return min([upto, *(self.scale.pinned.get(pin, 0) for pin in self.pins)])

    def retain_floor(self) -> Seq:
        """Return the seq up to which every retaining cursor has read; the last seq if there is
        none."""
        if not self.retaining:
            return self.last_seq
        if self.retain_floor_known is None:
            self.retain_floor_known = min(map(self.place_of, self.retaining.values()))
        return Seq(self.retain_floor_known)


def number(key: bytes) -> int:
    """Return the number in a cell's key."""
    return int.from_bytes(key, "big")


def number_key(value: int) -> bytes:
    """Return a cell's key of a number: big-endian, so that keys sort as numbers do."""
    return value.to_bytes(8, "big")
