"""Describes cells, rows and log entries, as JSON fields and as text.

The fields are complete except for bodies, which are shortened. The secret that authenticates
receipts is in neither form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from pyroaring import BitMap64

from millrace import limits
from millrace.cli.formatting import (
    Fields,
    Value,
    escaped,
    ranges,
    ranges_text,
    shortened,
    shown_bytes,
    size_text,
    time_text,
)
from millrace.core.cells import (
    AttemptCell,
    AwaitedCell,
    CatalogCell,
    Cell,
    CursorCell,
    DedupCell,
    DeferredCell,
    DeletesCell,
    ExpiryCell,
    GroupCell,
    IdCell,
    Kind,
    LeaseCell,
    PartitionCell,
    PinCell,
    Pointers,
    ProducerCell,
    QuarantineCell,
    QueueCell,
    RingCell,
    RowSizesCell,
    RunsCell,
    SessionCell,
    SlicesCell,
    StageCell,
    SubscriptionCell,
    TakeoverCell,
    TopicCell,
    TurnCell,
    expiry_of,
)
from millrace.core.changes import Batch, Entry, EntryKind
from millrace.core.format.block import Block
from millrace.core.format.codec import decode_cell
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.model import (
    NEVER_MS,
    DeadLetterReason,
    Death,
    Row,
)
from millrace.core.spec import QueueSpec
from millrace.core.state.deferred_cells import due_of, ready_since, seqs_in
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
"""Kinds of cells with numeric keys."""

# --- Cells ---------------------------------------------------------------------------------------


def kind_name(kind: int) -> str:
    """Return the name of a cell's kind."""
    try:
        return Kind(kind).name.lower()
    except ValueError:
        return f"kind-{kind}"


def cell_key(kind: int, key: bytes) -> str:
    """Return a cell's key as text: a number or a name; empty for kinds with a single cell."""
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
    """Return the fields of a cell.

    Raises:
        Corrupt: the cell does not decode.
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
        case DeferredCell():
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
        case RowSizesCell():
            return {"after": cell.after, "before_bytes": cell.before, "upto_bytes": cell.upto}
        case TakeoverCell():
            return {"history": cell.history.hex(), "index": cell.index, "seq": cell.seq}
        case QueueCell():
            route = {"route": cell.route} if len(cell.shards) > 1 else {}
            return {
                "shards": list(cell.shards),
                **route,
                "ids": f"{cell.ids:x}" if cell.ids else "",
                **({"placed_by": cell.placed_by} if cell.placed_by else {}),
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
            # The secret would allow a reader to forge receipts.
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
"""Fields whose values are sets of seqs."""


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
        "doomed": {
            str(seq): DeadLetterReason(why).name.lower() for seq, why in cell.doomed.items()
        },
    }


def cell_text(fields: Fields) -> str:
    """Return a cell's fields on one line, without those that are empty, zero, false or none."""
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
    """Return the first characters of a history's id."""
    text = history.hex() if isinstance(history, bytes) else history
    return f"{text[:8]}…" if text else "-"


# --- Rows ----------------------------------------------------------------------------------------


def row_fields(row: Row) -> Fields:
    """Return the fields of a row, with shortened body, key and headers."""
    return {
        "seq": row.seq,
        "time_ms": row.time_ms,
        "key": shown_bytes(row.key),
        "headers": [[escaped(name), shown_bytes(value)] for name, value in row.headers],
        "body": shown_bytes(row.body),
    }


def row_text(row: Row) -> str:
    """Return a row's key, headers and body on one line."""
    parts = [f"key {shortened(row.key)}"] if row.key is not None else []
    parts += [f"{escaped(name)}={shortened(value)}" for name, value in row.headers]
    parts.append(shortened(row.body) if row.body is not None else "delete")
    return "  ".join(parts)


def spec_fields(spec: QueueSpec) -> Fields:
    """Return maxima and notes of a queue, and its partition settings if it is partitioned."""
    bounds: Fields = {
        "max_messages": spec.max_messages,
        "max_bytes": spec.max_bytes,
        "overflow": spec.overflow if spec.is_bounded else "",
        "notes": dict(spec.notes),
        "max_in_flight": spec.max_in_flight,
        "group_blocking": spec.group_blocking if spec.order == "group" else "",
        "message_bytes_max": spec.message_bytes_max,
    }
    if not spec.is_partitioned:
        return bounds
    return {
        **bounds,
        "delivery": spec.delivery,
        "partitions_min": spec.partitions_min,
        "partitions_max": spec.partitions_max,
        "partition_age_ms": spec.partition_age_ms,
    }


def partition_fields(cell: PartitionCell | SlicesCell | IdCell) -> Fields:
    """Return the fields of a partition cell."""
    if isinstance(cell, IdCell):
        return {"seq": cell.seq}
    slices = [[one.served, *one.leases] for one in cell.slices]
    if isinstance(cell, SlicesCell):
        return {"slices": slices}
    return {
        "key": f"{cell.key:016x}",
        "slices": slices,
        "waiting": cell.waiting,
        "turn": cell.turn,
        "resized": cell.resized,
        "peak": cell.peak,
        "since_ms": cell.since_ms,
        "count": cell.count,
        "base": cell.base,
        "first": cell.first,
    }


def entry_fields(entry: Entry) -> Fields:
    """Return the fields of an entry with its batches."""
    fields: dict[str, Value] = {
        "group": entry.group,
        "kind": entry.kind.name.lower(),
        "index": entry.index,
        "epoch": entry.epoch,
        "history": entry.history.hex(),
    }
    if entry.kind is EntryKind.FACT:
        fields["fact"] = entry.fact.hex()
    else:
        fields["batches"] = [_batch_fields(batch) for batch in entry.batches]
    return fields


def _batch_fields(batch: Batch) -> Fields:
    changes = batch.changes
    fields: dict[str, Value] = {
        "shard": batch.shard,
        "index": batch.index,
        "time_ms": batch.time_ms,
        "made": changes.made,
        "blocks": [
            {"first": first, "rows": block.count, "offset": place[0], "length": place[1]}
            for first, block, place in _blocks(batch)
        ],
        "staged": [list(stage) for stage in changes.staged],
        "published": [list(stage) for stage in changes.published],
        "unstaged": list(changes.unstaged),
        "died": {death_name(why): ranges(unpack_seqs(seqs)) for why, seqs in changes.died.items()},
        "passed": changes.passed,
        "kept": ranges(unpack_seqs(changes.settled)),
        "expired": changes.expired,
        "purged": changes.purged,
        "unpinned": list(changes.unpinned),
        "pinned": list(changes.pinned),
        "cells": [
            {
                "kind": kind_name(kind),
                "key": cell_key(kind, key),
                "value": None if value is None else cell_fields(kind, key, value),
            }
            for kind, key, value in changes.cells
        ],
        "dropped": changes.dropped,
        "aside": ranges(unpack_seqs(changes.aside)),
        "weight": changes.weight,
    }
    always = ("shard", "index", "time_ms")
    return {name: value for name, value in fields.items() if value or name in always}


def _blocks(batch: Batch) -> Iterator[tuple[int | None, Block, tuple[int, int]]]:
    """Yield each block with its first seq, if assigned, and its place in the payload."""
    firsts: list[int | None] = [*batch.changes.firsts]
    firsts += [None] * (len(batch.blocks) - len(firsts))
    return zip(firsts, batch.blocks, batch.places, strict=True)


def death_name(why: int) -> str:
    """Return the name of a cause of death."""
    return Death(why).name.lower() if why in Death.__members__.values() else f"death-{why}"


def entry_lines(entry: Entry) -> Iterator[str]:
    """Yield the lines of an entry, indented below its record."""
    yield (
        f"  entry  group {entry.group}  {entry.kind.name.lower()}  index {entry.index}  "
        f"epoch {entry.epoch}  history {short_history(entry.history)}"
    )
    if entry.fact:
        yield f"    fact {entry.fact.hex()}"
    for batch in entry.batches:
        yield (f"    batch  shard {batch.shard}  index {batch.index}  {time_text(batch.time_ms)}")
        for line in _change_lines(batch):
            yield f"      {line}"


def _change_lines(batch: Batch) -> Iterator[str]:
    changes = batch.changes
    if changes.made:
        yield f"the shard begins{', keyed' if changes.made == 3 else ''}"
    for first, block, (_, length) in _blocks(batch):
        seqs = f"{first}-{first + block.count - 1}" if first is not None else "staged"
        yield f"rows {seqs}: {block.count} in {size_text(length)}, {_first_row(block)}"
    for stage, count in changes.staged:
        yield f'stage "{escaped(stage)}" gets {count} blocks'
    for stage, first, rows in changes.published:
        yield f'stage "{escaped(stage)}" is published as {first}-{first + rows - 1}'
    for stage in changes.unstaged:
        yield f'stage "{escaped(stage)}" is dropped'
    for why, packed in changes.died.items():
        yield f"died, {death_name(why)}: {_seqs(packed)}"
    if changes.passed:
        yield f"retaining cursors have passed {changes.passed}"
    if changes.settled:
        yield f"settled, kept for cursors: {_seqs(changes.settled)}"
    if changes.expired:
        yield f"expired up to {changes.expired}"
    if changes.purged:
        yield f"purged up to {changes.purged}"
    for pin in changes.unpinned:
        yield f"pin {pin} is dropped"
    for pin in changes.pinned:
        yield f"pin {pin} is set"
    for kind, key, value in changes.cells:
        name = f"cell {kind_name(kind)} {cell_key(kind, key)}".rstrip()
        yield f"{name}: {'deleted' if value is None else cell_text(cell_fields(kind, key, value))}"
    if changes.aside:
        yield f"wait apart: {_seqs(changes.aside)}"
    if changes.dropped:
        yield "the shard ends"


def _first_row(block: Block) -> str:
    if not block.count:
        return "none"
    return f"the first one {row_text(block.rows(0, 1, 0, 0)[0])}"


def _seqs(packed: bytes) -> str:
    found: BitMap64 = unpack_seqs(packed)
    return ranges_text(ranges(found))
