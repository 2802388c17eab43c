"""That the cells of groups say the same as the view, and the same as each other."""

from __future__ import annotations

from collections import Counter

from pyroaring import BitMap64

from millrace import limits
from millrace.core.cells import GroupCell, Kind, RingCell, TurnCell
from millrace.core.format.codec import decode_cell
from millrace.core.ordering.groups import bound_of, turn_of
from millrace.core.state.group_state import GroupIndex
from millrace.core.state.ready_ring import Page
from millrace.core.state.view import View, number, number_key
from millrace.store.memory_store import MemoryStore


def check_groups(view: View, store: MemoryStore) -> None:
    """Who waits waits once, has a turn where the order says so, and nobody is forgotten.

    All batches of the view must be folded.
    """
    era = number_key(view.pointers.era)
    pages: dict[int, Page] = {}
    cells: dict[int, TurnCell] = {}
    parts: dict[tuple[int, int], GroupCell] = {}
    buckets: set[tuple[int, int]] = set()
    for kind in (Kind.RING, Kind.TURN, Kind.GROUP, Kind.BUCKET):
        for _, key, value in store.cells(view.shard, kind):
            assert key >= era or view.swept_from is not None, "nobody sweeps what was purged"
            if key[:8] != era:
                continue
            match decode_cell(kind, value):
                case RingCell(groups=page) if kind is Kind.RING:
                    pages[turn_of(key)] = page
                case RingCell(groups=page):
                    buckets.add((number(key[8:16]), page[0] or 0))
                case TurnCell() as cell:
                    cells[number(key[8:])] = cell
                case GroupCell() as part:
                    parts[number(key[8:16]), number(key[16:])] = part
    turns = _check_ring(view, pages)
    _check_known(view, cells)
    _check_flights(view)
    waiting = Counter(seq for cell in cells.values() for seq in cell.seqs)
    waiting += Counter(seq for part in parts.values() for seq in part.seqs)
    assert max(waiting.values(), default=1) == 1, "a message waits twice"
    assert BitMap64(waiting).isdisjoint(BitMap64(view.holder) - view.doomed), (
        "it waits, and a worker has it"
    )
    named = {(group, at) for group, cell in cells.items() for at in range(cell.head, cell.tail)}
    assert named == set(parts), "parts that nobody names"
    have_turns = set(turns.values())
    bound = bound_of(view.spec)
    for group, cell in cells.items():
        flight = view.groups.flights.get(group)
        waits = bool(cell.seqs or cell.head < cell.tail)
        assert waits or cell.due_ms, "an empty group is remembered for nothing"
        assert not cell.due_ms or (cell.due_ms, group) in buckets, "nobody wakes the group"
        is_free = flight is None or flight.count < bound
        if waits and is_free and not cell.due_ms:
            assert group in have_turns, "a group waits, and will never have a turn"
        if waits and flight is not None:
            assert flight.more is not False, "nobody knows that more of the group waits"


def _check_ring(view: View, pages: dict[int, Page]) -> dict[int, int]:
    """The turns that are not over, and whose they are."""
    front, known_to = view.pointers.front, view.groups.ring.known_to
    turns: dict[int, int] = {}
    for first, page in sorted(pages.items()):
        assert 0 < len(page) <= limits.RING_PAGE_TURNS
        assert first + len(page) > front, "a page is over, and is still there"
        for turn, group in enumerate(page, first):
            assert turn not in turns, "pages overlap"
            if turn >= front and group is not None:
                turns[turn] = group
    assert max(turns, default=0) <= view.pointers.turn
    known = {
        turn: group
        for first, page in pages.items()
        for turn, group in enumerate(page, first)
        if turn in turns and (known_to is None or first < known_to)
    }
    assert list(view.groups.ring) == sorted(known.items()), "the ring is another"
    assert len(view.groups.ring) == len(known), "the ring counts otherwise"
    return turns


def _check_known(view: View, cells: dict[int, TurnCell]) -> None:
    for group, cell in view.groups.cells.items():
        assert cells.get(group) == cell, "the cell of a group is another"


def _check_flights(view: View) -> None:
    fresh = GroupIndex()
    held = (one for lease in view.leases.values() for one in lease.groups.items())
    flights = view.groups.flights
    fresh.load(held, view.returned, view.overdue, blocking=view.spec.blocking)
    assert set(flights) == set(fresh.flights)
    for group, flight in fresh.flights.items():
        assert flights[group].seqs == flight.seqs
        assert flights[group].count == flight.count
        assert flights[group].returned == flight.returned
        # Whether more waits is not known of one that was just loaded.
        flight.more = flights[group].more
        fresh.look(group, flight, view.overdue, blocking=view.spec.blocking, turn=0)
    limited = {group for group, flight in flights.items() if flight.is_limited}
    assert set(view.groups.again) == set(fresh.again) - limited, "who was given some back"
