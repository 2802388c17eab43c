"""Expiry of messages, deduplication ids and attempts, by cells sorted by their time.

Rule 1: a cell names the messages and ids that expire at its time. It is not read before that.
Rule 2: expiry is checked where it matters; a tick only collects, in bounded steps, and may be late.
Rule 3: messages with the TTL of their queue need no cell (`queue_ttl.py`), and expire in the same
way as messages with a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec
from pyroaring import BitMap64

from millrace.core import bounds
from millrace.core.cells import DedupCell, ExpiryCell, Kind, expiry_of
from millrace.core.commands import Publish, RowTtl
from millrace.core.format.codec import decode_cell
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.model import DeadLetterReason, Death, LeaseId
from millrace.core.needs import Need
from millrace.core.ordering import groups, partitions
from millrace.core.retention import queue_ttl
from millrace.core.spec import QueueSpec
from millrace.core.state import cell_lookup
from millrace.core.state.draft import Draft
from millrace.core.state.lease_state import NO_SEQS, LeaseState
from millrace.core.state.view import View
from millrace.errors import Invalid, Refused


def check_spec(spec: QueueSpec) -> Refused | None:
    """Check that the settings fit together."""
    if spec.retention == "log" and spec.ttl_ms:
        return Invalid(
            "a queue with retention 'log' ends messages by keep, whoever has worked on them",
            field="ttl",
        )
    return None


def check_publish(draft: Draft, command: Publish) -> Refused | None:
    """Refuse a TTL of single messages in a log, which cannot tell settled messages from others."""
    if command.lives and draft.view.spec.retention == "log":
        return Invalid("a queue with retention 'log' knows no ttl; it has keep", field="ttl")
    return None


def put_ids(draft: Draft, due_ms: int, ids: Sequence[bytes]) -> None:
    """Let these deduplication ids expire at this time."""
    left = iter(ids)
    while part := tuple(islice(left, bounds.EXPIRY_CELL_MAX)):
        key = draft.expiring.next_key(due_ms, draft.index)
        cell_lookup.put(draft, (Kind.EXPIRY, key), ExpiryCell(part))
        _note(draft, due_ms)


def put_rows(
    draft: Draft, first: int, lives: Sequence[RowTtl], deletes: Sequence[int] = ()
) -> None:
    """Let new rows with a TTL of their own expire then, unless they end before; deletes expire
    by their own age."""
    if not lives:
        return
    gone = BitMap64([first + at for at in deletes])
    by_ttl: dict[int, list[int]] = {}
    for life in lives:
        begin = first + life.at
        by_ttl.setdefault(life.ttl_ms, []).extend(range(begin, begin + life.count))
    expiring = draft.expiring.rows
    for ttl_ms, named in by_ttl.items():
        seqs = BitMap64(named)
        if gone:
            seqs -= gone
        if seqs:
            due_ms = draft.now + ttl_ms
            if due_ms in expiring:
                expiring[due_ms] |= seqs
            else:
                expiring[due_ms] = seqs
            _note(draft, due_ms)


def _note(draft: Draft, due_ms: int) -> None:
    view = draft.view
    if view.expiry_ms is None or due_ms < view.expiry_ms:
        view.expiry_ms = due_ms
    if not view.pointers.expires:
        draft.put_pointers(msgspec.structs.replace(view.pointers, expires=1))


def tick_due(view: View, now: int) -> bool:
    """Return True if something may be due."""
    return _is_cell_due(view, now) or queue_ttl.is_due(view, now)


def _is_cell_due(view: View, now: int) -> bool:
    return view.expiry_ms is not None and view.expiry_ms <= now


def _room(draft: Draft) -> int:
    """Return how many messages may expire by the queue's TTL: dead letters need room to wait in."""
    view = draft.view
    if not _makes_dead_letters(view.spec):
        return bounds.QUEUE_TTL_STEP
    return min(bounds.QUEUE_TTL_STEP, bounds.DEAD_LETTERS_WAITING_MAX - len(view.doomed))


def _makes_dead_letters(spec: QueueSpec) -> bool:
    """Return True if expired messages become dead letters."""
    return bool(spec.dead_letter) and spec.dead_letter_expired


def check_tick(draft: Draft) -> Need | None:
    """Return the Need of due messages and ids, or None."""
    view, room = draft.view, _room(draft)
    if room <= 0:
        return None
    if queue_ttl.is_due(view, draft.now):
        need = queue_ttl.check(draft, room)
        if need is not None:
            return need
    if not _is_cell_due(view, draft.now) or not view.stored_index:
        return None
    if view.facts.expiry is None:
        return Need(view.shard, cells=(Kind.EXPIRY, draft.expiring.upto, bounds.EXPIRY_CELLS_STEP))
    due = _due(draft)
    need = cell_lookup.need(draft, [(Kind.DEDUP, key) for _, cell in due for key in cell.ids])
    ranges = [range_of(cell) for _, cell in due if cell.seqs]
    unknown = tuple(dict.fromkeys(r for r in ranges if r not in view.facts.ended))
    return need or (Need(view.shard, ended=unknown) if unknown else None)


def range_of(cell: ExpiryCell) -> tuple[int, int]:
    """Return the first and the last message of a cell, which names at least one."""
    seqs = unpack_seqs(cell.seqs)
    return seqs.min(), seqs.max()


def check_all(draft: Draft) -> Need | None:
    """Expire all that is due, as far as one batch may; returns the Need of `check_tick`, if any."""
    while tick_due(draft.view, draft.now) and draft.expiring.steps < bounds.EXPIRY_STEPS_MAX:
        need = check_tick(draft)
        if need is not None:
            return need
        if not do_tick(draft):
            break
    return None


def is_behind(draft: Draft) -> bool:
    """Return True if expired messages may be left: too many for a batch, or not folded yet."""
    if not tick_due(draft.view, draft.now):
        return False
    if _room(draft) <= 0 or queue_ttl.is_due(draft.view, draft.now):
        return True
    return draft.expiring.steps >= bounds.EXPIRY_STEPS_MAX or any(
        isinstance(cell, ExpiryCell) and cell.seqs and expiry_of(name[1]) <= draft.now
        for layer in draft.view.layers
        for name, cell in layer.points.items()
    )


def _due(draft: Draft) -> list[tuple[bytes, ExpiryCell]]:
    cells = draft.view.facts.expiry or ()
    return [(key, cell) for key, cell in cells if expiry_of(key) <= draft.now]


def do_tick(draft: Draft) -> bool:
    """Expire a bounded number of due messages and ids; returns True if there may be more."""
    view = draft.view
    if _room(draft) <= 0:
        return False
    is_more = False
    if queue_ttl.is_due(view, draft.now):
        over = queue_ttl.take(draft)
        _expire(draft, over)
        is_more = queue_ttl.is_due(view, draft.now)
        draft.expiring.steps += is_more or bool(over)
    if not _is_cell_due(view, draft.now):
        return is_more
    # There may be no room left for more dead letters.
    return _expire_cells(draft) or is_more if _room(draft) > 0 else True


def _expire_cells(draft: Draft) -> bool:
    """Expire the messages and ids of the first due cells; returns True if there may be more."""
    view = draft.view
    due, cells = _due(draft), view.facts.expiry or []
    # Cells that are not due stay cached: a call that needs something else, and is decided again
    # while more is due that is not folded yet, does not read the same cells twice.
    view.facts.expiry = None if len(due) == bounds.EXPIRY_CELLS_STEP else cells[len(due) :]
    for key, cell in due:
        if not (cell.ids or cell.seqs):
            # A batch that is not folded yet has expired it.
            continue
        for name in cell.ids:
            _forget_id(draft, name)
        # A queue that has become a log keeps its messages, settled or not.
        if cell.seqs and view.spec.retention == "work":
            ended = view.facts.ended.get(range_of(cell), BitMap64())
            live = draft.still_live(unpack_seqs(cell.seqs) - ended)
            _expire(draft, live - draft.kept())
        cell_lookup.put(draft, (Kind.EXPIRY, key), None)
    # Finding nothing is not counted as a step: a call that is decided again searches again.
    draft.expiring.steps += any(cell.ids or cell.seqs for _, cell in due)
    if len(due) == bounds.EXPIRY_CELLS_STEP:
        draft.expiring.upto = due[-1][0] + b"\0"
        return True
    set_next(draft, [expiry_of(key) for key, _ in cells[len(due) :]])
    return False


def _expire(draft: Draft, seqs: BitMap64) -> None:
    """Expire messages. A message in flight expires when it is released, and a dead letter if a
    change of the settings would make it a message again."""
    view = draft.view
    held = BitMap64([seq for seq in seqs if seq in view.holder] if view.holder else ())
    for seq in held:
        lease = view.leases[view.holder[seq]]
        if seq in lease.overdue or lease.doomed.get(seq) == DeadLetterReason.EXPIRED:
            continue
        lease.overdue |= BitMap64([seq])
        view.overdue.add(seq)
        groups.overdue(draft, lease, seq)
        draft.put_lease(lease)
    free = seqs - held
    if not free:
        return
    partitions.ended(draft, free, fresh=len(free))
    if _makes_dead_letters(view.spec):
        dead_letter_undelivered(draft, free, DeadLetterReason.EXPIRED)
    else:
        draft.die(Death.EXPIRED, free)
    note_gaps(draft, free)


def note_gaps(draft: Draft, seqs: BitMap64) -> None:
    """Record messages that ended before their first delivery."""
    pointers = draft.view.pointers
    if seqs.max() > pointers.gaps:
        draft.put_pointers(msgspec.structs.replace(pointers, gaps=seqs.max()))


def dead_letter_undelivered(draft: Draft, seqs: BitMap64, why: DeadLetterReason) -> None:
    """Make dead letters of messages that were never delivered: a lease without a worker holds
    them."""
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
    """Forget an id, unless it was used again since: then another cell names it."""
    name = (Kind.DEDUP, key)
    cell = cell_lookup.look(draft, name)
    if isinstance(cell, DedupCell) and cell.until_ms <= draft.now:
        cell_lookup.put(draft, name, None)


def set_next(draft: Draft, times: list[int]) -> None:
    """Set the time of the next tick from cells of the store and of unfolded batches."""
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
    """Store the answer to a need, without cells that have expired since."""
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


# --- Garbage collection of expiry cells whose messages have all ended early ----------------------
#
# Rule 1: a few cells at a time, from the end of the last scan on, wrapping to the first one. So
# messages that stay long keep no other cells from being collected.
# Rule 2: a cell that names ids stays until it is due.


def is_due(view: View, now: int) -> bool:
    """Return True if a scan is due: there were changes since the last one, and cells are not
    expiring anyway."""
    return (
        view.expiry_ms is not None
        and view.expiry_ms > now
        and view.tidied_index < view.index
        and view.tidied_ms + bounds.EXPIRY_GC_MS <= now
    )


def check(draft: Draft) -> Need | None:
    """Return the Need of the cells for `collect`, or None."""
    view, cells = draft.view, draft.view.facts.expiry
    if not is_due(view, draft.now) or not view.stored_index:
        return None
    if cells is None:
        return Need(view.shard, cells=(Kind.EXPIRY, view.tidied_to, bounds.EXPIRY_GC_CELLS))
    ranges = dict.fromkeys(range_of(cell) for _, cell in cells if _names_messages(cell))
    unknown = tuple(seq_range for seq_range in ranges if seq_range not in view.facts.ended)
    return Need(view.shard, ended=unknown) if unknown else None


def collect(draft: Draft) -> bool:
    """Delete cells that name nothing alive; returns True if the scan should go on at once."""
    view, cells = draft.view, draft.view.facts.expiry
    if cells is None or not is_due(view, draft.now):
        return False
    view.facts.expiry = None
    left: list[int] = []
    for key, cell in cells:
        if _names_messages(cell) and not _live(draft, cell):
            cell_lookup.put(draft, (Kind.EXPIRY, key), None)
        elif cell.ids or cell.seqs:
            left.append(expiry_of(key))
    is_all = len(cells) < bounds.EXPIRY_GC_CELLS
    if is_all and not view.tidied_to:
        set_next(draft, left)
    view.tidied_to = b"" if is_all else cells[-1][0] + b"\0"
    if not is_all and len(left) < len(cells):
        return True
    view.tidied_index, view.tidied_ms = view.index, draft.now
    return False


def _names_messages(cell: ExpiryCell) -> bool:
    return bool(cell.seqs) and not cell.ids


def _live(draft: Draft, cell: ExpiryCell) -> BitMap64:
    ended = draft.view.facts.ended.get(range_of(cell), BitMap64())
    return draft.still_live(unpack_seqs(cell.seqs) - ended) - draft.kept()
