"""The cells of a batch while it is being decided.

Each is written down and applied to the view in the same step, as every change of a `Draft`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TypeVar

from pyroaring import BitMap64, FrozenBitMap64

from millrace import limits
from millrace.core.answers import SnapshotRef
from millrace.core.changes import Changes
from millrace.core.codec import encode_cell
from millrace.core.idcells import AttemptCell
from millrace.core.lease_state import LeaseState
from millrace.core.model import (
    NEVER_MS,
    CatalogCell,
    Cell,
    CursorCell,
    DeletesCell,
    Kind,
    LeaseId,
    Millis,
    PinCell,
    Pointers,
    ProducerCell,
    QueueCell,
    QueueSpec,
    SessionCell,
)
from millrace.core.quarantine_commands import QuarantineCell
from millrace.core.seqs import pack_seqs
from millrace.core.stage_cells import StageCell
from millrace.core.topic_cells import AwaitedCell, SubscriptionCell, TopicCell, awaited_key
from millrace.core.view import Holding, View, number_key
from millrace.core.waiting import Waiting, Waits

K = TypeVar("K")
T = TypeVar("T")


class CellDraft:
    """The cells of one shard that are decided together."""

    def __init__(self, view: View, now: Millis) -> None:
        self.view = view
        self.now = view.clock(now)
        view.time_ms = self.now
        self.changes = Changes()
        self.hands_out_in_order = view.spec.hands_out_in_order()
        self.takes_plain = view.takes_plain()
        self.waits: Waits = {}
        self.points: dict[tuple[Kind, bytes], Cell | None] = {}
        """Cells of which the view holds nothing, as they were put or deleted (None) here."""
        self._leases: dict[int, LeaseState | None] = {}
        self._cells: dict[tuple[Kind, bytes], Cell | None] = {}
        self._pinned: list[int] = []
        self.moved: set[str] = set()
        """Cursors that were changed here."""
        self._promised: list[SnapshotRef] = []
        self._seconds: dict[int, None] = {}
        self._born: set[tuple[Kind, bytes]] = set()

    def put_lease(self, lease: LeaseState) -> None:
        """The lease is new or was changed; it is written once, as it is when the batch ends.

        With nothing left to do it has ended: it answers late retries for a while, among a bounded
        number of others.
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
        """As `put_lease`, of one that no session has, and in which nothing is left."""
        self._leases[lease.id] = lease
        self._end_lease(lease)

    def _end_lease(self, lease: LeaseState) -> None:
        view = self.view
        lease.ended_ms = max(self.now, 1)
        heapq.heappush(view.ended, (lease.ended_ms, lease.id))
        while len(view.ended) > limits.LEASES_REMEMBERED_MAX:
            self.forget_lease()

    def new_lease(self, seqs: BitMap64, lease_ms: int) -> LeaseState:
        """A lease of these, as it begins. It takes the next number, and is not there until
        `add_lease` is called and the pointers name it."""
        view = self.view
        number, index = LeaseId(view.pointers.lease + 1), view.index + 1
        return LeaseState(number, index, FrozenBitMap64(seqs), self.now + lease_ms, lease_ms)

    def add_lease(self, lease: LeaseState) -> None:
        """As `put_lease`, of a new one that no session has."""
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
        """The lease that ended longest ago is no longer remembered."""
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
        # Taken out first, so that the one that was used longest ago stays in front.
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
        known = view.cursors.get(name)
        self._count_readers(0 if known is None else known.pin, 0 if cell is None else cell.pin)
        _put(view.cursors, name, cell)
        retains = cell is not None and cell.retain and not cell.dropped
        if retains or name in view.retaining:
            _put(view.retaining, name, cell if retains else None)
            view.retain_floor_known = None
        self._cells[Kind.CURSOR, name.encode()] = cell
        self.moved.add(name)

    def _count_readers(self, old: int, new: int) -> None:
        """A cursor reads another pin, or none (0)."""
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
            view.held.setdefault(session, Holding())
        self._cells[Kind.SESSION, number_key(session)] = cell

    def put_pin(self, pin: int, cell: PinCell) -> None:
        self.view.pins[pin] = cell
        self._pinned.append(pin)

    def is_new_pin(self, pin: int) -> bool:
        """Whether the pin is of this batch, so that its index and boundary are not known yet."""
        return pin in self._pinned

    def promise(self, ref: SnapshotRef) -> SnapshotRef:
        """An answer that names a pin; if the pin is of this batch, it is completed at its end."""
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
        known = view.queues.get(key)
        if known is not None:
            for shard in known.shards:
                del view.owners[shard]
        if cell is not None:
            view.owners.update(dict.fromkeys(cell.shards, key))
        _put(view.queues, key, cell)
        self._cells[Kind.QUEUE, key] = cell

    def put_catalog(self, cell: CatalogCell) -> None:
        self.view.catalog = cell
        self._cells[Kind.CATALOG, b""] = cell

    def put_topic(self, key: bytes, cell: TopicCell | None) -> None:
        """Under its name in the catalog, under no name in its own shard."""
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
        """A subscription waits for this queue (space/name) to be made, or no longer does."""
        known = self.view.awaited.setdefault(target, set())
        (known.add if waits else known.discard)(cell)
        if not known:
            del self.view.awaited[target]
        self._cells[Kind.AWAITED, awaited_key(target, cell)] = cell if waits else None

    def put_waiting(self, kind: Kind, key: bytes, cell: Waiting | None) -> None:
        """Messages wait apart under this key, or (None) no longer do."""
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
        """As `put_waiting` of None, for cells that were taken out of their window."""
        waits, born = self.waits, self._born
        for key in keys:
            name = (kind, key)
            if name in born:
                # It was there within this batch alone.
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
