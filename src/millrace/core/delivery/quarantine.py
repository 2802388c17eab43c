"""Quarantine of queues and topics with unreadable rows.

Rule 1: all shards of a queue enter quarantine in one entry, and leave it in one entry. Every shard
then has a cell with the empty key; the damaged shard has one more for each range of rows.
Rule 2: commands that read or add rows are refused. Commands that end, release or configure are not:
settle, release, discard, extend, cursor commits, unpin, purge and deletion need no row.
Rule 3: a purge ends the quarantine of its shard: no unreadable row is left.
Rule 4: mending ends unreadable rows as dropped, and raises the purge floor: a cursor behind them
learns that rows are gone.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import bounds
from millrace.core.cells import QuarantineCell
from millrace.core.commands import EndQuarantine, Mend, Quarantine
from millrace.core.delivery.lease import take_out
from millrace.core.model import CATALOG, Death, ShardId
from millrace.core.needs import Need
from millrace.core.ordering import groups, partitions
from millrace.core.retention import expiry
from millrace.core.state.draft import BatchContext, Draft
from millrace.core.state.view import View, number_key
from millrace.errors import Invalid, Quarantined, Refused, TooLarge

STATE = b""
"""The key of the cell that every shard of a quarantined queue has."""

REPAIR = "`millrace check` lists the unreadable rows; `millrace repair` exports or drops them"


def refusal(view: View) -> Quarantined | None:
    """Return the error for a command that needs rows of the shard; None: it may be decided."""
    cells = view.quarantine
    return quarantined(cells[STATE]) if cells else None


def quarantined(cell: QuarantineCell) -> Quarantined:
    """The error of a queue with this state."""
    return Quarantined(f"the queue is quarantined: {cell.reason}; {REPAIR}", field="queue")


def quarantine(context: BatchContext, draft: Draft, command: Quarantine) -> bool | Need:
    """Record unreadable rows, if any is still live or pinned, and quarantine all shards."""
    view = draft.view
    wanted = _wanted(draft, command.first, command.last)
    if isinstance(wanted, Need):
        return wanted
    if not wanted:
        return False
    key = number_key(command.first)
    recorded = view.quarantine.get(key)
    if recorded is not None and recorded.last >= command.last:
        return True
    reason = (_owner(context, view.shard) + command.reason)[: bounds.QUARANTINE_REASON_CHARS_MAX]
    state = QuarantineCell(draft.now, reason, shard=view.shard)
    for shard in _siblings(context, view.shard):
        other = context.draft(shard)
        if other is not None and STATE not in other.view.quarantine:
            other.put_quarantine(STATE, state)
    # Repair scans all rows, and finds those that are not recorded here.
    if len(view.quarantine) <= bounds.QUARANTINE_RANGES_MAX:
        draft.put_quarantine(key, QuarantineCell(draft.now, reason, command.last))
    return True


def mend(draft: Draft, command: Mend) -> int | Refused | Need:
    """End those of the unreadable rows that have not ended."""
    view = draft.view
    if not view.quarantine:
        return Invalid("the queue is not quarantined; there is nothing to repair", field="queue")
    if sum(last - first + 1 for first, last in command.ranges) > limits.PUBLISH_MESSAGES_MAX:
        return TooLarge(
            f"up to {limits.PUBLISH_MESSAGES_MAX} rows are ended at once",
            field="ranges",
            limit=limits.PUBLISH_MESSAGES_MAX,
        )
    lost, settled = BitMap64(), BitMap64()
    for first, last in command.ranges:
        wanted = _wanted(draft, first, last)
        if isinstance(wanted, Need):
            return wanted
        kept = wanted & (view.facts.ended.get((first, last), BitMap64()) | draft.kept())
        settled |= kept
        lost |= wanted - kept
    if settled:
        draft.die(Death.SETTLED, settled)
    if lost:
        _end(draft, lost)
    gone = lost | settled
    if gone:
        floor = max(view.pointers.floor, gone.max())
        draft.put_pointers(msgspec.structs.replace(view.pointers, floor=floor))
    return len(gone)


def end_quarantine(context: BatchContext, draft: Draft, _: EndQuarantine) -> bool:
    """End the quarantine of the queue or topic."""
    was = bool(draft.view.quarantine)
    for shard in _siblings(context, draft.view.shard):
        other = context.draft(shard)
        if other is not None:
            forget(other)
    return was


def forget(draft: Draft) -> None:
    """End the quarantine of this shard."""
    for key in list(draft.view.quarantine):
        draft.put_quarantine(key, None)


def _siblings(context: BatchContext, shard: ShardId) -> tuple[ShardId, ...]:
    """Return all shards of the shard's queue."""
    catalog = context.view(CATALOG)
    key = catalog.owners.get(shard) if catalog is not None else None
    if catalog is None or key is None:
        return (shard,)
    return tuple(map(ShardId, catalog.queues[key].shards))


def _owner(context: BatchContext, shard: ShardId) -> str:
    """Return the name of the shard's queue as the beginning of a reason.

    A command may be refused because of another queue than the one that it names: the audit, say.
    """
    catalog = context.view(CATALOG)
    key = catalog.owners.get(shard) if catalog is not None else None
    return f"{key.decode().replace(chr(0), '/')}: " if key is not None else ""


def _wanted(draft: Draft, first: int, last: int) -> BitMap64 | Need:
    """Return the rows [first, last] that are live, or kept for retaining cursors."""
    view = draft.view
    low, high = max(first, view.ended_to + 1), min(last, view.last_seq)
    if low > high:
        return BitMap64()
    part = (first, last)
    facts = view.facts
    if first <= view.stored_seq and view.stored_index and part not in facts.dead:
        return Need(view.shard, dead=(part,), ended=(part,))
    return draft.still_live(BitMap64(range(low, high + 1)) - facts.dead.get(part, BitMap64()))


def _end(draft: Draft, seqs: BitMap64) -> None:
    """End rows that are lost, in flight or not."""
    view = draft.view
    held = BitMap64([seq for seq in view.holder if seq in seqs])
    for seq in held:
        lease = view.leases[view.holder.pop(seq)]
        groups.ended(draft, lease, (seq,))
        take_out(lease, (seq,))
        draft.put_lease(lease)
    view.returned -= held
    view.doomed -= held
    view.postponed -= held
    partitions.ended(draft, seqs, fresh=len(seqs) - len(held))
    draft.die(Death.DROPPED, seqs)
    expiry.note_gaps(draft, seqs)
