"""The rules of retention: how long a `log` keeps its rows, and for whom rows are held back.

Rule 1: retention ends the oldest rows, all up to a seq, never one in the middle.
Rule 2: it never goes past a retaining cursor, nor past a dead letter that is not yet where dead
letters go. Both are bounded: a cursor that holds back too much is dropped, and told so.
Rule 3: a pin shows what it showed, though the rows have expired; one that keeps too many bytes is
dropped, and answers that it expired.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace.core import state_counts
from millrace.core.commands import (
    Need,
)
from millrace.core.draft import Draft
from millrace.core.holder import Holder, Holders
from millrace.core.model import QueueSpec
from millrace.core.view import View
from millrace.errors import Invalid, Refused

CURSOR_RETAIN_BYTES = 256 * 1024**3
"""Default of a queue's `retain_max_bytes`: rows that its slowest retaining cursor holds back."""

PIN_BYTES = 256 * 1024**3
"""Default of a queue's `pin_max_bytes`: dead rows that a pin keeps."""

RETENTION_BYTES_MAX = 2**60
"""The largest `keep_bytes`, `retain_max_bytes` and `pin_max_bytes`."""

RETENTION_MESSAGES_MAX = 2**48
"""The largest `keep_messages`."""

KEEP_MS_MAX = 100 * 366 * 24 * 3600 * 1000
"""The longest `keep`."""

KEEP_STEPS = 64
"""Rows are looked for that are too old after each such part of `keep`, a minute at most: so much
longer they may stay."""

KEEP_CHECK_MS_MAX = 60_000
"""But not less often."""

TICK_EXPIRED_MAX = 1_000_000
"""Seqs that one batch ends by retention: counting those that were dead before reads their marks."""

PINS_WEIGHED_MS = 10_000
"""How often pins are weighed that may keep more than they should."""


def check_spec(spec: QueueSpec) -> Refused | None:
    """Whether the settings of retention fit together."""
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
    """Whether rows may have to go, or pins have to be weighed."""
    spec = view.spec
    if not (spec.keep_ms or spec.keep_messages or spec.keep_bytes or view.pins):
        return False
    return _target(view) > view.ended_to or _is_age_due(view, now) or bool(_heavy(view, now))


def check(draft: Draft) -> Need | None:
    """What must be known before anything goes."""
    view, facts = draft.view, draft.view.facts
    if facts.older is None and _is_age_due(view, draft.now):
        return Need(view.shard, older_ms=max(draft.now - view.spec.keep_ms, 0))
    unknown = tuple(pin for pin in _heavy(view, draft.now) if pin not in facts.held)
    return Need(view.shard, held=unknown) if unknown else None


def expire(draft: Draft) -> bool:
    """End the rows that are too old or too many; returns whether more of them are."""
    view = draft.view
    if _heavy(view, draft.now):
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
    """Up to which seq rows are too many."""
    upto = _wanted(view)
    return _allowed(view, upto) if upto > view.ended_to else 0


def _wanted(view: View) -> int:
    """As `_target`, if nobody held rows back."""
    spec, upto = view.spec, 0
    if spec.keep_messages:
        upto = view.last_seq - spec.keep_messages
    return max(upto, view.scale.before(spec.keep_bytes)) if spec.keep_bytes else upto


def _allowed(view: View, upto: int) -> int:
    """As far as nobody holds rows back."""
    if view.doomed:
        upto = min(upto, view.doomed.min() - 1)
    return min(upto, view.retain_floor()) if view.retaining else upto


def _is_age_due(view: View, now: int) -> bool:
    keep = view.spec.keep_ms
    step = min(max(keep // KEEP_STEPS, 1), KEEP_CHECK_MS_MAX)
    return bool(keep) and view.ended_to < view.last_seq and view.aged_ms + step <= now


def _leave_leases(draft: Draft, upto: int) -> None:
    """Whoever holds rows up to `upto` will find them gone."""
    view = draft.view
    found: dict[int, list[int]] = {}
    for seq, holder in view.holder.items():
        if seq <= upto:
            found.setdefault(holder, []).append(seq)
    for holder, seqs in sorted(found.items()):
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


# --- Who holds rows back -----------------------------------------------------------------------


def held_back(view: View, place: int) -> int:
    """Bytes of the rows that are there for a retaining cursor at `place` alone, at most."""
    upto = _end_of(view)
    if place >= upto:
        return 0
    return view.scale.upto(upto, view.last_seq) - view.scale.upto(place, view.last_seq)


def _end_of(view: View) -> int:
    """The last seq that a retaining cursor keeps; on a `work` queue others were not handed out."""
    return view.last_seq if view.spec.retention == "log" else view.pointers.next - 1


def weigh(view: View, pin: int) -> int | None:
    """About how many bytes of dead rows a pin keeps; None: the store must be asked."""
    held = view.facts.held.get(pin)
    if held is None:
        return None
    size = 0
    for part in held:
        scale, last = view.scale, view.last_seq
        total = scale.upto(part.high, last) - scale.upto(part.low - 1, last)
        size += total * part.rows // (part.high - part.low + 1)
    return size


def is_too_heavy(view: View, pin: int) -> bool:
    """Whether it is known that a pin keeps more bytes than it may."""
    return (weigh(view, pin) or 0) > _pin_max(view)


def _pin_max(view: View) -> int:
    return view.spec.pin_max_bytes or PIN_BYTES


def _heavy(view: View, now: int) -> list[int]:
    """Pins that may keep more bytes than one may, if it is time to weigh them."""
    scale, most = view.scale, _pin_max(view)
    if not view.pins or scale.total <= most or view.weighed_ms + PINS_WEIGHED_MS > now:
        return []
    return [
        number
        for number, pin in sorted(view.pins.items())
        if pin.index and scale.total - scale.upto(scale.pinned.get(number, 0), view.last_seq) > most
    ]


def _reader(view: View, number: int, readers: dict[int, str]) -> str:
    """Who reads the pin: the cursor that it was made for, or the first of those that share it."""
    name = view.pins[number].cursor
    cursor = view.cursors.get(name)
    return name if cursor is not None and cursor.pin == number else readers.get(number, name)


def list_holders(draft: Draft) -> Holders | Need:
    """Who keeps rows from going, and how many."""
    view, now = draft.view, draft.now
    counts = state_counts.count_states(draft)
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
        size = weigh(view, number) or 0
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
