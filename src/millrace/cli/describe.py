"""Cells and rows in words; `describe_entries` has what the log holds.

Everything is said twice: as fields for JSON, complete but for bodies, and as a line of text. What
authenticates receipts is said in neither.
"""

from __future__ import annotations

from typing import assert_never

from millrace import limits
from millrace.cli.describe_partitions import partition_fields, spec_fields
from millrace.cli.show import (
    Fields,
    Value,
    escaped,
    ranges,
    ranges_text,
    shortened,
    shown_bytes,
    time_text,
)
from millrace.core.codec import decode_cell
from millrace.core.group_cells import GroupCell, RingCell, TurnCell
from millrace.core.idcells import AttemptCell, DedupCell, ExpiryCell, expiry_of
from millrace.core.model import (
    NEVER_MS,
    AsideCell,
    CatalogCell,
    Cell,
    CursorCell,
    DeletesCell,
    Doom,
    Kind,
    LeaseCell,
    PinCell,
    Pointers,
    ProducerCell,
    QueueCell,
    QueueSpec,
    Row,
    SessionCell,
    TakeoverCell,
    WeightCell,
)
from millrace.core.partition_cells import IdCell, PartitionCell, SlicesCell
from millrace.core.quarantine_commands import QuarantineCell
from millrace.core.seqs import unpack_seqs
from millrace.core.stage_cells import RunsCell, StageCell
from millrace.core.topic_cells import AwaitedCell, SubscriptionCell, TopicCell
from millrace.core.waiting import due_of, ready_since, seqs_in
from millrace.errors import Corrupt

NUMBERED = frozenset(
    {
        Kind.LEASE,
        Kind.SESSION,
        Kind.PIN,
        Kind.DELETES,
        Kind.TAKEOVER,
        Kind.SUBSCRIPTION,
        Kind.WEIGHT,
        Kind.QUARANTINE,
        Kind.SLICES,
    }
)
"""Kinds of cells whose keys are numbers."""

# --- Cells ---------------------------------------------------------------------------------------


def kind_name(kind: int) -> str:
    """A cell's kind as users name it."""
    try:
        return Kind(kind).name.lower()
    except ValueError:
        return f"kind-{kind}"


def cell_key(kind: int, key: bytes) -> str:
    """A cell's key: a number, a name, or nothing where there is one of a kind."""
    if kind in NUMBERED and len(key) == 8:
        return str(int.from_bytes(key, "big"))
    if kind == Kind.DUE and len(key) == 24:
        return f"{time_text(due_of(key))} by {int.from_bytes(key[-8:], 'big')}"
    if kind == Kind.READY and len(key) == 25:
        since = time_text(ready_since(key))
        return f"{limits.PRIORITY_MAX - key[8]} since {since} by {int.from_bytes(key[-8:], 'big')}"
    if kind == Kind.EXPIRY and len(key) == 20:
        return f"{time_text(expiry_of(key))} by batch {int.from_bytes(key[8:16], 'big')}"
    if kind in (Kind.RING, Kind.ID) and len(key) == 16:
        return str(int.from_bytes(key[8:], "big"))
    if kind == Kind.BUCKET and len(key) == 24:
        return f"{time_text(due_of(key))} of {key[16:].hex()}"
    if kind in (Kind.TURN, Kind.GROUP):
        part = int.from_bytes(key[16:], "big")
        return key[8:16].hex() + (f" part {part}" if kind == Kind.GROUP else "")
    if kind == Kind.DEDUP:
        return key.hex()
    if kind == Kind.AWAITED and len(key) > 17:
        topic, number = (int.from_bytes(part, "big") for part in (key[-16:-8], key[-8:]))
        return f"{escaped(key[:-17])} by {number} of {topic}"
    if kind in (Kind.QUEUE, Kind.TOPIC):
        return escaped(key.replace(b"\0", b"/"))
    return escaped(key)


def cell_fields(kind: int, key: bytes, value: bytes) -> Fields:
    """What a cell says.

    Raises:
        Corrupt: it does not decode.
    """
    if kind not in Kind.__members__.values():
        raise Corrupt(f"a cell has the unknown kind {kind}")
    return _fields(key, decode_cell(Kind(kind), value))


def _fields(key: bytes, cell: Cell) -> Fields:
    match cell:
        case QueueSpec():
            return {
                "keyed": cell.keyed,
                "retention": cell.retention,
                "keep_deletes_ms": cell.keep_deletes_ms,
                "retry_min_ms": cell.retry_min_ms,
                "retry_max_ms": cell.retry_max_ms,
                "max_failures": cell.max_failures,
                "max_deliveries": cell.max_deliveries,
                "dead_letter": cell.dead_letter,
                "delay_ms": cell.delay_ms,
                "dedup_ms": cell.dedup_ms,
                "dedup_by_body": cell.dedup_by_body,
                "ttl_ms": cell.ttl_ms,
                "dead_letter_expired": cell.dead_letter_expired,
                "keep_ms": cell.keep_ms,
                "keep_bytes": cell.keep_bytes,
                "keep_messages": cell.keep_messages,
                "retain_max_ms": cell.retain_max_ms,
                "retain_max_bytes": cell.retain_max_bytes,
                "pin_max_bytes": cell.pin_max_bytes,
                "compressed": cell.compressed,
                "order": cell.order,
                "group_in_flight": cell.group_in_flight,
                "rate_us": cell.rate_us,
                "rate_burst": cell.rate_burst,
                "group_rate_us": cell.group_rate_us,
                "group_burst": cell.group_burst,
                **spec_fields(cell),
            }
        case Pointers():
            return {
                "next": cell.next,
                "lease": cell.lease,
                "pin": cell.pin,
                "cursor": cell.cursor,
                "floor": cell.floor,
                "aside": cell.aside,
                "era": cell.era,
                "turn": cell.turn,
                "paid_us": cell.paid_us,
                "front": cell.front,
            }
        case LeaseCell():
            return _lease_fields(cell)
        case ProducerCell():
            return {
                "mode": cell.mode,
                "last": cell.last,
                "time_ms": cell.time_ms,
                "recent": [list(answer) for answer in cell.recent],
            }
        case CursorCell():
            position = cell.position
            return {
                "id": cell.id,
                "retain": cell.retain,
                "history": position.history.hex(),
                "seq": position.seq,
                "snapshot_start": position.snapshot_start,
                "snapshot_end": position.snapshot_end,
                "moved_ms": cell.moved_ms,
                "pin": cell.pin,
                "dropped": cell.dropped,
                "vector": cell.vector,
                "torn": cell.torn,
            }
        case PinCell():
            return {
                "index": cell.index,
                "boundary": cell.boundary,
                "floor": cell.floor,
                "deadline_ms": cell.deadline_ms,
                "cursor": cell.cursor,
                "retain": cell.retain,
                "made_ms": cell.made_ms,
            }
        case SessionCell():
            return {
                "name": cell.name,
                "index": cell.index,
                "claim": cell.claim,
                "epoch": cell.epoch,
                "credit": cell.credit,
                "refill": cell.refill,
                "next": cell.next,
                "lease_ms": cell.lease_ms,
                "suspect_ms": cell.suspect_ms,
                "suspected_ms": cell.suspected_ms,
                "cancelled": cell.cancelled,
            }
        case StageCell():
            return {
                "rows": cell.rows,
                "bytes": cell.bytes,
                "time_ms": cell.time_ms,
                "runs": cell.runs,
                "calls": cell.calls,
            }
        case RunsCell():
            return {
                "aside": [list(run) for run in cell.aside],
                "lives": [list(life) for life in cell.lives],
            }
        case AwaitedCell():
            return {"topic": cell.topic, "number": cell.number}
        case QuarantineCell():
            return {
                "since_ms": cell.since_ms,
                "reason": cell.reason,
                "last": cell.last,
                "shard": cell.shard,
            }
        case DeletesCell():
            return {"seqs": ranges(unpack_seqs(cell.seqs))}
        case AsideCell():
            return {
                "seqs": ranges(seqs_in(key, cell)),
                "priority": cell.priority,
                "groups": [f"{group:016x}" for group in cell.groups],
            }
        case TurnCell():
            return {
                "seqs": list(cell.seqs),
                "head": cell.head,
                "tail": cell.tail,
                "paid_us": cell.paid_us,
                "due_ms": cell.due_ms,
            }
        case GroupCell():
            return {"seqs": list(cell.seqs)}
        case RingCell():
            names = [None if group is None else f"{group:016x}" for group in cell.groups]
            return {"groups": names}
        case DedupCell():
            return {"seq": cell.seq, "until_ms": cell.until_ms}
        case PartitionCell() | SlicesCell() | IdCell():
            return partition_fields(cell)
        case AttemptCell():
            return {
                "lease": cell.lease,
                "deadline_ms": cell.deadline_ms,
                "time_ms": cell.time_ms,
                "turns": [ranges(unpack_seqs(seqs)) for seqs in cell.turns],
            }
        case ExpiryCell():
            seqs = ranges(unpack_seqs(cell.seqs))
            return {"ids": [name.hex() for name in cell.ids], "seqs": seqs}
        case WeightCell():
            return {"after": cell.after, "before_bytes": cell.before, "upto_bytes": cell.upto}
        case TakeoverCell():
            return {"history": cell.history.hex(), "index": cell.index, "seq": cell.seq}
        case QueueCell():
            route = {"route": cell.route} if len(cell.shards) > 1 else {}
            return {
                "shards": list(cell.shards),
                **route,
                "ids": f"{cell.ids:x}" if cell.ids else "",
            }
        case TopicCell():
            return {"shard": cell.shard, "max_lag": cell.max_lag, "notes": dict(cell.notes)}
        case SubscriptionCell():
            return {
                "name": cell.name,
                "queue": cell.queue,
                "target": cell.target,
                "filter": cell.filter,
                "history": cell.history.hex(),
                "since": cell.since,
                "passed": cell.passed,
                "forwarded": cell.forwarded,
                "filtered": cell.filtered,
                "moved_ms": cell.moved_ms,
                "notes": dict(cell.notes),
                "durable": cell.durable,
                "dead_letter": cell.dead_letter,
                "dead_lettered": cell.dead_lettered,
                "dropped": cell.dropped,
                "queue_notes": dict(cell.queue_notes),
            }
        case CatalogCell():
            # Whoever has the secret can forge receipts.
            return {"shard": cell.shard, "secret_bytes": len(cell.secret)}
        case _:
            assert_never(cell)


_SETS = frozenset(
    {
        "open",
        "freed",
        "settled",
        "overtaken",
        "superseded",
        "buried",
        "discarded",
        "handed",
        "seqs",
    }
)
"""Fields that are sets of seqs."""


def _lease_fields(cell: LeaseCell) -> Fields:
    sets = {
        "open": cell.open,
        "freed": cell.freed,
        "settled": cell.settled,
        "overtaken": cell.overtaken,
        "superseded": cell.superseded,
        "buried": cell.buried,
        "discarded": cell.discarded,
        "handed": cell.handed,
    }
    return {
        "index": cell.index,
        "session": cell.session,
        "first": cell.first,
        "order": list(cell.order),
        "deadline_ms": cell.deadline_ms if cell.deadline_ms < NEVER_MS else None,
        "ended_ms": cell.ended_ms,
        **{name: ranges(unpack_seqs(packed)) for name, packed in sets.items()},
        "counts": {str(seq): list(pair) for seq, pair in cell.counts.items()},
        "deadlines_ms": {str(seq): deadline for seq, deadline in cell.deadlines.items()},
        "groups": {str(seq): f"{group:016x}" for seq, group in cell.groups.items()},
        "doomed": {str(seq): Doom(why).name.lower() for seq, why in cell.doomed.items()},
    }


def cell_text(fields: Fields) -> str:
    """A cell's fields on one line; what is empty, zero, false or none is left out."""
    return "  ".join(
        f"{name.removesuffix('_ms')} {_value_text(name, value)}"
        for name, value in fields.items()
        if value not in (0, "", "none", [], {}, None)
    )


def _value_text(name: str, value: Value) -> str:
    if name in (
        "keep_deletes_ms",
        "retry_min_ms",
        "retry_max_ms",
        "delay_ms",
        "dedup_ms",
        "ttl_ms",
        "lease_ms",
        "suspect_ms",
    ):
        return f"{value} ms"
    if name.endswith("_ms") and isinstance(value, int):
        return time_text(value)
    if name in _SETS:
        pairs: list[tuple[int, int]] = value  # type: ignore[assignment]
        return ranges_text(pairs)
    if name == "history" and isinstance(value, str):
        return short_history(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escaped(str(value))


def short_history(history: bytes | str) -> str:
    """Enough of a history's id to tell it from others."""
    text = history.hex() if isinstance(history, bytes) else history
    return f"{text[:8]}…" if text else "-"


# --- Rows ----------------------------------------------------------------------------------------


def row_fields(row: Row) -> Fields:
    """A row; its body, key and headers shortened."""
    return {
        "seq": row.seq,
        "time_ms": row.time_ms,
        "key": shown_bytes(row.key),
        "headers": [[escaped(name), shown_bytes(value)] for name, value in row.headers],
        "body": shown_bytes(row.body),
    }


def row_text(row: Row) -> str:
    """A row's key, headers and body on one line."""
    parts = [f"key {shortened(row.key)}"] if row.key is not None else []
    parts += [f"{escaped(name)}={shortened(value)}" for name, value in row.headers]
    parts.append(shortened(row.body) if row.body is not None else "delete")
    return "  ".join(parts)
