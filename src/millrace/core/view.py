"""What the decider keeps in memory of a shard: its cells as values, and what follows from them.

A view is loaded from the store and then changed only through a `Draft`, ahead of the commit. It
holds nothing that could not be loaded again: when an append fails, the view is dropped.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.codec import decode_cell
from millrace.core.deletes import Deletes
from millrace.core.flight import Groups
from millrace.core.fold import ShardMeta
from millrace.core.group_cells import GroupCell, RingCell, TurnCell
from millrace.core.holding import Holding as Holding
from millrace.core.idcells import AttemptCell, DedupCell, ExpiryCell
from millrace.core.layer import Facts, Layer
from millrace.core.lease_state import LeaseState
from millrace.core.model import (
    NEVER_MS,
    AsideCell,
    CatalogCell,
    CursorCell,
    DeletesCell,
    Epoch,
    History,
    Index,
    Kind,
    LeaseCell,
    LeaseId,
    Millis,
    PinCell,
    Pointers,
    ProducerCell,
    QueueCell,
    QueueSpec,
    Seq,
    SessionCell,
    ShardId,
    TakeoverCell,
    WeightCell,
)
from millrace.core.partition_cells import IdCell, PartitionCell, SlicesCell
from millrace.core.partition_state import Parts
from millrace.core.quarantine_commands import QuarantineCell
from millrace.core.seqs import unpack_seqs
from millrace.core.stage_cells import RunsCell, StageCell
from millrace.core.takeover import resume
from millrace.core.topic_cells import AwaitedCell, SubscriptionCell, TopicCell, awaited_name
from millrace.core.waiting import Waiting
from millrace.core.weight import Scale
from millrace.core.window import Window

_REFRESH_MS = limits.CURSOR_RETAIN_MS_MAX // 100
"""How exactly it is known when a waiting cursor began to be behind: a cell each is written."""


class View:
    """One shard, as its decider sees it: all that was decided, committed or not."""

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
        """The one that was used longest ago comes first."""
        self.cursors: dict[str, CursorCell] = {}
        self.sessions: dict[int, SessionCell] = {}
        self.pins: dict[int, PinCell] = {}
        """In the order of their numbers."""
        self.stages: dict[str, StageCell] = {}
        self.deletes = Deletes()
        self.takeovers: list[TakeoverCell] = []
        self.queues: dict[bytes, QueueCell] = {}
        self.owners: dict[int, bytes] = {}
        """Shard → the key of its queue in `queues`."""
        self.catalog: CatalogCell | None = None
        self.attempts: dict[str, AttemptCell] = {}
        """Lease calls that may be made again; the oldest comes first."""
        self.topics: dict[bytes, TopicCell] = {}
        self.topic: TopicCell | None = None
        """What this shard is, if it is a topic."""
        self.subscriptions: dict[int, SubscriptionCell] = {}
        self.awaited: dict[str, set[AwaitedCell]] = {}
        """In the catalog: by the names of queues that are not there, as space/name, who waits."""
        self.scale = Scale()
        self.partition: PartitionCell | None = None
        """Of a queue whose delivery is "partitions"."""
        self.pages: dict[int, SlicesCell] = {}
        """Its pages, until `parts` is made of them."""
        self.quarantine: dict[bytes, QuarantineCell] = {}
        """Why the shard is quarantined; empty: it is not. See `quarantine.py`."""

        # Derived: never stored, rebuilt by `load`.
        self.holder: dict[int, int] = {}
        """Delivered and not ended: seq → the lease of its latest delivery."""
        self.returned = BitMap64()
        """Delivered before, and ready again."""
        self.postponed = BitMap64()
        """Given back with a delay that is not over."""
        self.held: dict[int, Holding] = {}
        """Session → what it holds."""
        self.doomed = BitMap64()
        """Dead letters that are not yet where dead letters go."""
        self.overdue = BitMap64()
        """Held by someone, and to expire when they come back; some may have ended since."""
        self.deadlines: list[tuple[int, int]] = []
        """A heap of (deadline, lease); may hold deadlines that were moved since."""
        self.deadlines_max = limits.DEADLINES_SPARE
        """Where the heap is built anew, without those that were moved."""
        self.ended: list[tuple[int, int]] = []
        """A heap of (end, lease): the leases that are only remembered."""
        self.readers: dict[int, int] = {}
        """Pin → how many cursors read it, where any does."""
        self.changed = Index(0)
        """The last batch that may have changed what a reader sees."""
        self.retaining: dict[str, CursorCell] = {}
        """Retaining cursors that were not dropped."""
        self.refreshed_ms = 0
        """When retaining cursors that wait at the end were last seen to do so."""
        self.retain_floor_known: int | None = None
        """What `retain_floor` found, until a retaining cursor moves."""
        self.hidden = BitMap64()
        """Within (.., scanned]: rows from `next` on that no worker gets."""
        self.scanned = 0
        self.skipped = 0
        """Up to here, from `next` on, all rows are hidden: `hidden` no longer names them."""
        self.served = 0
        """Of the shards of a queue, the one with the smallest number was served longest ago."""
        self.set_windows(Window(limits.WINDOW_CELLS, None), Window(limits.WINDOW_CELLS, None))
        self.groups = Groups()
        self.parts: Parts | None = None
        self.swept_from: int | None = None
        """From this batch on cells of an earlier era may be there that nobody wants."""
        self.swept_to: dict[Kind, bytes] = {}
        self.expiry_ms: int | None = None
        """Before then nothing goes by itself that `core/expiry.py` knows of; None: nothing will."""
        self.tidied_index = Index(0)
        self.tidied_ms = 0
        """As of this batch, and then, cells were looked for that name nothing any more."""
        self.tidied_to = b""
        """From this key on more of them may be there."""
        self.aged = 0
        """Rows up to here have ended, or whoever holds them knows that their time is over."""
        self.eldest_ms = 0
        """None of the rows after them was published before then."""
        self.looked_index = Index(0)
        """As of this batch it was looked whether there are any."""
        self.ended_to = 0
        """All rows up to here died, purged or by retention."""
        self.aged_ms = 0
        """When it was last asked which rows are too old."""
        self.weighed_ms = 0
        """When pins were last weighed."""
        self.drop_from = 0
        """Before it no row waits that no worker was ever given."""
        self.stored_seq = 0
        """The last seq that the store can be asked about."""
        self.stored_index = Index(0)
        """The last batch that the store holds; 0: it does not know the shard."""
        self.facts = Facts()
        self.layers: list[Layer] = []
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
        """The view of a shard whose folded state is `meta` and `cells`."""
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
            # The new history is written down with its first batch; until then it is known here.
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
            case WeightCell() as cell:
                self.scale.add(number(key), cell)
            case PartitionCell() as cell:
                self.partition = cell
            case SlicesCell() as cell:
                self.pages[number(key)] = cell
            case QuarantineCell() as cell:
                self.quarantine[key] = cell
            case AsideCell() | DedupCell() | ExpiryCell() | IdCell() | RunsCell():
                # Of these there may be too many: they are asked for as they are needed.
                pass
            case TurnCell() | GroupCell() | RingCell():
                # Of these there may be too many: they are asked for as they are needed.
                pass

    def _derive(self) -> None:
        self.scanned = self.pointers.next - 1
        if self.pointers.aside:
            low = number_key(self.pointers.era)
            self.set_windows(Window(limits.WINDOW_CELLS, low), Window(limits.WINDOW_CELLS, low))
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
        self.held = {session: Holding() for session in self.sessions}
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
            self.parts = Parts.load(self.partition, self.pages, self.ended_to)
            self.pages.clear()
        if self.spec.is_grouped:
            known_to = number_key(self.pointers.era) if self.pointers.turn else None
            self.groups = Groups(known_to, self.pointers.front)
            held = (one for lease in self.leases.values() for one in lease.groups.items())
            self.groups.load(held, self.returned, self.overdue, blocking=self.spec.blocking)

    def gather_deadlines(self) -> None:
        """Build the heap of deadlines anew, without those that were moved or have ended."""
        self.deadlines = [
            (deadline, lease.id)
            # Those that are only remembered, which are far more, hold nothing.
            for lease in map(self.leases.__getitem__, dict.fromkeys(self.holder.values()))
            for deadline in sorted({lease.deadline_ms, *lease.deadlines.values()})
            if deadline < NEVER_MS
        ]
        heapq.heapify(self.deadlines)
        self.deadlines_max = 2 * len(self.deadlines) + limits.DEADLINES_SPARE

    def note_held(self, lease: LeaseState) -> None:
        """The lease is new, or was changed: so much of it its session holds."""
        if lease.session in self.held:
            self.held[lease.session].note(lease.id, len(lease.open))

    def set_windows(self, due: Window[Waiting], ready: Window[Waiting]) -> None:
        """What is known of the messages that wait apart."""
        self.due, self.ready = due, ready
        self.windows = {Kind.DUE: due, Kind.READY: ready}

    # --- What is asked of it ----------------------------------------------------------------

    def clock(self, now: Millis) -> Millis:
        """Time as the shard tells it: never falling, whatever the machine's clock does."""
        return max(now, self.time_ms)

    def folded(self, index: Index) -> None:
        """The store now holds every batch up to `index`: it answers for them from here on."""
        layers = self.layers
        while layers and layers[0].index <= index:
            layer = layers.pop(0)
            self.stored_seq, self.stored_index = layer.last_seq, layer.index
        # What was fetched before is older than the layers that are left.
        self.facts.clear()
        self.groups.forget()

    def first_fresh(self) -> int:
        """The first row that may be ready and was never given to a worker."""
        return max(self.pointers.next, self.skipped + 1)

    def takes_plain(self) -> bool:
        """Whether a publish without number, deletes, ids and turns needs no check."""
        return self.spec.is_plain() and self.topic is None and not self.quarantine

    def is_behind(self) -> bool:
        """Whether it is a topic with rows that are not forwarded yet."""
        return any(cell.passed < self.last_seq for cell in self.subscriptions.values())

    def is_idle(self) -> bool:
        """Whether it may be dropped: all is folded, and nothing but what it remembers goes by age.

        Producers and ended leases are then forgotten when it is loaded again.
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
        """A pin of the batch that has just got its index."""
        return msgspec.structs.replace(
            cell, index=self.index, boundary=self.last_seq, floor=self.pointers.floor
        )

    def place_of(self, cell: CursorCell) -> int:
        """The seq up to which the cursor has read, as far as its history is shared."""
        if cell.position.history == self.history:
            return cell.position.seq
        back = resume(self.takeovers, self.history, self.last_seq, 0, cell.position)
        return cell.position.seq if back is None else back

    def waiting_cursors(self, now: Millis) -> list[tuple[str, CursorCell]]:
        """Retaining cursors that wait at the end, and begin to be behind only now.

        Their age is counted from here, and not from when they last moved: a queue that was quiet
        for longer than a cursor may retain would lose it with its next message.
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
        """The seq up to which nobody keeps rows whose bytes are counted."""
        upto: int = self.ended_to
        if self.spec.retention == "work":
            upto = min(self.pointers.next - 1, self.retain_floor())
        return min([upto, *(self.scale.pinned.get(pin, 0) for pin in self.pins)])

    def retain_floor(self) -> Seq:
        """The seq up to which every retaining cursor has read; the last seq if there is none."""
        if not self.retaining:
            return self.last_seq
        if self.retain_floor_known is None:
            self.retain_floor_known = min(map(self.place_of, self.retaining.values()))
        return Seq(self.retain_floor_known)


def number(key: bytes) -> int:
    """The number that a cell's key stands for."""
    return int.from_bytes(key, "big")


def number_key(value: int) -> bytes:
    """A number as a cell's key: big-endian, so that keys sort as numbers do."""
    return value.to_bytes(8, "big")
