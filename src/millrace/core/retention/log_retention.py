"""Retention of logs: expires the oldest rows, and tracks the holders that keep them.

Rule 1: retention ends the oldest rows, all up to a seq, never one in the middle.
Rule 2: it never goes past a retaining cursor, nor past a dead letter that is not yet moved. Both
are bounded: a cursor that holds back too much is dropped, and its next read is refused.
Rule 3: a pin stays readable though its rows have expired; one that keeps too many bytes is dropped,
and answers that it expired.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import Holder, Holders
from millrace.core.needs import Need
from millrace.core.ordering import deferred, group_gc, groups
from millrace.core.spec import QueueSpec
from millrace.core.state.deferred_cells import due_of, union
from millrace.core.state.draft import Draft
from millrace.core.state.view import View
from millrace.errors import Invalid, Refused

CURSOR_RETAIN_BYTES = 256 * 1024**3
"""Default of a queue's `retain_max_bytes`, the rows held back by its slowest retaining cursor."""

PIN_BYTES = 256 * 1024**3
"""Default of a queue's `pin_max_bytes`, the dead rows that a pin keeps."""

RETENTION_BYTES_MAX = 2**60
"""The largest `keep_bytes`, `retain_max_bytes` and `pin_max_bytes`."""

RETENTION_MESSAGES_MAX = 2**48
"""The largest `keep_messages`."""

KEEP_MS_MAX = 100 * 366 * 24 * 3600 * 1000
"""The longest `keep`."""

KEEP_STEPS = 64
"""Rows that are too old are searched after each such part of `keep`, at least every minute;
expiry may be late by that time."""

KEEP_CHECK_MS_MAX = 60_000
"""Upper bound of that interval."""

TICK_EXPIRED_MAX = 1_000_000
"""Seqs that one batch ends by retention: subtracting those that were dead before reads their
marks."""

PIN_CHECK_MS = 10_000
"""Interval at which pins that may keep too much are measured."""


def check_spec(spec: QueueSpec) -> Refused | None:
    """Check that the settings of retention fit together."""
    named = {
        "keep": spec.keep_ms,
        "keep_bytes": spec.keep_bytes,
        "keep_messages": spec.keep_messages,
    }
    for field, value in named.items():
        if value and spec.retention != "log":
            return Invalid(
                f"{field} says how long a log keeps its messages; make the queue with "
                "retention='log', or leave it out",
                field=field,
            )
        if value and spec.keyed and field != "keep":
            return Invalid(
                f"a keyed queue has one message per key, and {field} would end keys that nobody "
                "has replaced; bound it by age, with keep",
                field=field,
            )
    return None


def is_due(view: View, now: int) -> bool:
    """Return True if rows may have to expire, or pins have to be measured."""
    spec = view.spec
    if not (spec.keep_ms or spec.keep_messages or spec.keep_bytes or view.pins):
        return False
    return (
        _target(view) > view.ended_to or _is_age_due(view, now) or bool(_pins_to_measure(view, now))
    )


def check(draft: Draft) -> Need | None:
    """Return the Need of everything that `expire` has to know, or None."""
    view, facts = draft.view, draft.view.facts
    if facts.older is None and _is_age_due(view, draft.now):
        return Need(view.shard, older_ms=max(draft.now - view.spec.keep_ms, 0))
    unknown = tuple(pin for pin in _pins_to_measure(view, draft.now) if pin not in facts.held)
    return Need(view.shard, held=unknown) if unknown else None


def expire(draft: Draft) -> bool:
    """End rows that are too old or too many; returns True if there are more of them."""
    view = draft.view
    if _pins_to_measure(view, draft.now):
        view.weighed_ms = draft.now
    target = _target(view)
    if _is_age_due(view, draft.now):
        view.aged_ms = draft.now
        target = max(target, _allowed(view, (view.facts.older or 1) - 1))
    if target <= view.ended_to:
        return False
    upto = min(target, view.ended_to + TICK_EXPIRED_MAX)
    _leave_leases(draft, upto)
    draft.changes.expired = upto
    draft.end_to(upto)
    pointers = view.pointers
    draft.put_pointers(
        msgspec.structs.replace(
            pointers, next=max(pointers.next, upto + 1), floor=max(pointers.floor, upto)
        )
    )
    return upto < target


def _target(view: View) -> int:
    """Return the seq up to which rows exceed the limits of number and bytes."""
    upto = _wanted(view)
    return _allowed(view, upto) if upto > view.ended_to else 0


def _wanted(view: View) -> int:
    """Return the same seq as `_target`, as if nobody held rows back."""
    spec, upto = view.spec, 0
    if spec.keep_messages:
        upto = view.last_seq - spec.keep_messages
    return max(upto, view.scale.before(spec.keep_bytes)) if spec.keep_bytes else upto


def _allowed(view: View, upto: int) -> int:
    """Return the seq up to which nobody holds rows back."""
    if view.doomed:
        upto = min(upto, view.doomed.min() - 1)
    return min(upto, view.retain_floor()) if view.retaining else upto


def _is_age_due(view: View, now: int) -> bool:
    keep = view.spec.keep_ms
    step = min(max(keep // KEEP_STEPS, 1), KEEP_CHECK_MS_MAX)
    return bool(keep) and view.ended_to < view.last_seq and view.aged_ms + step <= now


def _leave_leases(draft: Draft, upto: int) -> None:
    """Remove rows up to `upto` from their leases; late receipts of them are refused."""
    view = draft.view
    by_lease: dict[int, list[int]] = {}
    for seq, holder in view.holder.items():
        if seq <= upto:
            by_lease.setdefault(holder, []).append(seq)
    for holder, seqs in sorted(by_lease.items()):
        lease = view.leases[holder]
        gone = BitMap64(seqs)
        lease.open -= gone
        lease.freed -= gone
        for seq in seqs:
            del view.holder[seq]
            lease.forget_counts(seq)
            lease.deadlines.pop(seq, None)
        view.returned -= gone
        view.postponed -= gone
        draft.put_lease(lease)


# --- Holders of rows ---------------------------------------------------------------------------


def held_back(view: View, place: int) -> int:
    """Return an upper bound of the bytes that only a retaining cursor at `place` keeps."""
    upto = _end_of(view)
    if place >= upto:
        return 0
    return view.scale.upto(upto, view.last_seq) - view.scale.upto(place, view.last_seq)


def _end_of(view: View) -> int:
    """Return the last seq that a retaining cursor keeps; on a `work` queue later ones were not
    delivered."""
    return view.last_seq if view.spec.retention == "log" else view.pointers.next - 1


def pin_bytes(view: View, pin: int) -> int | None:
    """Return the approximate bytes of dead rows that a pin keeps; None: the store must be read."""
    held = view.facts.held.get(pin)
    if held is None:
        return None
    size = 0
    for part in held:
        scale, last = view.scale, view.last_seq
        total = scale.upto(part.high, last) - scale.upto(part.low - 1, last)
        size += total * part.rows // (part.high - part.low + 1)
    return size


def is_pin_too_large(view: View, pin: int) -> bool:
    """Return True if a pin is known to keep more bytes than it may."""
    return (pin_bytes(view, pin) or 0) > _pin_max(view)


def _pin_max(view: View) -> int:
    return view.spec.pin_max_bytes or PIN_BYTES


def _pins_to_measure(view: View, now: int) -> list[int]:
    """Return pins that may keep too many bytes, if it is time to measure them."""
    scale, limit = view.scale, _pin_max(view)
    if not view.pins or scale.total <= limit or view.weighed_ms + PIN_CHECK_MS > now:
        return []
    return [
        number
        for number, pin in sorted(view.pins.items())
        if pin.index
        and scale.total - scale.upto(scale.pinned.get(number, 0), view.last_seq) > limit
    ]


def _reader(view: View, number: int, readers: dict[int, str]) -> str:
    """Return the reader of a pin: the cursor that it was made for, or the first that shares it."""
    name = view.pins[number].cursor
    cursor = view.cursors.get(name)
    return name if cursor is not None and cursor.pin == number else readers.get(number, name)


def list_holders(draft: Draft) -> Holders | Need:
    """Return the holders that keep rows, with the number of rows of each."""
    view, now = draft.view, draft.now
    counts = count_states(draft)
    if isinstance(counts, Need):
        return counts
    unknown = tuple(pin for pin in sorted(view.pins) if pin not in view.facts.held)
    if unknown:
        return Need(view.shard, held=unknown)
    held: list[Holder] = []
    readers: dict[int, str] = {}
    for name, cursor in sorted(view.cursors.items()):
        readers.setdefault(cursor.pin, name)
    for number, pin in sorted(view.pins.items()):
        rows = sum(part.rows for part in view.facts.held[number])
        age = now - pin.made_ms
        size = pin_bytes(view, number) or 0
        held.append(
            Holder("pin", _reader(view, number, readers), pin.boundary, rows, size, age, number)
        )
    for name, cursor in sorted(view.cursors.items()):
        if cursor.retain:
            place, is_dropped = view.place_of(cursor), cursor.dropped
            rows = 0 if is_dropped else max(_end_of(view) - place, 0)
            size = 0 if is_dropped else held_back(view, place)
            age = now - cursor.moved_ms
            held.append(Holder("cursor", name, place, rows, size, age, 0, is_dropped))
    if view.doomed:
        first, count = view.doomed.min(), len(view.doomed)
        held.append(Holder("dead letters", "", first, count, 0, 0))
    wanted = max(_wanted(view), view.ended_to) + 1
    held_by_workers = counts.leased + counts.postponed
    return Holders(
        view.ended_to + 1, wanted, tuple(held), counts.leased, held_by_workers, counts.delayed
    )


# --- Counts of messages by state, named as `explain` names the state of a message ---
# Rule: no count walks over messages or leases. Each is the size of a set that the view keeps
# anyway, so that metrics may be scraped from a queue with a million messages in flight. Only
# undelivered messages with a delay are counted in their cells, of which the view has a bounded
# window.


class StateCounts(NamedTuple):
    """Number of messages in each state."""

    leased: int
    """In flight, with a running lease."""
    postponed: int
    """Released with a delay that has not expired: `explain` says "delayed"."""
    delayed: int
    """Undelivered messages whose delay has not expired; of very many, the first ones only."""


def count_states(draft: Draft) -> StateCounts | Need:
    """Count the messages of the queue by state.

    Expired leases are processed first, as the next lease call would do: each is visited once,
    however often the counts are requested.
    """
    delayed = _count_delayed(draft)
    if isinstance(delayed, Need):
        return delayed
    view = draft.view
    groups.return_due(draft)
    postponed = len(view.postponed)
    leased = len(view.holder) - len(view.returned) - len(view.doomed) - postponed
    return StateCounts(leased, postponed, delayed)


def _count_delayed(draft: Draft) -> int | Need:
    view = draft.view
    if not view.pointers.aside:
        return 0
    need = deferred.need_due(view)
    if need is not None:
        return need
    seqs = union([cell for key, cell in view.due if due_of(key) > draft.now])
    if not seqs or not deferred.may_have_died(view):
        return len(seqs)
    # The cell of a message that was replaced or has expired stays until its turn.
    seqs = draft.still_live(seqs) - view.doomed
    ranges = list(islice(group_gc.ended_ranges(view, seqs), limits.THIN_RANGES_MAX))
    unknown = tuple(part for part in ranges if part not in view.facts.ended)
    if unknown:
        return Need(view.shard, ended=unknown)
    for part in ranges:
        seqs -= view.facts.ended[part]
    return len(seqs)
