"""Deferred messages: those with a priority or delay, which are not delivered in the order of seqs.

Rule 1: a message with a delay, or with a priority other than the default, is deferred when it is
published: a mark makes the pointer `next` skip it, and a cell holds its turn.
Rule 2: until its delivery it is in one cell, of kind DUE until its time and of READY from then on.
Whether a newer revision has ended it in between is found out at its turn.
Rule 3: a purge begins another era: cells of earlier eras are garbage, which is collected in steps.
Rule 4: the work of one call is bounded, whatever the number of waiting messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import Explanation
from millrace.core.cells import ERA_KINDS, Kind
from millrace.core.commands import RowSchedule
from millrace.core.model import Seq
from millrace.core.needs import Need
from millrace.core.ordering import partitions
from millrace.core.spec import QueueSpec
from millrace.core.state import deferred_cells
from millrace.core.state.cell_window import CellWindow
from millrace.core.state.deferred_cells import (
    DeferredMessages,
    due_key,
    due_of,
    ready_key,
    ready_since,
)
from millrace.core.state.draft import Draft
from millrace.core.state.group_state import GroupIndex
from millrace.core.state.view import View, number_key
from millrace.errors import Invalid, Refused

USUAL = limits.PRIORITY_DEFAULT


# --- Publish -----------------------------------------------------------------------------------


def check_spec(spec: QueueSpec, view: View | None = None) -> Refused | None:
    """Check that the settings fit together, and fit the messages in the queue."""
    if spec.retention != "log":
        return None
    if spec.delay_ms:
        return Invalid("a queue with retention 'log' knows no delays", field="delay")
    if view is not None and view.pointers.aside:
        return Invalid(
            "messages with priorities or delays, or that have replaced others, were there, which "
            "retention 'log' does not know; purge the queue first",
            field="retention",
        )
    return None


def check_publish(spec: QueueSpec, runs: Sequence[RowSchedule]) -> Refused | None:
    """Refuse delays and priorities in logs, ordered queues and queues with partitions."""
    for run in runs if spec.is_partitioned else ():
        if run.priority != USUAL or run.delay_ms:
            field = "priority" if run.priority != USUAL else "delay"
            return Invalid(
                f"a queue with delivery 'partitions' knows no {field}; leave it out, or make a "
                "queue with delivery 'messages'",
                field=field,
            )
    for run in runs if spec.order != "none" else ():
        if run.priority != USUAL:
            return Invalid(
                f"a queue with order {spec.order!r} knows no priority; leave it out, or make a "
                "queue with order 'none'",
                field="priority",
            )
    for run in runs if spec.retention == "log" else ():
        if run.priority != USUAL or run.delay_ms:
            field = "priority" if run.priority != USUAL else "delay"
            return Invalid(f"a queue with retention 'log' knows no {field}", field=field)
    return None


def defer(
    draft: Draft, first: int, count: int, runs: Sequence[RowSchedule], deletes: Iterable[int]
) -> None:
    """Defer those of `count` new rows that have a delay or priority.

    Deletes, given by their row numbers from 0 on, are never delivered anyway.
    """
    view = draft.view
    by_turn: dict[tuple[int, int], list[int]] = {}
    for at, rows, priority, delay_ms in runs_of(count, runs, view.spec.delay_ms):
        if delay_ms or priority != USUAL:
            turn = (draft.now + delay_ms if delay_ms else 0, priority)
            by_turn.setdefault(turn, []).extend(range(first + at, first + at + rows))
    gone = {first + at for at in deletes}
    apart: list[int] = []
    for (due_ms, priority), named in by_turn.items():
        seqs = [seq for seq in named if seq not in gone] if gone else named
        if seqs:
            apart += seqs
            kind = Kind.DUE if due_ms else Kind.READY
            _add(draft, kind, due_ms or draft.now, priority, seqs)
    draft.aside.update(apart)
    highest = max(apart, default=0)
    if highest > view.pointers.aside:
        draft.put_pointers(msgspec.structs.replace(view.pointers, aside=highest))


def runs_of(
    count: int, runs: Sequence[RowSchedule], delay_ms: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield row number, count, priority and delay of consecutive runs that cover all rows."""
    at = 0
    for run in runs:
        if run.at > at:
            yield at, run.at - at, USUAL, delay_ms
        own = run.delay_ms
        yield run.at, run.count, run.priority, delay_ms if own is None else own
        at = run.at + run.count
    if at < count:
        yield at, count - at, USUAL, delay_ms


def _add(draft: Draft, kind: Kind, at_ms: int, priority: int, seqs: Sequence[int]) -> None:
    """Add ascending seqs to a cell; messages with the same turn are gathered within a batch.

    A message that is ready now never joins a cell of messages that have waited longer: it would
    overtake others.
    """
    turn = (at_ms, priority)
    if len(seqs) == 1 and turn not in draft.gathering:
        # The fast path of many different delays.
        alone = _key(draft.view, kind, at_ms, priority, seqs[0])
        draft.put_waiting(kind, alone, DeferredMessages(seqs[0], priority))
        draft.gathering[turn] = alone
        return
    key = draft.gathering.get(turn)
    existing = draft.waits.get((kind, key)) if key is not None else None
    if key is not None and existing is not None:
        both = existing.seqs | BitMap64(seqs)
        if len(both) <= limits.ASIDE_CELL_SEQS_MAX:
            draft.put_waiting(kind, key, DeferredMessages.of(both, priority))
            return
    step = limits.ASIDE_CELL_SEQS_MAX
    for at in range(0, len(seqs), step):
        part = seqs[at : at + step]
        more = BitMap64(part) if len(part) > 1 else None
        key = _key(draft.view, kind, at_ms, priority, part[0])
        draft.put_waiting(kind, key, DeferredMessages(part[0], priority, more))
        draft.gathering[turn] = key


def _key(view: View, kind: Kind, at_ms: int, priority: int, first: int) -> bytes:
    era = view.pointers.era
    if kind is Kind.DUE:
        return due_key(era, at_ms, first)
    return ready_key(era, priority, at_ms, first)


# --- Lease -------------------------------------------------------------------------------------


def check_lease(draft: Draft, wanted: int) -> Need | None:
    """Make due messages ready, and return the Need of the first ready ones, if any.

    This changes cells, but not which messages anybody gets: it stays, whether or not the lease call
    succeeds.
    """
    if not draft.view.pointers.aside:
        return None
    return _promote(draft) or _need_ready(draft, wanted)


def _promote(draft: Draft) -> Need | None:
    view = draft.view
    room = limits.PROMOTE_CELLS_MAX - draft.promoted
    due = view.due.take_below(due_key(view.pointers.era, draft.now + 1, 0), room)
    draft.promoted += len(due)
    draft.end_waiting(Kind.DUE, [key for key, _ in due])
    ready: dict[int, tuple[int, list[DeferredMessages]]] = {}
    for key, cell in due:
        if cell.priority not in ready:
            ready[cell.priority] = (due_of(key), [])
        ready[cell.priority][1].append(cell)
    for priority, (since, cells) in ready.items():
        _add(draft, Kind.READY, since, priority, list(deferred_cells.union(cells)))
    return _need_cells(view, Kind.DUE) if len(due) < room else None


def need_due(view: View) -> Need | None:
    """Return the Need of the first delayed messages, unless they are known."""
    return _need_cells(view, Kind.DUE)


def _need_cells(view: View, kind: Kind) -> Need | None:
    low = view.windows[kind].wanted_from()
    if low is None:
        return None
    return Need(view.shard, cells=(kind, low, limits.WINDOW_CELLS))


def _need_ready(draft: Draft, wanted: int) -> Need | None:
    """Return the Need of the first ready messages, unless they are known: on a keyed queue they
    may have died."""
    view = draft.view
    draft.ready_known = 0
    wanted = min(wanted, limits.LOOK_AT_ROWS_MAX)
    while True:
        need = _need_cells(view, Kind.READY)
        if need is not None or not may_have_died(view):
            return need
        if draft.found_dead >= limits.FOUND_DEAD_MAX:
            return None
        cells = view.ready.firsts(min(wanted, limits.LOOK_AT_CELLS_MAX))
        seqs = BitMap64()
        for _, cell in cells:
            seqs |= BitMap64(islice(cell.seqs, wanted - len(seqs)))
            if len(seqs) >= wanted:
                break
        facts = view.facts.rows
        unknown = [seq for seq in seqs if seq <= view.stored_seq and seq not in facts]
        if unknown:
            return Need(view.shard, rows=tuple(unknown))
        live = draft.still_live(seqs)
        dead = seqs - live | BitMap64([s for s in live if s in facts and not facts[s].live])
        dead |= seqs & view.doomed
        if not dead:
            draft.ready_known = len(seqs)
            return None
        draft.found_dead += len(dead)
        for key, cell in cells:
            if cell.seqs.intersect(dead):
                _leave(draft, key, cell, cell.seqs - dead)


def may_have_died(view: View) -> bool:
    """Return True if a deferred message may have been replaced, or have expired."""
    return view.spec.keyed or view.pointers.gaps > 0


def _leave(draft: Draft, key: bytes, cell: DeferredMessages, rest: BitMap64) -> None:
    """Reduce a cell to the messages that still wait."""
    draft.put_waiting(Kind.READY, key, None)
    if rest:
        after = _key(draft.view, Kind.READY, ready_since(key), cell.priority, rest.min())
        draft.put_waiting(Kind.READY, after, DeferredMessages.of(rest, cell.priority))


def take(draft: Draft, count: int, *, least: int) -> list[BitMap64]:
    """Take up to `count` ready messages of at least this priority, turn by turn."""
    view = draft.view
    if may_have_died(view):
        count = min(count, draft.ready_known)
    turns: list[BitMap64] = []
    while count > 0:
        first_cell = view.ready.first()
        if first_cell is None or first_cell[1].priority < least:
            break
        key, cell = first_cell
        seqs = cell.seqs
        taken = BitMap64(islice(seqs, count)) if len(seqs) > count else seqs
        _leave(draft, key, cell, seqs - taken)
        turns.append(taken)
        count -= len(taken)
        draft.ready_known -= len(taken)
    return turns


def may_go_on(draft: Draft) -> bool:
    """Return True if no deferred message of default or higher priority comes before undeferred
    ones."""
    first_cell = draft.view.ready.first()
    if first_cell is None:
        return draft.view.ready.known_to is None
    return first_cell[1].priority < USUAL


def may_have_work(view: View, now: int) -> bool:
    """Return True if a deferred message may be ready; False is always right."""
    due_ms = next_due(view)
    return due_ms is not None and due_ms <= now


def next_due(view: View) -> int | None:
    """Return when the next delay expires, or a deferred message is ready for its first delivery.

    None if there is none; 0 if the time has come, or must be read from the store.
    """
    if not view.pointers.aside:
        return None
    if view.ready.first() is not None or view.ready.known_to is not None:
        return 0
    first_cell = view.due.first()
    if first_cell is None:
        return None if view.due.known_to is None else 0
    return due_of(first_cell[0])


def is_old(view: View, low: bytes) -> bool:
    """Return True if a scan from this key reads cells of earlier eras."""
    return not low or low < number_key(view.pointers.era)


def learn_cells(
    draft: Draft, kind: Kind, low: bytes, cells: Sequence[tuple[bytes, bytes]], limit: int
) -> None:
    """Store the answer to a need."""
    view = draft.view
    if is_old(view, low):
        view.facts.old[kind] = [key for key, _ in cells if key < number_key(view.pointers.era)]
        return
    waits = [*(layer.waits for layer in view.layers), draft.waits]
    view.windows[kind].learn(
        [(key, deferred_cells.load(kind, key, value)) for key, value in cells],
        # Most of these were taken from the window, and lie before all newly read ones.
        [
            {key: cell for (of, key), cell in changed.items() if key >= low and of is kind}
            for changed in waits
        ],
        is_all=len(cells) < limit,
    )


# --- Purge -------------------------------------------------------------------------------------


def purge(draft: Draft, upto: int) -> None:
    """Begin another era, in which nothing is deferred yet."""
    view = draft.view
    has_ids = view.partition is not None and upto > view.pointers.era
    if not (view.pointers.aside or view.pointers.turn or has_ids):
        return
    partitions.purged(draft, upto)
    view.groups = GroupIndex()
    view.set_windows(CellWindow(limits.WINDOW_CELLS, None), CellWindow(limits.WINDOW_CELLS, None))
    view.swept_from = draft.index
    view.swept_to.clear()
    draft.gathering.clear()
    draft.put_pointers(msgspec.structs.replace(view.pointers, aside=0, era=upto))


def sweep_due(view: View) -> bool:
    """Return True if the store may have cells of earlier eras, all of them folded."""
    began = view.swept_from
    return began is not None and not (view.layers and view.layers[0].index <= began)


def sweep(draft: Draft) -> Need | bool:
    """Delete cells of earlier eras, a bounded number; returns True if there may be more."""
    view = draft.view
    if not sweep_due(view):
        return False
    for kind in ERA_KINDS:
        if kind not in view.facts.old:
            low = view.swept_to.get(kind, b"")
            return Need(view.shard, cells=(kind, low, limits.SWEEP_CELLS_MAX))
    is_cut = False
    for kind in ERA_KINDS:
        old = view.facts.old.pop(kind)
        draft.waits.update(((kind, key), None) for key in old)
        if old:
            view.swept_to[kind] = old[-1] + b"\0"
        is_cut = is_cut or len(old) == limits.SWEEP_CELLS_MAX
    if not is_cut:
        view.swept_from = None
    return is_cut


# --- Queries -----------------------------------------------------------------------------------


def is_deferred(draft: Draft, seq: int) -> bool:
    """Return True if a row that is not folded yet was deferred."""
    return seq in draft.aside or any(seq in layer.aside for layer in draft.view.layers)


def explain(draft: Draft, seq: Seq) -> Explanation | Need:
    """Return the state of a deferred message that was never delivered, as far as known."""
    view = draft.view
    need = _need_cells(view, Kind.DUE) or _need_cells(view, Kind.READY)
    if need is not None:
        return need
    for key, cell in view.due:
        if seq in cell.seqs and due_of(key) > draft.now:
            return Explanation(seq, "delayed", until_ms=due_of(key))
        if seq in cell.seqs:
            return Explanation(seq, "ready")
    behind = view.due.known_to
    if behind is None or any(seq in cell.seqs for _, cell in view.ready):
        return Explanation(seq, "ready")
    soonest = due_of(behind)
    if soonest <= draft.now or view.ready.known_to is not None:
        # Not even all ready messages are known: it may be among the others.
        return Explanation(seq, "delayed")
    return Explanation(seq, "delayed", not_before_ms=soonest)
