"""Answers, changes and rows in words that stay the same from run to run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.answers import (
    Explanation,
    Holder,
    Holders,
    Leased,
    MultiShardSnapshot,
    Outcome,
    PublishResult,
    QueueRef,
    ShardLeases,
    SnapshotRef,
)
from millrace.core.cells import CatalogCell, CursorCell, Kind, TopicCell
from millrace.core.changes import Batch
from millrace.core.format.block import Block
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.model import CursorPosition, Death
from millrace.core.session_commands import (
    Granted,
    ReceiveResult,
    SessionDelivery,
    SessionRef,
)
from millrace.core.spec import QueueSpec
from millrace.core.state.fold import ShardMeta
from millrace.core.topic_commands import (
    ForwardedParcel,
    ForwardResult,
    SubscribeResult,
    TopicRef,
)
from millrace.errors import MillraceError
from tests.support.models.commit_group import Result, numbers
from tests.support.transcript.wording_cells import (
    cell_name,
    cell_value,
    say_cell,
    say_position,
    say_shards,
    say_time,
    say_until,
)

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
        case PublishResult():
            return [_published(answer)]
        case Leased():
            return [_leased(answer)]
        case ShardLeases():
            parts = [f"shard {shard}, {_leased(part)}" for shard, part in answer.parts]
            none = "nothing to lease, bounded" if answer.bounded else "nothing to lease"
            return parts or [none]
        case MultiShardSnapshot():
            refs = [f"{at}: {_snapshot(ref)}" for at, ref in enumerate(answer.refs)]
            return [f"snapshot {answer.number} of {len(refs)} shards", *refs]
        case Outcome():
            return _outcome(answer)
        case SessionRef():
            return [_session_ref(answer)]
        case ReceiveResult():
            return [*map(_delivery, answer.deliveries), f"expects {answer.next} next"]
        case Granted():
            drained = f", {answer.drained} drained" if answer.drained else ""
            return [f"credit {answer.credit}{drained}"]
        case CursorPosition():
            return [f"at {say_position(answer)}"]
        case SnapshotRef():
            return [_snapshot(answer)]
        case QueueRef():
            return [f"{say_shards(answer)}{', made' if answer.made else ''}"]
        case Explanation():
            return [_explanation(answer)]
        case Holders():
            return [f"from {answer.first}, wanted {answer.wanted}", *map(_holder, answer.held)]
        case QueueSpec() | CatalogCell() | CursorCell() | TopicCell():
            return [say_cell(answer)]
        case TopicRef():
            return [f"shard {answer.shard}{', made' if answer.made else ''}"]
        case SubscribeResult():
            made = ", made" if answer.made else ""
            return [f"subscription {answer.subscription} after {answer.since}{made}"]
        case ForwardResult():
            return [_brought(parcel) for parcel in answer.parcels]


def _brought(answer: ForwardedParcel) -> str:
    if answer.error is not None:
        return f"subscription {answer.subscription}: {_error(answer.error)}"
    if not answer.moved:
        return f"subscription {answer.subscription}: left alone"
    where = f", from seq {answer.first} on" if answer.first is not None else ""
    if answer.outcome != "forwarded":
        where = f", {answer.outcome.replace('_', '-')}"
    if answer.gone:
        where += f", without {' '.join(map(str, answer.gone))}"
    return f"subscription {answer.subscription}: passed{where}"


def _error(error: MillraceError) -> str:
    return f"{type(error).__name__}: {error.message}"


def _holder(holder: Holder) -> str:
    name = " ".join(filter(None, (holder.kind, str(holder.pin or ""), holder.name)))
    dropped = ", dropped" if holder.dropped else ""
    return (
        f"{name} at {holder.seq}: {holder.rows} rows, {holder.bytes} bytes, "
        f"{holder.age_ms / 1000:g}s{dropped}"
    )


def _published(answer: PublishResult) -> str:
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
        return "nothing to lease, bounded" if answer.bounded else "nothing to lease"
    counts = "".join(
        f", {seq} delivered {deliveries}x failed {failures}x"
        for seq, (deliveries, failures) in answer.counts.items()
    )
    turns = f", by turns {' then '.join(map(numbers, answer.turns))}" if answer.turns else ""
    until = say_until(answer.deadline_ms)
    return f"lease {answer.lease}: {numbers(answer.seqs)} {until}{counts}{turns}"


def _session_ref(ref: SessionRef) -> str:
    way = "refilled" if ref.refill else "granted"
    claim = ref.claim
    return (
        f"session {claim.session}, claim {claim.number}: credit {ref.credit} {way}, "
        f"expects {ref.next} next"
    )


def _delivery(delivery: SessionDelivery) -> str:
    told = ", ".join(f"{number} is {seq}" for seq, number in delivery.numbers.items())
    counts = "".join(
        f", {seq} delivered {deliveries}x failed {failures}x"
        for seq, (deliveries, failures) in delivery.counts.items()
    )
    return f"lease {delivery.lease}: {told} {say_until(delivery.deadline_ms)}{counts}"


def _outcome(answer: Outcome) -> list[str]:
    until = f" {say_until(answer.deadline_ms)}" if answer.deadline_ms else ""
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
        out += f", {say_until(answer.until_ms)}"
    if answer.not_before_ms is not None:
        out += f", {say_until(answer.not_before_ms)} at least"
    return out + (f", superseded by {answer.superseded_by}" if answer.superseded_by else "")


# --- Changes -----------------------------------------------------------------------------------


def say_batch(batch: Batch, shard: str) -> list[str]:
    """A batch, a line for each change."""
    return [
        f"{shard} {batch.index} at {say_time(batch.time_ms)}",
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
        yield f"{cell_name(Kind(kind), key)} {cell_value(Kind(kind), key, value)}"
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
