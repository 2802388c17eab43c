"""The rules of maxima: how much a queue holds, and what is done with what does not fit.

Rule 1: what counts is what is live, in flight and delayed ones too: the store's count as of the
last batch that it folded, and what was decided since.
Rule 2: bytes are not known row by row. They count as if all were as large as those that were
published lately are on average (`weight.py`).
Rule 3: what is dropped was never handed out. It ends in the batch of the publish that it makes room
for, the oldest first.
"""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap64

from millrace import limits
from millrace.core import bounds, expiry
from millrace.core.block import Block
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.model import Death, Doom, Message, QueueSpec
from millrace.core.view import View
from millrace.errors import Full, Invalid, Refused, Retry, TooLarge


class Asked(NamedTuple):
    """What a publish would add to a queue."""

    rows: int
    size: int
    """Bytes of body, key and headers."""
    ends: BitMap64
    """Those that end with it: replaced, or settled in the same transaction."""

    def plus(self, other: Asked) -> Asked:
        """Both."""
        return Asked(self.rows + other.rows, self.size + other.size, self.ends | other.ends)


def check_spec(spec: QueueSpec) -> Refused | None:
    """Whether the settings fit together."""
    if spec.is_bounded and spec.retention == "log":
        field = "max_messages" if spec.max_messages else "max_bytes"
        return Invalid(
            f"a queue with retention 'log' ends its oldest messages by keep_messages and "
            f"keep_bytes; leave {field} out",
            field=field,
        )
    if spec.overflow == "drop" and (spec.is_grouped or spec.is_partitioned):
        which = f"order {spec.order!r}" if spec.is_grouped else "delivery 'partitions'"
        return Invalid(
            f"{which} drops nothing to make room; take overflow='refuse'",
            field="overflow",
        )
    return None


def size_of(rows: Block | tuple[Message, ...]) -> int:
    """Bytes of body, key and headers, or what a block of them has."""
    if isinstance(rows, Block):
        return rows.size()
    return sum(
        len(row.body or b"")
        + len(row.key or b"")
        + sum(len(name) + len(value) for name, value in row.headers)
        for row in rows
    )


def check(draft: Draft, asked: Asked, *, may_drop: bool = True) -> Refused | Retry | Need | None:
    """Whether there is room for it, or (`may_drop`) can be made where the queue drops."""
    view, spec = draft.view, draft.view.spec
    if not spec.is_bounded:
        return None
    net = asked.rows - len(asked.ends)
    for field, most, wanted in (
        ("max_messages", spec.max_messages, net),
        ("max_bytes", spec.max_bytes, asked.size),
    ):
        if most and wanted > most:
            return TooLarge(
                f"the queue takes {most} {field.removeprefix('max_')} at most, and {wanted} were "
                "published at once; publish fewer",
                field=field,
                limit=most,
            )
    if view.facts.live is None and view.stored_index:
        return Need(view.shard, live=True)
    excess, field = _excess(draft, asked)
    if excess <= 0:
        return None
    if spec.overflow == "refuse" or not may_drop:
        return _full(view, field)
    wanted = _step(excess, asked.rows)
    if spec.dead_letter and len(view.doomed) >= bounds.DOOMED_MAX:
        return Full(
            f"{len(view.doomed)} messages wait to be moved to {spec.dead_letter}; make room there",
            field="dead_letter",
            limit=bounds.DOOMED_MAX,
        )
    found, need = _oldest(draft, wanted, view.last_seq, asked.ends)
    if need is not None:
        return need
    return None if len(found) >= wanted else _full(view, field)


def make_room(draft: Draft, first: int, size: int) -> None:
    """Rows from `first` on, of so many bytes, were published: drop the oldest beyond the maximum.

    It was checked that there are enough of them.
    """
    view, spec = draft.view, draft.view.spec
    if not spec.is_bounded:
        return
    draft.taken_bytes += size
    if spec.overflow != "drop" or (view.facts.live is None and view.stored_index):
        return
    excess, _ = _excess(draft, None)
    if excess <= 0:
        return
    wanted = _step(excess, view.last_seq - first + 1)
    dropped, _ = _oldest(draft, wanted, first - 1, BitMap64())
    if not dropped:
        return
    if spec.dead_letter:
        expiry.doom_unseen(draft, dropped, Doom.LENGTH)
    else:
        draft.die(Death.DROPPED, dropped)
    expiry.note_gaps(draft, dropped)


def _full(view: View, field: str) -> Full:
    spec = view.spec
    most = spec.max_messages if field == "max_messages" else spec.max_bytes
    last = ", and what is settled goes when its retaining cursors have read it"
    return Full(
        f"the queue holds its {most} {field.removeprefix('max_')}; settling makes room"
        + (last if view.retaining else ""),
        field=field,
        limit=most,
    )


def _step(excess: int, rows: int) -> int:
    """So many are dropped at once: a maximum that was lowered is reached step by step."""
    return min(excess, max(bounds.DROP_STEP, 2 * rows))


def _count(draft: Draft) -> int:
    """How many messages are there, as was decided so far."""
    view = draft.view
    died = draft.died()
    purged = draft.ended_to
    for layer in view.layers:
        died |= layer.died
        purged = max(purged, layer.purged)
    if purged:
        died.remove_range(0, purged + 1)
        live = view.last_seq - purged - len(died)
    else:
        live = (view.facts.live or 0) + view.last_seq - view.stored_seq - len(died)
    # What was dropped is on its way to another queue.
    return live - (len(view.doomed) if view.spec.overflow == "drop" else 0)


def _excess(draft: Draft, asked: Asked | None) -> tuple[int, str]:
    """How many messages are too many, with what is asked or (None) as it is; and by what field."""
    view, spec = draft.view, draft.view.spec
    count = _count(draft)
    rows, size, ended = (asked.rows, asked.size, len(asked.ends)) if asked else (0, 0, 0)
    by_count = by_bytes = 0
    if spec.max_messages and (asked is None or rows > ended):
        by_count = count + rows - ended - spec.max_messages
    mean = view.scale.mean(view.last_seq, draft.taken_bytes)
    grown = size - ended * mean
    if spec.max_bytes and (asked is None or grown > 0):
        by_bytes = -(-(count * mean + grown - spec.max_bytes) // max(mean, 1))
    return max((by_count, "max_messages"), (by_bytes, "max_bytes"))


def _oldest(draft: Draft, count: int, upto: int, without: BitMap64) -> tuple[BitMap64, Need | None]:
    """The oldest messages that wait and were never handed out, and what must be asked for more."""
    view = draft.view
    if not view.pointers.aside:
        # Nothing waits apart: all before were handed out, or have ended.
        view.drop_from = max(view.drop_from, view.pointers.next)
    low = max(view.pointers.era + 1, view.ended_to + 1, view.drop_from)
    barred = view.deletes.seqs | draft.kept() | BitMap64(view.holder)
    out = BitMap64()
    while low <= upto and len(out) < count:
        high = min(low + limits.CHUNK_ROWS - 1, upto)
        found = BitMap64(range(low, high + 1)) - barred
        if low <= view.stored_seq and view.stored_index:
            part = (low, min(low + limits.CHUNK_ROWS - 1, view.stored_seq))
            if part not in view.facts.ended:
                return out, Need(view.shard, ended=(part,))
            found -= view.facts.ended[part]
        found = draft.still_live(found)
        if not found and high < upto:
            view.drop_from = high + 1
        for seq in found - without:
            if len(out) == count:
                break
            out.add(seq)
        low = high + 1
    return out, None
