"""Cells in words, for transcripts."""

from __future__ import annotations

from millrace import limits
from millrace.core import bounds
from millrace.core.answers import QueueRef
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
    awaited_name,
    expiry_of,
)
from millrace.core.format.codec import decode_cell
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.model import NEVER_MS, CursorPosition, DeadLetterReason
from millrace.core.spec import QueueSpec
from millrace.core.state.deferred_cells import due_of, ready_since, seqs_in
from millrace.core.state.view import number
from tests.support.models.commit_group import START_MS, numbers
from tests.support.transcript.wording_groups import (
    group_name,
    say_group_cell,
    say_group_key,
    say_order,
)
from tests.support.transcript.wording_partitions import say_partition
from tests.support.transcript.wording_spec import bounded, say_notes

_NUMBERED = (
    Kind.LEASE,
    Kind.SESSION,
    Kind.PIN,
    Kind.DELETES,
    Kind.SUBSCRIPTION,
    Kind.WEIGHT,
    Kind.SLICES,
)


def cell_name(kind: Kind, key: bytes) -> str:
    """The kind and key of a cell."""
    if kind in _NUMBERED:
        return f"[{kind.name.lower()} {number(key)}]"
    if kind is Kind.DUE:
        return f"[due {say_time(due_of(key))} by {number(key[-8:])}]"
    if kind is Kind.READY:
        since = say_time(ready_since(key))
        return f"[ready {limits.PRIORITY_MAX - key[8]} since {since} by {number(key[-8:])}]"
    if kind is Kind.EXPIRY:
        return f"[expiry {say_time(expiry_of(key))} by {number(key[8:16])}.{number(key[16:])}]"
    if kind in (Kind.RING, Kind.TURN, Kind.GROUP, Kind.BUCKET, Kind.ID):
        return say_group_key(kind, key)
    if kind is Kind.DEDUP:
        return f"[dedup {key.hex()[:8]}]"
    if kind is Kind.QUARANTINE:
        return f"[quarantine {number(key)}]" if key else "[quarantine]"
    if kind is Kind.AWAITED:
        return f"[awaited {awaited_name(key)} by {number(key[-8:])} of {number(key[-16:-8])}]"
    if kind is Kind.RUNS:
        return f"[runs {key[:-5].decode()}.{number(key[-4:])}]"
    text = key.decode().replace("\0", "/")
    return f"[{kind.name.lower()} {text}]" if text else f"[{kind.name.lower()}]"


def cell_value(kind: Kind, key: bytes, value: bytes | None) -> str:
    """What the cell holds, or that it is gone."""
    if value is None:
        return "gone"
    cell = decode_cell(kind, value)
    if isinstance(cell, DeferredCell):
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
                + (f", turns {max(cell.front, 1)}-{cell.turn}" if cell.turn else "")
                + (f", paid {say_time(cell.paid_us / 1000)}" if cell.paid_us else "")
                + (f", ids forgotten to {cell.forgotten}" if cell.forgotten else "")
            )
        case LeaseCell():
            return _lease(cell)
        case SessionCell():
            return _session(cell)
        case ProducerCell():
            recent = " ".join(f"{n}:{first}+{count}" for n, first, count in cell.recent)
            uptos = f" ({' + '.join(map(str, cell.uptos))})" if cell.uptos else ""
            return f"{cell.mode} at {cell.last}{uptos}, {say_time(cell.time_ms)}, answers {recent}"
        case CursorCell():
            return _cursor(cell)
        case PinCell():
            whose = f" for {cell.cursor}" if cell.cursor else ""
            retain = ", kept rows too" if cell.retain else ""
            return (
                f"batch {cell.index}, boundary {cell.boundary}, floor {cell.floor}, "
                f"{say_until(cell.deadline_ms)}{whose}{retain}"
            )
        case StageCell():
            calls = f", {cell.calls} calls" if cell.calls else ""
            return f"{cell.rows} rows since {say_time(cell.time_ms)}{calls}"
        case RunsCell():
            return _runs(cell)
        case AwaitedCell():
            return "waits"
        case QuarantineCell():
            what = f"to {cell.last}" if cell.last else f"by shard {cell.shard}"
            return f"{what}, since {say_time(cell.since_ms)}: {cell.reason}"
        case DeletesCell():
            return numbers(unpack_seqs(cell.seqs))
        case DeferredCell():
            return f"priority {cell.priority}"
        case TurnCell() | GroupCell() | RingCell():
            return say_group_cell(cell)
        case PartitionCell() | SlicesCell() | IdCell():
            return say_partition(cell)
        case DedupCell():
            return f"{cell.seq}, {say_until(cell.until_ms)}"
        case AttemptCell():
            turns = f", by turns {' then '.join(numbers(unpack_seqs(s)) for s in cell.turns)}"
            at = f"{say_time(cell.time_ms)}, {say_until(cell.deadline_ms)}"
            return f"lease {cell.lease} at {at}{turns if cell.turns else ''}"
        case ExpiryCell():
            ids = " ".join(name.hex()[:8] for name in cell.ids)
            return f"seqs {numbers(unpack_seqs(cell.seqs))}" if cell.seqs else f"ids {ids}"
        case RowSizesCell():
            return f"after {cell.after}, bytes {cell.before} to {cell.upto}"
        case TakeoverCell():
            return f"{_history(cell.history)} shared to batch {cell.index}, seq {cell.seq}"
        case QueueCell():
            return say_shards(cell)
        case TopicCell():
            return f"shard {cell.shard}, up to {cell.max_lag} wait{say_notes(cell.notes)}"
        case SubscriptionCell():
            filtered = f", {cell.filtered} filtered by {cell.filter}" if cell.filter else ""
            return (
                f"{cell.name} to {cell.target} ({cell.queue}), of {_history(cell.history)} since "
                f"{cell.since}, passed {cell.passed}, {cell.forwarded} forwarded{filtered}, "
                f"{say_time(cell.moved_ms)}{say_notes(cell.notes)}{_durable(cell)}"
            )
        case CatalogCell():
            return f"newest shard {cell.shard}"


def _durable(cell: SubscriptionCell) -> str:
    if not cell.durable:
        return ""
    out = f", durable, {cell.dead_lettered} dead letters, {cell.dropped} dropped"
    out += f", dead letters to {cell.dead_letter}" if cell.dead_letter else ""
    return out + (f", of the queue{say_notes(cell.queue_notes)}" if cell.queue_notes else "")


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
        "discarded": cell.discarded,
        "overdue": cell.overdue,
    }
    out = [say_until(cell.deadline_ms)]
    out += [f"{name} {numbers(unpack_seqs(seqs))}" for name, seqs in sets.items() if seqs]
    out += [f"{seq} {say_until(deadline)}" for seq, deadline in cell.deadlines.items()]
    out += [
        f"{seq} delivered {deliveries}x failed {failures}x"
        for seq, (deliveries, failures) in cell.counts.items()
    ]
    out += [f"{seq} of {group_name(group)}" for seq, group in cell.groups.items()]
    out += [
        f"{seq} doomed by {DeadLetterReason(why).name.lower()}" for seq, why in cell.doomed.items()
    ]
    if cell.session:
        order = f" in the order {' '.join(map(str, cell.order))}" if cell.order else ""
        handed = numbers(unpack_seqs(cell.handed))
        out.append(f"session {cell.session} was handed {handed} from {cell.first} on{order}")
    return ", ".join(out) + (f", ended {say_time(cell.ended_ms)}" if cell.ended_ms else "")


def _session(cell: SessionCell) -> str:
    way = "refilled" if cell.refill else "granted"
    out = f"claim {cell.claim} of epoch {cell.epoch}, credit {cell.credit} {way}, next {cell.next}"
    out += f", leases for {cell.lease_ms / 1000:g}s" if cell.lease_ms else ""
    out += f", suspected since {say_time(cell.suspected_ms)}" if cell.suspected_ms else ""
    return out + (", cancelled" if cell.cancelled else "")


def _cursor(cell: CursorCell) -> str:
    out = f"id {cell.id} at {say_position(cell.position)}, moved {say_time(cell.moved_ms)}"
    out += ", retains" if cell.retain else ""
    out += f", pin {cell.pin}" if cell.pin else ""
    out += f", claim {_claim(cell.claim)}" if cell.claim else ""
    out += f", snapshot {cell.vector}{' torn' if cell.torn else ''}" if cell.vector else ""
    return out + (", dropped" if cell.dropped else "")


def say_position(position: CursorPosition) -> str:
    """A place in a history, and the snapshot that it is in."""
    where = f"{_history(position.history)}:{position.seq}"
    if position.seq == position.snapshot_start == position.snapshot_end:
        return where
    return f"{where} in ({position.snapshot_start}, {position.snapshot_end}]"


def _claim(claim: bytes) -> str:
    return f"{_history(claim[:16])}:{int.from_bytes(claim[16:])}"


def _history(history: bytes) -> str:
    return history.rstrip(b".").decode()


def say_time(time_ms: float) -> str:
    """Seconds since the run began."""
    return f"{(time_ms - START_MS) / 1000:.12g}s"


def say_until(time_ms: int) -> str:
    """When it ends, if ever."""
    return f"until {say_time(time_ms)}" if time_ms < NEVER_MS else "until its session ends"


def say_shards(queue: QueueRef | QueueCell) -> str:
    """The shards of a queue, and how messages find theirs."""
    if len(queue.shards) == 1:
        return f"shard {queue.shards[0]}"
    return f"shards {queue.shards[0]}-{queue.shards[-1]} by {queue.route}"


def _runs(cell: RunsCell) -> str:
    turns = [
        f"{at}+{count} priority {priority}{'' if delay is None else f' delay {delay}ms'}"
        for at, count, priority, delay in cell.aside
    ]
    lives = [f"{at}+{count} ttl {ttl}ms" for at, count, ttl in cell.lives]
    return ", ".join(turns + lives)
