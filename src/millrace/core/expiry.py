"""What goes by itself at a stated time, and is too much for memory: cells sorted by that time.

Rule 1: a cell names what goes at its time. Until then nobody looks at it.
Rule 2: time is checked where it matters; a tick only tidies up, so much at once, and may be late.
Rule 3: messages that live for as long as their queue says need no cell (`lifetime.py`), and end as
those do that have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec
from pyroaring import BitMap64

from millrace.core import bounds, groups, lifetime, partitions, points
from millrace.core.codec import decode_cell
from millrace.core.commands import Need, Publish
from millrace.core.draft import Draft
from millrace.core.idcells import DedupCell, ExpiryCell, expiry_of
from millrace.core.lease_state import NO_SEQS, LeaseState
from millrace.core.leased_commands import Life
from millrace.core.model import Death, Doom, Kind, LeaseId, QueueSpec
from millrace.core.seqs import unpack_seqs
from millrace.core.view import View
from millrace.errors import Invalid, Refused


def check_spec(spec: QueueSpec) -> Refused | None:
    """Whether the settings fit together."""
    if spec.retention == "log" and spec.ttl_ms:
        return Invalid(
            "a queue with retention 'log' ends messages by keep, whoever has worked on them",
            field="ttl",
        )
    return None


def check_publish(draft: Draft, command: Publish) -> Refused | None:
    """What was settled in a log cannot be told from what was not: its messages live alike."""
    if command.lives and draft.view.spec.retention == "log":
        return Invalid("a queue with retention 'log' knows no ttl; it has keep", field="ttl")
    return None


def put_ids(draft: Draft, due_ms: int, ids: Sequence[bytes]) -> None:
    """These de-duplication ids are forgotten from then on."""
    left = iter(ids)
    while part := tuple(islice(left, bounds.EXPIRY_CELL_MAX)):
        key = draft.expiring.next_key(due_ms, draft.index)
        points.put(draft, (Kind.EXPIRY, key), ExpiryCell(part))
        _note(draft, due_ms)


def put_rows(draft: Draft, first: int, lives: Sequence[Life], deletes: Sequence[int] = ()) -> None:
    """Of new rows, those with a time to live of their own expire then, if they are there for so
    long; deletes go by their own age."""
    if not lives:
        return
    gone = BitMap64([first + at for at in deletes])
    by_ttl: dict[int, list[int]] = {}
    for life in lives:
        begin = first + life.at
        by_ttl.setdefault(life.ttl_ms, []).extend(range(begin, begin + life.count))
    known = draft.expiring.rows
    for ttl_ms, named in by_ttl.items():
        seqs = BitMap64(named)
        if gone:
            seqs -= gone
        if seqs:
            due_ms = draft.now + ttl_ms
            if due_ms in known:
                known[due_ms] |= seqs
            else:
                known[due_ms] = seqs
            _note(draft, due_ms)


def _note(draft: Draft, due_ms: int) -> None:
    view = draft.view
    if view.expiry_ms is None or due_ms < view.expiry_ms:
        view.expiry_ms = due_ms
    if not view.pointers.expires:
        draft.put_pointers(msgspec.structs.replace(view.pointers, expires=1))


def tick_due(view: View, now: int) -> bool:
    """Whether something may be due."""
    return _is_cell_due(view, now) or lifetime.is_due(view, now)


def _is_cell_due(view: View, now: int) -> bool:
    return view.expiry_ms is not None and view.expiry_ms <= now


def _room(draft: Draft) -> int:
    """How many of those that have outlived their queue's time may go: as dead letters they must
    find room to wait in."""
    view = draft.view
    if not _makes_letters(view.spec):
        return bounds.OUTLIVED_STEP
    return min(bounds.OUTLIVED_STEP, bounds.DOOMED_MAX - len(view.doomed))


def _makes_letters(spec: QueueSpec) -> bool:
    """Whether what expires is a dead letter."""
    return bool(spec.dead_letter) and spec.dead_letter_expired


def check_tick(draft: Draft) -> Need | None:
    """What of that which is due the store must be asked for."""
    view, room = draft.view, _room(draft)
    if room <= 0:
        return None
    if lifetime.is_due(view, draft.now):
        need = lifetime.check(draft, room)
        if need is not None:
            return need
    if not _is_cell_due(view, draft.now) or not view.stored_index:
        return None
    if view.facts.expiry is None:
        return Need(view.shard, cells=(Kind.EXPIRY, draft.expiring.upto, bounds.EXPIRY_CELLS_STEP))
    due = _due(draft)
    need = points.need(draft, [(Kind.DEDUP, key) for _, cell in due for key in cell.ids])
    ranges = [range_of(cell) for _, cell in due if cell.seqs]
    unknown = tuple(dict.fromkeys(r for r in ranges if r not in view.facts.ended))
    return need or (Need(view.shard, ended=unknown) if unknown else None)


def range_of(cell: ExpiryCell) -> tuple[int, int]:
    """The first and the last of the messages that a cell names, of which there are some."""
    seqs = unpack_seqs(cell.seqs)
    return seqs.min(), seqs.max()


def check_all(draft: Draft) -> Need | None:
    """As `check_tick`, and let go of all that is due, as far as one batch may."""
    while tick_due(draft.view, draft.now) and draft.expiring.steps < bounds.EXPIRY_STEPS_MAX:
        need = check_tick(draft)
        if need is not None:
            return need
        if not do_tick(draft):
            break
    return None


def is_behind(draft: Draft) -> bool:
    """Whether messages may be over that were not let go: too many, or not folded yet."""
    if not tick_due(draft.view, draft.now):
        return False
    if _room(draft) <= 0 or lifetime.is_due(draft.view, draft.now):
        return True
    return draft.expiring.steps >= bounds.EXPIRY_STEPS_MAX or any(
        isinstance(cell, ExpiryCell) and cell.seqs and expiry_of(name[1]) <= draft.now
        for layer in draft.view.layers
        for name, cell in layer.points.items()
    )


def _due(draft: Draft) -> list[tuple[bytes, ExpiryCell]]:
    found = draft.view.facts.expiry or ()
    return [(key, cell) for key, cell in found if expiry_of(key) <= draft.now]


def do_tick(draft: Draft) -> bool:
    """Let go of what is due, so much at once; whether there may be more."""
    view = draft.view
    if _room(draft) <= 0:
        return False
    is_more = False
    if lifetime.is_due(view, draft.now):
        over = lifetime.take(draft)
        _expire(draft, over)
        is_more = lifetime.is_due(view, draft.now)
        draft.expiring.steps += is_more or bool(over)
    if not _is_cell_due(view, draft.now):
        return is_more
    # There may be no room left for more dead letters.
    return _let_go(draft) or is_more if _room(draft) > 0 else True


def _let_go(draft: Draft) -> bool:
    """Let go of what the first cells name that are due; whether there may be more of them."""
    view = draft.view
    due, found = _due(draft), view.facts.expiry or []
    # What is not due stays known: a call that needs something else, and is decided again while more
    # is due that is not folded yet, does not ask for the same twice.
    view.facts.expiry = None if len(due) == bounds.EXPIRY_CELLS_STEP else found[len(due) :]
    for key, cell in due:
        if not (cell.ids or cell.seqs):
            # It was let go by a batch that is not folded yet.
            continue
        for name in cell.ids:
            _forget_id(draft, name)
        # A queue that was made a log meanwhile keeps what it has, settled or not.
        if cell.seqs and view.spec.retention == "work":
            known = view.facts.ended.get(range_of(cell), BitMap64())
            live = draft.still_live(unpack_seqs(cell.seqs) - known)
            _expire(draft, live - draft.kept())
        points.put(draft, (Kind.EXPIRY, key), None)
    # To find nothing is no step: a call that is decided again looks again.
    draft.expiring.steps += any(cell.ids or cell.seqs for _, cell in due)
    if len(due) == bounds.EXPIRY_CELLS_STEP:
        draft.expiring.upto = due[-1][0] + b"\0"
        return True
    set_next(draft, [expiry_of(key) for key, _ in found[len(due) :]])
    return False


def _expire(draft: Draft, seqs: BitMap64) -> None:
    """The time of these messages is over. Who is held by a worker expires when it comes back, and
    so does a dead letter that other settings make a message again."""
    view = draft.view
    held = BitMap64([seq for seq in seqs if seq in view.holder] if view.holder else ())
    for seq in held:
        lease = view.leases[view.holder[seq]]
        if seq in lease.overdue or lease.doomed.get(seq) == Doom.EXPIRED:
            continue
        lease.overdue |= BitMap64([seq])
        view.overdue.add(seq)
        groups.overdue(draft, lease, seq)
        draft.put_lease(lease)
    free = seqs - held
    if not free:
        return
    partitions.ended(draft, free, fresh=len(free))
    if _makes_letters(view.spec):
        doom_unseen(draft, free, Doom.EXPIRED)
    else:
        draft.die(Death.EXPIRED, free)
    note_gaps(draft, free)


def note_gaps(draft: Draft, seqs: BitMap64) -> None:
    """These ended before a worker was given them."""
    pointers = draft.view.pointers
    if seqs.max() > pointers.gaps:
        draft.put_pointers(msgspec.structs.replace(pointers, gaps=seqs.max()))


def doom_unseen(draft: Draft, seqs: BitMap64, why: Doom) -> None:
    """These are dead letters that no worker was ever given: a lease of nobody holds them."""
    view = draft.view
    lease = LeaseState(LeaseId(view.pointers.lease + 1), draft.index, NO_SEQS, draft.now)
    lease.counts = dict.fromkeys(seqs, (0, 0))
    lease.doomed = dict.fromkeys(seqs, int(why))
    view.holder.update(dict.fromkeys(seqs, lease.id))
    view.doomed |= seqs
    view.hidden |= seqs & BitMap64(range(view.first_fresh(), view.scanned + 1))
    draft.put_lease(lease)
    draft.put_pointers(msgspec.structs.replace(view.pointers, lease=lease.id))


def _forget_id(draft: Draft, key: bytes) -> None:
    """It may have been used again since: then another cell names it."""
    name = (Kind.DEDUP, key)
    cell = points.look(draft, name)
    if isinstance(cell, DedupCell) and cell.until_ms <= draft.now:
        points.put(draft, name, None)


def set_next(draft: Draft, times: list[int]) -> None:
    """When a tick has something to do next: by the store, and by what it does not hold yet."""
    view = draft.view
    times += draft.expiring.rows
    changed = [*(layer.points for layer in view.layers), draft.points]
    for names in changed:
        times += [
            expiry_of(key)
            for (kind, key), cell in names.items()
            if kind is Kind.EXPIRY and cell is not None
        ]
    view.expiry_ms = min(times, default=None)
    if view.expiry_ms is None and view.pointers.expires:
        draft.put_pointers(msgspec.structs.replace(view.pointers, expires=0))


def learn(draft: Draft, found: Sequence[tuple[bytes, bytes]]) -> None:
    """The store's answer to a need, without what was let go since."""
    gone = {
        key
        for names in (*(layer.points for layer in draft.view.layers), draft.points)
        for (kind, key), cell in names.items()
        if kind is Kind.EXPIRY and cell is None
    }
    cells: list[tuple[bytes, ExpiryCell]] = []
    for key, value in found:
        cell = decode_cell(Kind.EXPIRY, value)
        assert isinstance(cell, ExpiryCell)
        cells.append((key, cell if key not in gone else ExpiryCell()))
    draft.view.facts.expiry = cells
