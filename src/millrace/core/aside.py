"""The rules of priorities and delays: messages that do not wait in the order of their seqs.

Rule 1: a message with a delay, or with a priority that is not the usual one, is put aside when it
is published: a mark has the pointer `next` pass over it, and a cell says when its turn comes.
Rule 2: until it is handed out it stands in one cell, of DUE until its time and of READY from then
on. Whether a newer revision has ended it meanwhile is found out when its turn comes.
Rule 3: a purge begins another era: what was put aside before is nobody's, and goes in steps.
Rule 4: what is done at once is bounded, whatever the number of those that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import partitions, waiting
from millrace.core.answers import Explanation
from millrace.core.commands import Aside, Need
from millrace.core.draft import Draft
from millrace.core.flight import Groups
from millrace.core.model import OF_AN_ERA, Kind, QueueSpec, Seq
from millrace.core.view import View, number_key
from millrace.core.waiting import Waiting, due_key, due_of, ready_key, ready_since
from millrace.core.window import Window
from millrace.errors import Invalid, Refused

USUAL = limits.PRIORITY_DEFAULT


# --- Publish -----------------------------------------------------------------------------------


def check_spec(spec: QueueSpec, view: View | None = None) -> Refused | None:
    """Whether the settings fit together, and what waits in the queue."""
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


def check_publish(spec: QueueSpec, runs: Sequence[Aside]) -> Refused | None:
    """A log is read in the order of its seqs, and who waits for others cannot go before them."""
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


def put_aside(
    draft: Draft, first: int, count: int, runs: Sequence[Aside], deletes: Iterable[int]
) -> None:
    """Take those of `count` new rows out of the order of seqs that are to wait otherwise.

    Deletes, which are named by their places from 0 on, are for no worker anyway.
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
    count: int, runs: Sequence[Aside], delay_ms: int
) -> Iterator[tuple[int, int, int, int]]:
    """Place, number, priority and delay of rows that follow each other, all of them."""
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
    """Have a cell name these, which rise; what comes to its turn together is gathered within a
    batch.

    What is ready now does not join those who have waited for longer: it would overtake others.
    """
    turn = (at_ms, priority)
    if len(seqs) == 1 and turn not in draft.gathering:
        # The way of many delays, each of its own, which must cost little for each.
        alone = _key(draft.view, kind, at_ms, priority, seqs[0])
        draft.put_waiting(kind, alone, Waiting(seqs[0], priority))
        draft.gathering[turn] = alone
        return
    key = draft.gathering.get(turn)
    known = draft.waits.get((kind, key)) if key is not None else None
    if key is not None and known is not None:
        both = known.seqs | BitMap64(seqs)
        if len(both) <= limits.ASIDE_CELL_SEQS_MAX:
            draft.put_waiting(kind, key, Waiting.of(both, priority))
            return
    step = limits.ASIDE_CELL_SEQS_MAX
    for at in range(0, len(seqs), step):
        part = seqs[at : at + step]
        more = BitMap64(part) if len(part) > 1 else None
        key = _key(draft.view, kind, at_ms, priority, part[0])
        draft.put_waiting(kind, key, Waiting(part[0], priority, more))
        draft.gathering[turn] = key


def _key(view: View, kind: Kind, at_ms: int, priority: int, first: int) -> bytes:
    era = view.pointers.era
    if kind is Kind.DUE:
        return due_key(era, at_ms, first)
    return ready_key(era, priority, at_ms, first)


# --- Lease -------------------------------------------------------------------------------------


def check_lease(draft: Draft, wanted: int) -> Need | None:
    """Make ready what is due, and see to it that the first ones are known to be there.

    That changes cells, not what anybody gets: it holds whatever becomes of the lease call.
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
    ready: dict[int, tuple[int, list[Waiting]]] = {}
    for key, cell in due:
        if cell.priority not in ready:
            ready[cell.priority] = (due_of(key), [])
        ready[cell.priority][1].append(cell)
    for priority, (since, cells) in ready.items():
        _add(draft, Kind.READY, since, priority, list(waiting.union(cells)))
    return _need_cells(view, Kind.DUE) if len(due) < room else None


def need_due(view: View) -> Need | None:
    """Whether the first delayed messages are known."""
    return _need_cells(view, Kind.DUE)


def _need_cells(view: View, kind: Kind) -> Need | None:
    low = view.windows[kind].wanted_from()
    if low is None:
        return None
    return Need(view.shard, cells=(kind, low, limits.WINDOW_CELLS))


def _need_ready(draft: Draft, wanted: int) -> Need | None:
    """Whether the first ones are known: on a keyed queue they may have died."""
    view = draft.view
    draft.ready_known = 0
    wanted = min(wanted, limits.LOOK_AT_ROWS_MAX)
    while True:
        need = _need_cells(view, Kind.READY)
        if need is not None or not may_have_died(view):
            return need
        if draft.found_dead >= limits.FOUND_DEAD_MAX:
            return None
        found = view.ready.firsts(min(wanted, limits.LOOK_AT_CELLS_MAX))
        seqs = BitMap64()
        for _, cell in found:
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
        for key, cell in found:
            if cell.seqs.intersect(dead):
                _leave(draft, key, cell, cell.seqs - dead)


def may_have_died(view: View) -> bool:
    """Whether one that waits apart may have been replaced, or have expired."""
    return view.spec.keyed or view.pointers.gaps > 0


def _leave(draft: Draft, key: bytes, cell: Waiting, rest: BitMap64) -> None:
    """Of a cell only `rest` still waits."""
    draft.put_waiting(Kind.READY, key, None)
    if rest:
        after = _key(draft.view, Kind.READY, ready_since(key), cell.priority, rest.min())
        draft.put_waiting(Kind.READY, after, Waiting.of(rest, cell.priority))


def take(draft: Draft, count: int, *, least: int) -> list[BitMap64]:
    """Up to `count` ready messages of at least this priority, turn by turn."""
    view = draft.view
    if may_have_died(view):
        count = min(count, draft.ready_known)
    turns: list[BitMap64] = []
    while count > 0:
        found = view.ready.first()
        if found is None or found[1].priority < least:
            break
        key, cell = found
        seqs = cell.seqs
        taken = BitMap64(islice(seqs, count)) if len(seqs) > count else seqs
        _leave(draft, key, cell, seqs - taken)
        turns.append(taken)
        count -= len(taken)
        draft.ready_known -= len(taken)
    return turns


def may_go_on(draft: Draft) -> bool:
    """Whether no message of the usual priority or above waits that would come before others."""
    found = draft.view.ready.first()
    if found is None:
        return draft.view.ready.known_to is None
    return found[1].priority < USUAL


def may_have_work(view: View, now: int) -> bool:
    """Whether a message may be ready that was put aside; never wrong when it says no."""
    due_ms = next_due(view)
    return due_ms is not None and due_ms <= now


def next_due(view: View) -> int | None:
    """When the next delay is over, or something is ready that nobody was given yet.

    None if there is none, 0 if that has come, or must be asked for.
    """
    if not view.pointers.aside:
        return None
    if view.ready.first() is not None or view.ready.known_to is not None:
        return 0
    found = view.due.first()
    if found is None:
        return None if view.due.known_to is None else 0
    return due_of(found[0])


def is_old(view: View, low: bytes) -> bool:
    """Whether who asks for cells from there on asks for those of earlier eras."""
    return not low or low < number_key(view.pointers.era)


def learn_cells(
    draft: Draft, kind: Kind, low: bytes, found: Sequence[tuple[bytes, bytes]], limit: int
) -> None:
    """The store's answer to a need."""
    view = draft.view
    if is_old(view, low):
        view.facts.old[kind] = [key for key, _ in found if key < number_key(view.pointers.era)]
        return
    waits = [*(layer.waits for layer in view.layers), draft.waits]
    view.windows[kind].learn(
        [(key, waiting.load(kind, key, value)) for key, value in found],
        # Most of these were taken from the window, and lie before all that is learned.
        [
            {key: cell for (of, key), cell in one.items() if key >= low and of is kind}
            for one in waits
        ],
        is_all=len(found) < limit,
    )


# --- Purge -------------------------------------------------------------------------------------


def purge(draft: Draft, upto: int) -> None:
    """Another era begins: nothing waits in it yet."""
    view = draft.view
    has_ids = view.partition is not None and upto > view.pointers.era
    if not (view.pointers.aside or view.pointers.turn or has_ids):
        return
    partitions.purged(draft, upto)
    view.groups = Groups()
    view.set_windows(Window(limits.WINDOW_CELLS, None), Window(limits.WINDOW_CELLS, None))
    view.swept_from = draft.index
    view.swept_to.clear()
    draft.gathering.clear()
    draft.put_pointers(msgspec.structs.replace(view.pointers, aside=0, era=upto))


def sweep_due(view: View) -> bool:
    """Whether cells of earlier eras may be there, all of which the store knows by now."""
    began = view.swept_from
    return began is not None and not (view.layers and view.layers[0].index <= began)


def sweep(draft: Draft) -> Need | bool:
    """Drop cells of earlier eras, so many at once; whether there may be more."""
    view = draft.view
    if not sweep_due(view):
        return False
    for kind in OF_AN_ERA:
        if kind not in view.facts.old:
            low = view.swept_to.get(kind, b"")
            return Need(view.shard, cells=(kind, low, limits.SWEEP_CELLS_MAX))
    is_cut = False
    for kind in OF_AN_ERA:
        old = view.facts.old.pop(kind)
        draft.waits.update(((kind, key), None) for key in old)
        if old:
            view.swept_to[kind] = old[-1] + b"\0"
        is_cut = is_cut or len(old) == limits.SWEEP_CELLS_MAX
    if not is_cut:
        view.swept_from = None
    return is_cut


# --- Questions ---------------------------------------------------------------------------------


def is_aside(draft: Draft, seq: int) -> bool:
    """Whether a row that the store does not hold yet was put aside."""
    return seq in draft.aside or any(seq in layer.aside for layer in draft.view.layers)


def explain(draft: Draft, seq: Seq) -> Explanation | Need:
    """Where a message stands that was put aside and never handed out, as far as it is known."""
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
        # Not even all that is ready is known: it may be among that, too.
        return Explanation(seq, "delayed")
    return Explanation(seq, "delayed", not_before_ms=soonest)
