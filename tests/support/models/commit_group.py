"""A commit group in one thread, on virtual time: the shipped core over the memory store.

It does the work of a commit loop and a journal, one step at a time and on request: decide, commit
later, crash in between, take over under another history. Every batch is encoded and decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap64

from millrace.core import ticks
from millrace.core.cells import VIEW_KINDS, Kind
from millrace.core.changes import Entry
from millrace.core.commands import Command, InitCatalog
from millrace.core.decide import Answer, decide, learn
from millrace.core.format.codec import decode_entries, encode_entry
from millrace.core.model import (
    CATALOG,
    NEVER_MS,
    Epoch,
    GroupId,
    History,
    Index,
    Millis,
    ShardId,
)
from millrace.core.needs import Need
from millrace.core.state.deferred_cells import DeferredMessages, load
from millrace.core.state.draft import BatchContext
from millrace.core.state.fold import Reader
from millrace.core.state.lease_state import LeaseState
from millrace.core.state.view import View, number_key
from millrace.errors import Refused, Retry
from millrace.store.memory_store import MemoryStore
from tests.support.checkers.group_cells import check_groups
from tests.support.checkers.partition_cells import check_partitions

Result = Answer | Refused | Retry

SECRET = bytes(range(32))
START_MS = 1_000_000
NEEDS_MAX = 10_000
"""A command that needs more than this is taken to need the same thing for ever."""


_LONG_MS = 10 * 365 * 86_400_000
"""A time after which everything has expired by age."""


class Group:
    """The decider of a few shards; `hold` delays the commits, `fold` makes up for them."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = START_MS
        self.history = history_named("A")
        self.epoch = Epoch(1)
        self.hold = False
        self.pending: list[Entry] = []
        self.log: list[bytes] = []
        """Every committed entry, as bytes."""
        self._views: dict[ShardId, View] = {CATALOG: View(CATALOG, self.epoch, self.history)}
        self.ask((CATALOG, InitCatalog(SECRET)))

    def view(self, shard: ShardId) -> View | None:
        """The shard's view, loaded when it is first asked for."""
        if shard not in self._views:
            view = self.loaded(shard)
            if view is None:
                return None
            self._views[shard] = view
        return self._views[shard]

    def loaded(self, shard: ShardId) -> View | None:
        """A view of what the store holds."""
        meta = self.store.meta(shard)
        if meta is None:
            return None
        cells = (cell for kind in VIEW_KINDS for cell in self.store.cells(shard, kind))
        return View.load(shard, self.epoch, self.history, meta, cells)

    def ask(self, *commands: tuple[ShardId, Command]) -> list[Result]:
        """Decide these commands as one entry; it is committed at once unless `hold` is set."""
        context = BatchContext(self.view, Millis(self.now))
        answers = [self._decide(context, shard, command) for shard, command in commands]
        drafts = [draft for draft in context.drafts.values() if not draft.empty()]
        for draft in context.drafts.values():
            draft.view.facts.clear()
            self._views.setdefault(draft.view.shard, draft.view)
        if drafts:
            index = Index(len(self.log) + len(self.pending) + 1)
            batches = [draft.finish() for draft in drafts]
            entry = Entry(GroupId(1), self.epoch, index, self.history, batches)
            self.pending.append(through_bytes(entry))
        if not self.hold:
            self.fold()
        return answers

    def _decide(self, context: BatchContext, shard: ShardId, command: Command) -> Result:
        told: set[Need] = set()
        for _ in range(NEEDS_MAX):
            result = decide(context, shard, command)
            if not isinstance(result, Need):
                return result
            assert result not in told, f"{command} needs the same twice: {result}"
            told.add(result)
            draft = context.draft(result.shard)
            assert draft is not None
            learn(draft, result, self.store)
        raise AssertionError(f"{command} needs more and more")

    def fold(self, count: int | None = None) -> None:
        """Commit the oldest entries that wait, or all of them."""
        for _ in range(len(self.pending) if count is None else min(count, len(self.pending))):
            entry = self.pending.pop(0)
            self.log.append(join(entry))
            self.store.fold(entry, None)
            for batch in entry.batches:
                view = self._views[batch.shard]
                view.folded(batch.index)
                if batch.changes.dropped:
                    del self._views[batch.shard]

    def committed(self) -> list[Entry]:
        """Every committed entry, as a replica reads it."""
        return [entry for data in self.log for entry in decode_entries(memoryview(data))]

    def crash(self) -> None:
        """Lose all uncommitted batches and all views."""
        self.pending.clear()
        self._views.clear()
        self.epoch = Epoch(self.epoch + 1)

    def take_over(self, history: str, upto: int | None = None) -> None:
        """Go on under another history, from the first `upto` entries."""
        self.crash()
        self.history = history_named(history)
        if upto is not None:
            self.log = self.log[:upto]
            self.store = MemoryStore()
            for entry in self.committed():
                self.store.fold(entry, None)

    def check(self) -> None:
        """Check that the decider's memory equals the folded cells, and that the rows add up."""
        assert not self.pending
        for shard, view in self._views.items():
            loaded = self.loaded(shard)
            assert loaded is not None, f"shard {shard} was never folded"
            kept, stored = facts_of(view, self.now), facts_of(loaded, self.now)
            for name, value in kept.items():
                assert value == stored[name], f"{name} of {shard}: {value} != {stored[name]}"
            assert not view.layers
            check_derived(view)
            self._check_aside(view)
            self._check_ages(view)
            check_groups(view, self.store)
            check_partitions(view, self.store, self.seqs(shard, Reader()))
            meta = self.store.meta(shard)
            assert meta is not None
            live = self.seqs(shard, Reader(retain=True))
            assert meta.live == len(live), f"I12: {shard} counts {meta.live}, has {list(live)}"

    def _check_ages(self, view: View) -> None:
        """Whose time is done with has ended, or is held; the others are as young as is believed.

        And where a tick will ever be due, the queue does not rest.
        """
        is_resting = not ticks.may_age(view)
        assert not (is_resting and ticks.tick_due(view, self.now + _LONG_MS)), "no tick will come"
        if view.spec.ttl_ms:
            live = self.seqs(view.shard, Reader()) - view.deletes.seqs
            rows = self.store.rows(view.shard, live)
            done = BitMap64([row.seq for row in rows if row.seq <= view.aged])
            assert BitMap64(view.holder).issuperset(done), "it lives on"
            times = [row.time_ms for row in rows if row.seq > view.aged]
            assert view.eldest_ms <= min(times, default=view.eldest_ms), "an older one is there"

    def _check_aside(self, view: View) -> None:
        """Check that windows show the stored cells, and that each deferred message is in one
        cell."""
        waiting = BitMap64()
        era = number_key(view.pointers.era)
        for kind in (Kind.DUE, Kind.READY):
            cells: dict[bytes, DeferredMessages] = {}
            for _, key, value in self.store.cells(view.shard, kind):
                assert key >= era or view.swept_from is not None, "nobody sweeps what was purged"
                if key >= era:
                    cells[key] = load(kind, key, value)
            for cell in cells.values():
                assert cell.seqs
                assert not cell.seqs.intersect(waiting), "a message waits twice"
                waiting |= cell.seqs
            window = view.windows[kind]
            known = {
                k: c for k, c in cells.items() if window.known_to is None or k < window.known_to
            }
            assert dict(window) == (known if view.pointers.aside else {}), "the window is another"
        held = BitMap64(view.holder) - view.doomed
        assert not waiting.intersect(held), "it waits, and a worker has it"
        for seq in waiting:
            facts = self.store.row(view.shard, seq)
            assert seq <= view.pointers.aside
            assert facts.aside or not facts.live, "it waits in the order of seqs, too"

    def seqs(self, shard: ShardId, reader: Reader, after: int = 0) -> BitMap64:
        """The seqs that a reader sees."""
        meta = self.store.meta(shard)
        out = BitMap64()
        if meta is not None:
            for batch in self.store.scan(shard, after, meta.last_seq, reader):
                out |= BitMap64(batch.column("seq").to_numpy())
        return out


def history_named(name: str) -> History:
    """A history that a transcript can name."""
    return History(name.encode().ljust(16, b"."))


def join(entry: Entry) -> bytes:
    return b"".join(encode_entry(entry, 0))


def through_bytes(entry: Entry) -> Entry:
    """The entry as a replica reads it."""
    [read] = decode_entries(memoryview(join(entry)))
    return read


def facts_of(view: View, now: int) -> dict[str, object]:
    """The logical content of a view: what the next decision may depend on."""
    due = BitMap64(view.returned)
    for lease in view.leases.values():
        due |= lease.due(now)
    return {
        "index": view.index,
        "last_seq": view.last_seq,
        "stored_seq": view.stored_seq,
        "spec": view.spec,
        "pointers": view.pointers,
        "leases": {lease.id: _lease_facts(lease) for lease in view.leases.values()},
        "producers": view.producers,
        "cursors": view.cursors,
        "pins": view.pins,
        "readers": {pin: count for pin, count in view.readers.items() if count},
        "stages": view.stages,
        "deletes": list(view.deletes),
        "all deletes": view.deletes.seqs,
        "takeovers": view.takeovers,
        "queues": view.queues,
        "catalog": view.catalog,
        "attempts": view.attempts,
        "partition": view.partition,
        "slices": None if view.parts is None else view.parts.slices,
        "topics": view.topics,
        "topic": view.topic,
        "subscriptions": view.subscriptions,
        "awaited": view.awaited,
        "holder": view.holder,
        "returned": due,
        "doomed": view.doomed,
        "overdue": view.overdue & BitMap64(view.holder) - view.doomed,
        "sessions": view.sessions,
        "held": {session: one.leases for session, one in view.held.items()},
        "ended": sorted(view.ended),
        "retaining": view.retaining,
        "retain floor": view.retain_floor(),
        "ended to": view.ended_to,
        "weights": (view.scale.total, view.scale.cells()),
    }


def _lease_facts(lease: LeaseState) -> tuple[object, ...]:
    return (
        lease.index,
        lease.deadline_ms,
        lease.open,
        lease.freed,
        lease.settled,
        lease.overtaken,
        lease.superseded,
        lease.ended_ms,
        lease.counts,
        lease.deadlines,
        lease.doomed,
        lease.buried,
        lease.session,
        lease.first,
        lease.handed,
        lease.order,
        lease.groups,
        lease.discarded,
    )


def check_derived(view: View) -> None:
    """Check that derived state of a view agrees with its sources, and is complete."""
    held: dict[int, int] = {}
    for lease in view.leases.values():
        doomed = BitMap64(lease.doomed)
        ended = (lease.settled, lease.overtaken, lease.superseded, lease.buried)
        named = (lease.open, lease.freed, doomed, *ended)
        assert sum(map(len, named)) == len(BitMap64().union(*named)), "a seq stands twice"
        waiting = lease.open | lease.freed
        assert not lease.groups or waiting == BitMap64(lease.groups), "whose group is it"
        current = waiting | doomed
        assert current.issuperset(BitMap64(lease.counts)), "counts of what is gone"
        assert waiting.issuperset(BitMap64(lease.deadlines)), "deadlines of what is gone"
        assert bool(current) != bool(lease.ended_ms), "ended, or not"
        for seq in current:
            assert seq not in held, "I4: a message is in two leases"
            held[seq] = lease.id
    assert held == view.holder
    assert view.doomed == BitMap64().union(*(BitMap64(x.doomed) for x in view.leases.values()))
    assert view.held.keys() == view.sessions.keys()
    for session, holding in view.held.items():
        leases = [lease for lease in view.leases.values() if lease.session == session]
        assert holding.leases == {lease.id: len(lease.open) for lease in leases if lease.open}
        assert holding.total == sum(holding.leases.values())
    assert view.returned.issubset(BitMap64(held) - view.doomed)
    postponed = BitMap64().union(*(lease.delayed() for lease in view.leases.values()))
    assert view.postponed == postponed - view.returned
    soonest = {lease: deadline for deadline, lease in sorted(view.deadlines, reverse=True)}
    for lease in view.leases.values():
        for seq in (lease.open | lease.delayed()) - view.returned:
            assert soonest.get(lease.id, NEVER_MS) <= lease.deadline_of(seq), (
                "nobody watches the deadline"
            )
    assert not view.hidden or view.hidden.max() <= view.scanned
    assert len(view.deadlines) <= view.deadlines_max


def numbers(seqs: Sequence[int] | BitMap64) -> str:
    """Seqs as ranges: 1-3,5."""
    out: list[str] = []
    low = high = 0
    for seq in sorted(seqs):
        if out and seq == high + 1:
            high = seq
            out[-1] = f"{low}-{high}"
        else:
            low = high = seq
            out.append(str(seq))
    return ",".join(out)
