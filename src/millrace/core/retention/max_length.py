"""Maximum length of a queue, in messages and bytes: refuses publishes, or drops the oldest
messages.

Rule 1: live messages count, those in flight and delayed ones too: the store's count as of its last
folded batch, corrected by later decisions.
Rule 2: the size of single rows is not known. All count as large as the recently published ones on
average (`row_sizes.py`).
Rule 3: dropped messages were never delivered. They end in the batch of the publish that they make
room for, the oldest first.
"""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap64

from millrace import limits
from millrace.core import bounds
from millrace.core.format.block import Block
from millrace.core.model import DeadLetterReason, Death, NewMessage
from millrace.core.needs import Need
from millrace.core.retention import expiry
from millrace.core.spec import QueueSpec
from millrace.core.state.draft import Draft
from millrace.core.state.view import View
from millrace.errors import Full, Invalid, Refused, Retry, TooLarge


class AddedRows(NamedTuple):
    """Rows that a publish adds to a queue, and rows that it ends."""

    rows: int
    size: int
    """Bytes of body, key and headers."""
    ends: BitMap64
    """Rows that end with it: replaced, or settled in the same transaction."""

    def plus(self, other: AddedRows) -> AddedRows:
        """Return the sum of both."""
        return AddedRows(self.rows + other.rows, self.size + other.size, self.ends | other.ends)


def check_spec(spec: QueueSpec) -> Refused | None:
    """Check that the settings fit together."""
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


def size_of(rows: Block | tuple[NewMessage, ...]) -> int:
    """Return the bytes of body, key and headers, or the size of a block."""
    if isinstance(rows, Block):
        return rows.size()
    return sum(
        len(row.body or b"")
        + len(row.key or b"")
        + sum(len(name) + len(value) for name, value in row.headers)
        for row in rows
    )


def check(
    draft: Draft, added: AddedRows, *, may_drop: bool = True
) -> Refused | Retry | Need | None:
    """Check that there is room, or (`may_drop`) that the queue can make some by dropping
    messages."""
    view, spec = draft.view, draft.view.spec
    if not spec.is_bounded:
        return None
    net = added.rows - len(added.ends)
    for field, limit, wanted in (
        ("max_messages", spec.max_messages, net),
        ("max_bytes", spec.max_bytes, added.size),
    ):
        if limit and wanted > limit:
            return TooLarge(
                f"the queue takes {limit} {field.removeprefix('max_')} at most, and {wanted} were "
                "published at once; publish fewer",
                field=field,
                limit=limit,
            )
    if view.facts.live is None and view.stored_index:
        return Need(view.shard, live=True)
    excess, field = _excess(draft, added)
    if excess <= 0:
        return None
    if spec.overflow == "refuse" or not may_drop:
        return _full(view, field)
    wanted = _step(excess, added.rows)
    if spec.dead_letter and len(view.doomed) >= bounds.DEAD_LETTERS_WAITING_MAX:
        return Full(
            f"{len(view.doomed)} messages wait to be moved to {spec.dead_letter}; make room there",
            field="dead_letter",
            limit=bounds.DEAD_LETTERS_WAITING_MAX,
        )
    oldest, need = _oldest(draft, wanted, view.last_seq, added.ends)
    if need is not None:
        return need
    return None if len(oldest) >= wanted else _full(view, field)


def make_room(draft: Draft, first: int, size: int) -> None:
    """Drop the oldest messages beyond the maximum after rows from `first` on, of `size` bytes.

    `check` has found that there are enough of them.
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
        expiry.dead_letter_undelivered(draft, dropped, DeadLetterReason.LENGTH)
    else:
        draft.die(Death.DROPPED, dropped)
    expiry.note_gaps(draft, dropped)


def _full(view: View, field: str) -> Full:
    spec = view.spec
    limit = spec.max_messages if field == "max_messages" else spec.max_bytes
    last = ", and what is settled goes when its retaining cursors have read it"
    return Full(
        f"the queue holds its {limit} {field.removeprefix('max_')}; settling makes room"
        + (last if view.retaining else ""),
        field=field,
        limit=limit,
    )


def _step(excess: int, rows: int) -> int:
    """Return how many to drop at once: a maximum that was lowered is reached step by step."""
    return min(excess, max(bounds.DROP_STEP, 2 * rows))


def _count(draft: Draft) -> int:
    """Return the number of messages, all decisions included."""
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
    # Dropped messages move to the dead-letter queue.
    return live - (len(view.doomed) if view.spec.overflow == "drop" else 0)


def _excess(draft: Draft, added: AddedRows | None) -> tuple[int, str]:
    """Return how many messages are too many after the publish `added`, and the field of that
    limit."""
    view, spec = draft.view, draft.view.spec
    count = _count(draft)
    rows, size, ended = (added.rows, added.size, len(added.ends)) if added else (0, 0, 0)
    by_count = by_bytes = 0
    if spec.max_messages and (added is None or rows > ended):
        by_count = count + rows - ended - spec.max_messages
    mean = view.scale.mean(view.last_seq, draft.taken_bytes)
    grown = size - ended * mean
    if spec.max_bytes and (added is None or grown > 0):
        by_bytes = -(-(count * mean + grown - spec.max_bytes) // max(mean, 1))
    return max((by_count, "max_messages"), (by_bytes, "max_bytes"))


def _oldest(draft: Draft, count: int, upto: int, without: BitMap64) -> tuple[BitMap64, Need | None]:
    """Return the oldest waiting messages that were never delivered, or the Need of more of them."""
    view = draft.view
    if not view.pointers.aside:
        # No message is deferred: all earlier ones were delivered, or have ended.
        view.drop_from = max(view.drop_from, view.pointers.next)
    low = max(view.pointers.era + 1, view.ended_to + 1, view.drop_from)
    barred = view.deletes.seqs | draft.kept() | BitMap64(view.holder)
    out = BitMap64()
    while low <= upto and len(out) < count:
        high = min(low + limits.CHUNK_ROWS - 1, upto)
        seqs = BitMap64(range(low, high + 1)) - barred
        if low <= view.stored_seq and view.stored_index:
            part = (low, min(low + limits.CHUNK_ROWS - 1, view.stored_seq))
            if part not in view.facts.ended:
                return out, Need(view.shard, ended=(part,))
            seqs -= view.facts.ended[part]
        seqs = draft.still_live(seqs)
        if not seqs and high < upto:
            view.drop_from = high + 1
        for seq in seqs - without:
            if len(out) == count:
                break
            out.add(seq)
        low = high + 1
    return out, None
