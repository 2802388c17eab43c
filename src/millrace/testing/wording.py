"""Answers, changes and rows in words that stay the same from run to run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.core import bounds
from millrace.core.across_commands import LeasedAcross, Vector
from millrace.core.answers import Explanation, Leased, Outcome, Published, QueueRef, SnapshotRef
from millrace.core.block import Block
from millrace.core.changes import Batch
from millrace.core.codec import decode_cell
from millrace.core.expiry import expiry_of
from millrace.core.fold import ShardMeta
from millrace.core.group_cells import GroupCell, RingCell, TurnCell
from millrace.core.holder import Holder, Holders
from millrace.core.idcells import AttemptCell, DedupCell, ExpiryCell
from millrace.core.model import (
    NEVER_MS,
    AsideCell,
    CatalogCell,
    Cell,
    CursorCell,
    Death,
    DeletesCell,
    Doom,
    Kind,
    LeaseCell,
    PinCell,
    Pointers,
    Position,
    ProducerCell,
    QueueCell,
    QueueSpec,
    SessionCell,
    StageCell,
    TakeoverCell,
    WeightCell,
)
from millrace.core.partition_cells import IdCell, PartitionCell
from millrace.core.seqs import unpack_seqs
from millrace.core.session_commands import Delivered, Delivery, Granted, SessionRef
from millrace.core.topic_cells import SubscriptionCell, TopicCell
from millrace.core.topic_commands import Brought, Forwarded, Subscribed, TopicRef
from millrace.core.view import number
from millrace.core.waiting import due_of, ready_since, seqs_in
from millrace.errors import MillraceError
from millrace.testing.group import START_MS, Result, numbers
from millrace.testing.wording_groups import group_name, say_group_cell, say_group_key, say_order
from millrace.testing.wording_partitions import say_partition
from millrace.testing.wording_spec import bounded

# --- Answers -----------------------------------------------------------------------------------


def say_answer(answer: Result, now: int) -> list[str]:
    """An answer, a line for each thing that it says."""
    match answer:
        case MillraceError():
            return [_error(answer)]
        case tuple():
            return [line for part in answer for line in say_answer(part, now)]
        case bool():
            return ["yes" if answer else "no"]
        case None:
            return ["nothing"]
        case int():
            return [str(answer)]
        case Published():
            return [_published(answer)]
        case Leased():
            return [_leased(answer)]
        case LeasedAcross():
            parts = [f"shard {shard}, {_leased(part)}" for shard, part in answer.parts]
            return parts or ["nothing to lease"]
        case Vector():
            refs = [f"{at}: {_snapshot(ref)}" for at, ref in enumerate(answer.refs)]
            return [f"snapshot {answer.number} of {len(refs)} shards", *refs]
        case Outcome():
            return _outcome(answer)
        case SessionRef():
            return [_session_ref(answer)]
        case Delivered():
            return [*map(_delivery, answer.deliveries), f"expects {answer.next} next"]
        case Granted():
            drained = f", {answer.drained} drained" if answer.drained else ""
            return [f"credit {answer.credit}{drained}"]
        case SnapshotRef():
            return [_snapshot(answer)]
        case QueueRef():
            return [f"{_shards(answer)}{', made' if answer.made else ''}"]
        case Explanation():
            return [_explanation(answer)]
        case Holders():
            return [f"from {answer.first}, wanted {answer.wanted}", *map(_holder, answer.held)]
        case QueueSpec() | CatalogCell() | CursorCell() | TopicCell():
            return [say_cell(answer)]
        case TopicRef():
            return [f"shard {answer.shard}{', made' if answer.made else ''}"]
        case Subscribed():
            made = ", made" if answer.made else ""
            return [f"subscription {answer.subscription} after {answer.since}{made}"]
        case Forwarded():
            return [_brought(parcel) for parcel in answer.parcels]


def _brought(answer: Brought) -> str:
    if answer.error is not None:
        return f"subscription {answer.subscription}: {_error(answer.error)}"
    if not answer.moved:
        return f"subscription {answer.subscription}: left alone"
    where = f", from seq {answer.first} on" if answer.first is not None else ""
    return f"subscription {answer.subscription}: passed{where}"


def _shards(queue: QueueRef | QueueCell) -> str:
    if len(queue.shards) == 1:
        return f"shard {queue.shards[0]}"
    return f"shards {queue.shards[0]}-{queue.shards[-1]} by {queue.route}"


def _error(error: MillraceError) -> str:
    return f"{type(error).__name__}: {error.message}"


def _holder(holder: Holder) -> str:
    name = " ".join(filter(None, (holder.kind, str(holder.pin or ""), holder.name)))
    dropped = ", dropped" if holder.dropped else ""
    return (
        f"{name} at {holder.seq}: {holder.rows} rows, {holder.bytes} bytes, "
        f"{holder.age_ms / 1000:g}s{dropped}"
    )


def _published(answer: Published) -> str:
    if answer.first is None:
        return "repeated, its seqs forgotten"
    if answer.seqs:
        each = " ".join(map(str, answer.seqs))
        return f"seqs {each}{', repeated' if answer.repeated else ''}"
    last = answer.first + answer.count - 1
    where = f"seq {answer.first}" if answer.count == 1 else f"seqs {answer.first}-{last}"
    return f"{where}, repeated" if answer.repeated else where


def _leased(answer: Leased) -> str:
    if not answer.seqs:
        return "nothing to lease"
    counts = "".join(
        f", {seq} delivered {deliveries}x failed {failures}x"
        for seq, (deliveries, failures) in answer.counts.items()
    )
    turns = f", by turns {' then '.join(map(numbers, answer.turns))}" if answer.turns else ""
    until = _until(answer.deadline_ms)
    return f"lease {answer.lease}: {numbers(answer.seqs)} {until}{counts}{turns}"


def _session_ref(ref: SessionRef) -> str:
    way = "refilled" if ref.refill else "granted"
    claim = ref.claim
    return (
        f"session {claim.session}, claim {claim.number}: credit {ref.credit} {way}, "
        f"expects {ref.next} next"
    )


def _delivery(delivery: Delivery) -> str:
    told = ", ".join(f"{number} is {seq}" for seq, number in delivery.numbers.items())
    counts = "".join(
        f", {seq} delivered {deliveries}x failed {failures}x"
        for seq, (deliveries, failures) in delivery.counts.items()
    )
    return f"lease {delivery.lease}: {told} {_until(delivery.deadline_ms)}{counts}"


def _outcome(answer: Outcome) -> list[str]:
    until = f" {_until(answer.deadline_ms)}" if answer.deadline_ms else ""
    done = [f"done: {numbers(answer.done)}{until}"] if answer.done else []
    return done + [f"{seq}: {_error(error)}" for seq, error in sorted(answer.refused.items())]


def _snapshot(ref: SnapshotRef) -> str:
    retain = ", kept rows too" if ref.retain else ""
    start = f", begun at {ref.start}" if ref.start != ref.after else ""
    return f"pin {ref.pin}: ({ref.after}, {ref.boundary}] as of batch {ref.index}{start}{retain}"


def _explanation(answer: Explanation) -> str:
    out = f"{answer.seq} is {answer.state}"
    if answer.lease is not None:
        out += f", lease {answer.lease}"
        out += f", delivered {answer.deliveries}x failed {answer.failures}x"
    if answer.session is not None:
        out += f", held by session {answer.session}"
    if answer.until_ms is not None:
        out += f", {_until(answer.until_ms)}"
    if answer.not_before_ms is not None:
        out += f", {_until(answer.not_before_ms)} at least"
    return out + (f", superseded by {answer.superseded_by}" if answer.superseded_by else "")


def _time(time_ms: float) -> str:
    return f"{(time_ms - START_MS) / 1000:.12g}s"


def _until(time_ms: int) -> str:
    return f"until {_time(time_ms)}" if time_ms < NEVER_MS else "until its session ends"


# --- Changes -----------------------------------------------------------------------------------


def say_batch(batch: Batch, shard: str) -> list[str]:
    """A batch, a line for each change."""
    return [
        f"{shard} {batch.index} at {_time(batch.time_ms)}",
        *(f"  {line}" for line in _changes(batch)),
    ]


def _changes(batch: Batch) -> Iterator[str]:
    changes = batch.changes
    blocks = iter(batch.blocks)
    if changes.made:
        yield "made keyed" if changes.made == 3 else "made"
    for first in changes.firsts:
        yield f"rows from {first}: {_block(next(blocks))}"
    for name, count in changes.staged:
        for _ in range(count):
            yield f"staged {name}: {_block(next(blocks))}"
    for name, first, count in changes.published:
        yield f"stage {name} is {numbers(range(first, first + count))}"
    for name in changes.unstaged:
        yield f"stage {name} dropped"
    for why, seqs in changes.died.items():
        yield f"{Death(why).name.lower()} {numbers(unpack_seqs(seqs))}"
    if changes.passed:
        yield f"passed up to {changes.passed}"
    if changes.settled:
        yield f"kept {numbers(unpack_seqs(changes.settled))}"
    if changes.expired:
        yield f"expired up to {changes.expired}"
    if changes.purged:
        yield f"purged up to {changes.purged}"
    for pin in changes.unpinned:
        yield f"unpinned {pin}"
    for pin in changes.pinned:
        yield f"pinned {pin}"
    for kind, key, value in changes.cells:
        yield f"{_cell_name(Kind(kind), key)} {_cell_value(Kind(kind), key, value)}"
    if changes.aside:
        yield f"aside {numbers(unpack_seqs(changes.aside))}"
    if changes.dropped:
        yield "dropped"


def _block(block: Block) -> str:
    return " ".join(
        _row(row.key, row.body, row.headers) for row in block.rows(0, block.count, 0, 0)
    )


def _row(key: bytes | None, body: bytes | None, headers: Iterable[tuple[str, bytes]]) -> str:
    name = "" if key is None else key.decode()
    pairs = ",".join(f"{header}:{value.decode()}" for header, value in headers)
    value = f"{name}!" if body is None else f"{name}={body.decode()}" if name else body.decode()
    return value + (f"{{{pairs}}}" if pairs else "")


_NUMBERED = (
    Kind.LEASE,
    Kind.SESSION,
    Kind.PIN,
    Kind.DELETES,
    Kind.SUBSCRIPTION,
    Kind.WEIGHT,
)


def _cell_name(kind: Kind, key: bytes) -> str:
    if kind in _NUMBERED:
        return f"[{kind.name.lower()} {number(key)}]"
    if kind is Kind.DUE:
        return f"[due {_time(due_of(key))} by {number(key[-8:])}]"
    if kind is Kind.READY:
        since = _time(ready_since(key))
        return f"[ready {limits.PRIORITY_MAX - key[8]} since {since} by {number(key[-8:])}]"
    if kind is Kind.EXPIRY:
        return f"[expiry {_time(expiry_of(key))} by {number(key[8:16])}.{number(key[16:])}]"
    if kind in (Kind.RING, Kind.TURN, Kind.GROUP, Kind.BUCKET, Kind.ID):
        return say_group_key(kind, key)
    if kind is Kind.DEDUP:
        return f"[dedup {key.hex()[:8]}]"
    text = key.decode().replace("\0", "/")
    return f"[{kind.name.lower()} {text}]" if text else f"[{kind.name.lower()}]"


def _cell_value(kind: Kind, key: bytes, value: bytes | None) -> str:
    if value is None:
        return "gone"
    cell = decode_cell(kind, value)
    if isinstance(cell, AsideCell):
        return f"{numbers(seqs_in(key, cell))} of priority {cell.priority}"
    return say_cell(cell)


def say_cell(cell: Cell) -> str:
    """What a cell holds, without what is as it always is."""
    match cell:
        case QueueSpec():
            keyed = "keyed " if cell.keyed else ""
            return (
                f"{keyed}{cell.retention}, deletes kept {cell.keep_deletes_ms / 1000:g}s"
                f"{_failing(cell)}{_keeping(cell)}"
                + (f", delay {cell.delay_ms / 1000:g}s" if cell.delay_ms else "")
                + _limited(cell)
                + say_order(cell)
            )
        case Pointers():
            return (
                f"next {cell.next}, lease {cell.lease}, pin {cell.pin}, cursor {cell.cursor}, "
                f"floor {cell.floor}"
                + (f", aside {cell.aside}" if cell.aside else "")
                + (f", era {cell.era}" if cell.era else "")
                + (", expires" if cell.expires else "")
                + (f", gaps {cell.gaps}" if cell.gaps else "")
                + (f", turn {cell.turn}" if cell.turn else "")
                + (f", paid {_time(cell.paid_us / 1000)}" if cell.paid_us else "")
            )
        case LeaseCell():
            return _lease(cell)
        case SessionCell():
            return _session(cell)
        case ProducerCell():
            recent = " ".join(f"{n}:{first}+{count}" for n, first, count in cell.recent)
            return f"{cell.mode} at {cell.last}, {_time(cell.time_ms)}, answers {recent}"
        case CursorCell():
            return _cursor(cell)
        case PinCell():
            whose = f" for {cell.cursor}" if cell.cursor else ""
            retain = ", kept rows too" if cell.retain else ""
            return (
                f"batch {cell.index}, boundary {cell.boundary}, floor {cell.floor}, "
                f"{_until(cell.deadline_ms)}{whose}{retain}"
            )
        case StageCell():
            return f"{cell.rows} rows since {_time(cell.time_ms)}"
        case DeletesCell():
            return numbers(unpack_seqs(cell.seqs))
        case AsideCell():
            return f"priority {cell.priority}"
        case TurnCell() | GroupCell() | RingCell():
            return say_group_cell(cell)
        case PartitionCell() | IdCell():
            return say_partition(cell)
        case DedupCell():
            return f"{cell.seq}, {_until(cell.until_ms)}"
        case AttemptCell():
            turns = f", by turns {' then '.join(numbers(unpack_seqs(s)) for s in cell.turns)}"
            at = f"{_time(cell.time_ms)}, {_until(cell.deadline_ms)}"
            return f"lease {cell.lease} at {at}{turns if cell.turns else ''}"
        case ExpiryCell():
            ids = " ".join(name.hex()[:8] for name in cell.ids)
            return f"seqs {numbers(unpack_seqs(cell.seqs))}" if cell.seqs else f"ids {ids}"
        case WeightCell():
            return f"after {cell.after}, bytes {cell.before} to {cell.upto}"
        case TakeoverCell():
            return f"{_history(cell.history)} shared to batch {cell.index}, seq {cell.seq}"
        case QueueCell():
            return _shards(cell)
        case TopicCell():
            return f"shard {cell.shard}, up to {cell.max_lag} wait"
        case SubscriptionCell():
            filtered = f", {cell.filtered} filtered by {cell.filter}" if cell.filter else ""
            return (
                f"{cell.name} to {cell.target} ({cell.queue}), of {_history(cell.history)} since "
                f"{cell.since}, passed {cell.passed}, {cell.forwarded} forwarded{filtered}, "
                f"{_time(cell.moved_ms)}"
            )
        case CatalogCell():
            return f"newest shard {cell.shard}"


def _limited(spec: QueueSpec) -> str:
    out = f", ids kept {spec.dedup_ms / 1000:g}s" if spec.dedup_ms != bounds.DEDUP_MS else ""
    out += ", ids of bodies" if spec.dedup_by_body else ""
    out += f", lives {spec.ttl_ms / 1000:g}s" if spec.ttl_ms else ""
    return out + (", expired are dead letters" if spec.dead_letter_expired else "")


def _failing(spec: QueueSpec) -> str:
    out = f", retry after {spec.retry_min_ms / 1000:g}s" if spec.retry_min_ms else ""
    out += f" to {spec.retry_max_ms / 1000:g}s" if spec.retry_max_ms else ""
    out += f", {spec.max_failures} failures" if spec.max_failures else ""
    out += f", {spec.max_deliveries} deliveries" if spec.max_deliveries else ""
    return out + (f", dead letters to {spec.dead_letter}" if spec.dead_letter else "")


def _keeping(spec: QueueSpec) -> str:
    out = bounded(spec) + (f", kept {spec.keep_ms / 1000:g}s" if spec.keep_ms else "")
    out += f", {spec.keep_bytes} bytes" if spec.keep_bytes else ""
    out += f", {spec.keep_messages} messages" if spec.keep_messages else ""
    out += f", retained {spec.retain_max_ms / 1000:g}s" if spec.retain_max_ms else ""
    out += f", retained {spec.retain_max_bytes} bytes" if spec.retain_max_bytes else ""
    out += f", pinned {spec.pin_max_bytes} bytes" if spec.pin_max_bytes else ""
    return out + (f", {spec.compressed}" if spec.compressed else "")


def _lease(cell: LeaseCell) -> str:
    sets = {
        "open": cell.open,
        "freed": cell.freed,
        "settled": cell.settled,
        "overtaken": cell.overtaken,
        "superseded": cell.superseded,
        "buried": cell.buried,
        "overdue": cell.overdue,
    }
    out = [_until(cell.deadline_ms)]
    out += [f"{name} {numbers(unpack_seqs(seqs))}" for name, seqs in sets.items() if seqs]
    out += [f"{seq} {_until(deadline)}" for seq, deadline in cell.deadlines.items()]
    out += [
        f"{seq} delivered {deliveries}x failed {failures}x"
        for seq, (deliveries, failures) in cell.counts.items()
    ]
    out += [f"{seq} of {group_name(group)}" for seq, group in cell.groups.items()]
    out += [f"{seq} doomed by {Doom(why).name.lower()}" for seq, why in cell.doomed.items()]
    if cell.session:
        order = f" in the order {' '.join(map(str, cell.order))}" if cell.order else ""
        handed = numbers(unpack_seqs(cell.handed))
        out.append(f"session {cell.session} was handed {handed} from {cell.first} on{order}")
    return ", ".join(out) + (f", ended {_time(cell.ended_ms)}" if cell.ended_ms else "")


def _session(cell: SessionCell) -> str:
    way = "refilled" if cell.refill else "granted"
    out = f"claim {cell.claim} of epoch {cell.epoch}, credit {cell.credit} {way}, next {cell.next}"
    out += f", leases for {cell.lease_ms / 1000:g}s" if cell.lease_ms else ""
    out += f", suspected since {_time(cell.suspected_ms)}" if cell.suspected_ms else ""
    return out + (", cancelled" if cell.cancelled else "")


def _cursor(cell: CursorCell) -> str:
    out = f"id {cell.id} at {_position(cell.position)}, moved {_time(cell.moved_ms)}"
    out += ", retains" if cell.retain else ""
    out += f", pin {cell.pin}" if cell.pin else ""
    out += f", snapshot {cell.vector}{' torn' if cell.torn else ''}" if cell.vector else ""
    return out + (", dropped" if cell.dropped else "")


def _position(position: Position) -> str:
    where = f"{_history(position.history)}:{position.seq}"
    if position.seq == position.snapshot_start == position.snapshot_end:
        return where
    return f"{where} in ({position.snapshot_start}, {position.snapshot_end}]"


def _history(history: bytes) -> str:
    return history.rstrip(b".").decode()


# --- What a store holds --------------------------------------------------------------------------


def say_rows(batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Rows by seq, on one line."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    out = [
        f"{row['seq']}:"
        + _row(row["key"], row["value"], [(h["name"], h["value"]) for h in row["headers"] or ()])
        for row in rows
    ]
    return [" ".join(out) or "no rows"]


def say_counts(meta: ShardMeta) -> list[str]:
    """The counters of a shard that are not 0."""
    died = ", ".join(f"{meta.died[why]} {why.name.lower()}" for why in Death if meta.died[why])
    return [f"{meta.published} published = {meta.live} live" + (f" + {died}" if died else "")]


def seqs_of(text: str) -> BitMap64:
    """The seqs that `numbers` wrote."""
    out = BitMap64()
    for part in text.split(","):
        low, _, high = part.partition("-")
        out.add_range(int(low), int(high or low) + 1)
    return out
