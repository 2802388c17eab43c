"""Redrive: moves dead letters back, changed by a query or a function on the way.

Rule 1: a letter ends in the transaction that publishes the messages made of it: exactly once,
whatever is cut off in between.
Rule 2: each result carries the shard and seq of its letter. A letter without a result stays, as if
it had never been leased; one with several results ends once.
Rule 3: only letters that were there at the beginning are moved.
Rule 4: letters without a result stay leased until the job ends, else they would be delivered to it
again. Only their seqs are kept in memory, and their leases are extended in time: an expired lease
would count as a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyroaring import BitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from millrace import limits, sync
from millrace.batch_jobs.job_context import JobContext, find_function, run_python, run_sql
from millrace.client import dead_letter_headers as letter
from millrace.client.lease import grant_of, seq_of
from millrace.client.lease_group import LeaseGroup
from millrace.client.snapshot_token import write_snapshot_token
from millrace.core.answers import Outcome
from millrace.core.commands import Extend
from millrace.core.transfer.dead_letter import PREFIX, TIME_DIGITS, first_ms
from millrace.errors import Invalid
from millrace.sinks.base import DELETE, PUT
from millrace.spark.contract import check_schema, to_rows
from millrace.spark.options import Address
from millrace.spark.staging import stage_rows

COLUMNS = (
    "shard int, seq bigint, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, op string, timestamp timestamp, "
    "dead_queue string, dead_reason string, dead_deliveries bigint, dead_failures bigint, "
    "dead_time timestamp"
)
"""Columns of a letter in queries, as a Spark schema."""

_PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
_FIELDS: list[tuple[str, pa.DataType]] = [
    ("shard", pa.int32()),
    ("seq", pa.int64()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", pa.list_(_PAIR)),
    ("op", pa.string()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("dead_queue", pa.string()),
    ("dead_reason", pa.string()),
    ("dead_deliveries", pa.int64()),
    ("dead_failures", pa.int64()),
    ("dead_time", pa.timestamp("us", tz="UTC")),
]
_SCHEMA = pa.schema(_FIELDS)
_STAGED = "shard int, seq bigint, stage string"
_STAGED_FIELDS: list[tuple[str, pa.DataType]] = [
    ("shard", pa.int32()),
    ("seq", pa.int64()),
    ("stage", pa.string()),
]
_STAGED_ARROW = pa.schema(_STAGED_FIELDS)


class LetterTransform(msgspec.Struct, frozen=True, kw_only=True):
    """Transformation of letters, and their target."""

    to: str = ""
    """Target queue, as name or space/name; empty: the queue of origin of each letter."""
    sql: str = ""
    """A query over `input`."""
    python: str = ""
    """A function from DataFrame to DataFrame, as file.py:name; excludes `sql`."""


class RedriveResult(msgspec.Struct, frozen=True):
    """Result of a redrive, or of a dry run."""

    letters: int
    """Number of letters that were moved, or would be."""
    published: int
    """Number of messages published for them."""
    kept: int
    """Number of letters without a result, or without a target for it."""
    aimless: int = 0
    """Number of results without a target: their dead_queue is unknown."""

    @property
    def reason(self) -> str:
        """Reason why nothing was moved; empty if letters were."""
        if self.letters:
            return ""
        if self.aimless:
            return (
                "no letter names the queue that it came from, or a pipeline's letter names one of "
                "another space, which it may not choose; name one for all by `to`"
            )
        return "nothing was made of the letters" if self.kept else "the queue has no letters"


class DryRun(msgspec.Struct, frozen=True):
    """Result of a dry run: sample letters, and the messages that would be published."""

    before: Sequence[Mapping[str, object]]
    after: Sequence[Mapping[str, object]]
    redriven: RedriveResult


def check_transform(change: LetterTransform) -> None:
    """Validate a transformation as far as possible without Spark.

    Raises:
        Invalid: both sql and python are given, or the function's file does not exist.
    """
    if change.sql and change.python:
        raise Invalid("give sql, or python; a change is one or the other", field="python")
    if change.python:
        find_function(change.python)


def transform_letters(frame: DataFrame, change: LetterTransform) -> DataFrame:
    """Apply the transformation to letters, and validate the result.

    Raises:
        Invalid: the result lacks a column, or has one that messages do not have.
    """
    check_transform(change)
    made = frame
    if change.sql:
        made = run_sql(frame, change.sql)
    elif change.python:
        made = run_python(frame, change.python)
    wanted = ("shard", "seq") if change.to else ("shard", "seq", "dead_queue")
    for name in wanted:
        if name not in made.columns:
            raise Invalid(
                f"what is made of letters lacks the column {name!r}, which says of which letter "
                "it is; keep it in the query",
                field="sql" if change.sql else "python",
            )
    # Columns about a letter's death are for the query only.
    told = ("shard", "seq", "timestamp", *(name for name in _SCHEMA.names if "dead_" in name))
    carried = [name for name in made.columns if name not in told]
    check_schema(made.select(*carried).schema)
    target = F.lit(change.to) if change.to else F.col("dead_queue")
    return made.select("shard", "seq", target.alias("_to"), *carried)


def try_transform(site: JobContext, queue: sync.Queue, change: LetterTransform) -> DryRun:
    """Return the result that a redrive would have, without leasing or changing anything.

    Raises:
        Invalid, NotFound: as `redrive`.
    """
    with (
        queue.snapshot(seconds=limits.JOB_PIN_SECONDS) as snapshot,
        site.asking("the change", "sql"),
    ):
        frame = letters_of(site, queue, write_snapshot_token(snapshot._twin))
        made = transform_letters(frame, change).cache()
        try:
            counts = _counts(made)
            for target in counts:
                if target:
                    find_target(site, queue, target)
            shown = limits.REDRIVE_JOB_SHOWN
            aimed = made.where("_to != ''")
            after = aimed.orderBy("shard", "seq").limit(shown)
            wanted = frame.join(after.select("shard", "seq").distinct(), ["shard", "seq"])
            moved = _judge(frame, aimed)
            published = sum(count for target, count in counts.items() if target)
            return DryRun(
                wanted.orderBy("shard", "seq").toArrow().to_pylist(),
                after.withColumnRenamed("_to", "to").toArrow().to_pylist(),
                RedriveResult(moved, published, frame.count() - moved, counts.get("", 0)),
            )
        finally:
            made.unpersist()


def _counts(made: DataFrame) -> dict[str, int]:
    """Return the number of messages for each target; those without one are under ""."""
    found: dict[str, int] = {}
    for target, count in made.groupBy("_to").count().collect():
        found[target or ""] = found.get(target or "", 0) + int(count)
    return found


def _judge(letters: DataFrame, aimed: DataFrame) -> int:
    """Return the number of letters that valid messages are made of.

    Raises:
        Invalid: a message belongs to no letter. An invalid message fails Spark's task.
    """
    pairs = aimed.drop("_to").mapInArrow(_check_part, "shard int, seq bigint").distinct()
    known = letters.select("shard", "seq", F.lit(1).alias("letter"))
    [found] = (
        pairs.join(known, ["shard", "seq"], "left")
        .agg(
            F.count(F.lit(1)).alias("moved"),
            F.min(F.when(F.col("letter").isNull(), F.struct("shard", "seq"))).alias("strange"),
        )
        .collect()
    )
    if found["strange"] is not None:
        raise _strange((found["strange"]["shard"], found["strange"]["seq"]))
    return int(found["moved"])


def _strange(pair: tuple[int, int]) -> Invalid:
    return Invalid(
        f"the change made something of shard and seq {pair}, which is no letter; leave both as "
        "they are",
        field="sql",
    )


def find_target(site: JobContext, queue: sync.Queue, name: str) -> sync.Queue:
    """Return the target queue of letters, given as name or space/name.

    Raises:
        NotFound: it does not exist.
        Invalid: it is the queue of the letters itself.
    """
    space, slash, rest = name.partition("/")
    found = site.m.find(rest if slash else name, space=space if slash else queue.space)
    if found.shards.ids == queue.shards.ids:
        raise Invalid("a queue cannot be redriven to itself", field="to")
    return found


def letters_of(site: JobContext, queue: sync.Queue, ticket: str) -> DataFrame:
    """Return the dead letters of a snapshot with the columns of queries."""
    rows = site.read(queue, view="changes", endingSnapshot=ticket).where("op = 'put'")

    def header(name: str) -> Column:
        found = F.expr(f"try_element_at(filter(headers, h -> h.key = '{name}'), -1).value")
        return found.cast("string")

    def told(name: str) -> Column:
        return header(f"{PREFIX}{name}")

    # As `client/dead_letter_headers.py` has it, of a letter in a frame.
    of_pipeline = told("queue").isNull() & header(letter.QUEUE).isNotNull()
    is_near = F.split_part(header(letter.QUEUE), F.lit("/"), F.lit(1)) == queue.space
    is_delete = of_pipeline & (header(letter.OP) == letter.DELETE.decode())
    is_delete = F.coalesce(is_delete, F.lit(False))
    kept = F.filter("headers", lambda pair: ~pair["key"].startswith(PREFIX))
    own = F.filter(kept, lambda pair: ~pair["key"].isin(*letter.OF_PIPELINES))
    return rows.select(
        "shard",
        "seq",
        "key",
        F.when(~is_delete, F.col("value")).alias("value"),
        F.when(of_pipeline, own).otherwise(kept).alias("headers"),
        F.when(is_delete, DELETE).otherwise(PUT).alias("op"),
        "timestamp",
        F.coalesce(told("queue"), F.when(of_pipeline & is_near, header(letter.QUEUE))).alias(
            "dead_queue"
        ),
        F.when(of_pipeline, header(letter.BROKEN)).otherwise(told("reason")).alias("dead_reason"),
        told("deliveries").try_cast("bigint").alias("dead_deliveries"),
        told("failures").try_cast("bigint").alias("dead_failures"),
        _first_time(told("time")).alias("dead_time"),
    )


def _first_time(told: Column) -> Column:
    """Return the column that corresponds to `first_ms`."""
    is_time = told.rlike(f"^[0-9]{{1,{TIME_DIGITS}}}$")
    return F.when(is_time, F.timestamp_millis(told.cast("bigint"))).otherwise(F.col("timestamp"))


def redrive(site: JobContext, queue: sync.Queue, change: LetterTransform) -> RedriveResult:
    """Move dead letters in batches of some thousands, each in one transaction.

    It may be interrupted at any time: moved letters stay moved, and the same call moves the rest.

    Raises:
        Invalid: the transformation is invalid; nothing was moved.
        NotFound: a target queue does not exist.
        Stale, Gone: another worker has taken the letters; run it again.
    """
    with site.asking("the change", "sql"):
        transform_letters(site.spark.createDataFrame([], COLUMNS), change)
    with queue.snapshot(seconds=limits.JOB_PIN_SECONDS) as snapshot:
        boundaries = snapshot.boundaries
    moving = _Moving(site, queue, change, boundaries)
    try:
        while moving.step():
            pass
    finally:
        moving.close()
    return moving.done


class _Moving:
    """A running redrive."""

    def __init__(
        self,
        site: JobContext,
        queue: sync.Queue,
        change: LetterTransform,
        boundaries: Sequence[int],
    ) -> None:
        self._site = site
        self._queue = queue
        self._change = change
        self._boundaries = boundaries
        self._family = f"redrive.{queue.shards.first}."
        """Prefix of the stages of all redrives of this queue."""
        self._prefix = f"{self._family}{uuid4().hex[:16]}."
        self._held = HeldLeases(queue)
        self._vain = 0
        """Number of consecutive batches without letters from before the start."""
        self._targets: dict[str, sync.Queue] = {}
        self.done = RedriveResult(0, 0, 0)

    def step(self) -> bool:
        """Move one batch; return False if no letter from before the start is left."""
        self._held.renew()
        leases = self._queue.lease(
            limits.REDRIVE_JOB_MESSAGES_MAX, seconds=limits.REDRIVE_JOB_LEASE_SECONDS
        )
        self._held.add(leases)
        lot = {_place(self._queue, lease): lease for lease in leases}
        lot = {
            (shard, seq): lease
            for (shard, seq), lease in lot.items()
            if seq <= self._boundaries[shard]
        }
        if not lot:
            # Leases visit the shards in turns: after one round, no shard has an old letter left.
            self._vain += 1
            return bool(leases) and self._vain < len(self._boundaries)
        self._vain = 0
        moved, counts = self._move(lot)
        self._held.drop(moved)
        self.done = RedriveResult(
            self.done.letters + len(moved),
            self.done.published + sum(count for target, count in counts.items() if target),
            self.done.kept + len(lot) - len(moved),
            self.done.aimless + counts.get("", 0),
        )
        return True

    def _move(
        self, lot: Mapping[tuple[int, int], sync.Lease]
    ) -> tuple[list[sync.Lease], dict[str, int]]:
        """Transform letters, publish the results and settle the letters, in one transaction.

        Returns the settled leases, and the number of messages for each target.
        """
        with self._site.asking("the change", "sql"):
            frame = self._site.spark.createDataFrame(_table(lot, self._queue.space))
            made = transform_letters(frame, self._change).cache()
            try:
                counts = _counts(made)
                staged = {target: self._stage(made, target) for target in counts if target}
            finally:
                made.unpersist()
        ended = {pair for pairs, _ in staged.values() for pair in pairs}
        strange = ended - set(lot)
        if strange:
            raise _strange(min(strange))
        leases = [lot[pair] for pair in sorted(ended)]
        if leases:
            with self._site.m.transaction() as transaction:
                for target, (_, stages) in staged.items():
                    transaction.publish_staged(self._target(target), stages)
                transaction.settle(leases)
        return leases, counts

    def _target(self, name: str) -> sync.Queue:
        if name not in self._targets:
            self._targets[name] = find_target(self._site, self._queue, name)
        return self._targets[name]

    def _stage(self, made: DataFrame, target: str) -> tuple[set[tuple[int, int]], list[str]]:
        """Stage the messages for a target in Spark's executors; return their letters and stages."""
        address = Address.told(self._site.options(self._target(target)))
        told = (
            made.where(F.col("_to") == target)
            .drop("_to")
            .mapInArrow(partial(_stage_part, address, self._prefix), _STAGED)
            .toArrow()
        )
        stages = dict.fromkeys(str(name) for name in told["stage"].to_pylist() if name)
        return set(_pairs(told)), list(stages)

    def close(self) -> None:
        """Release the held leases, and drop unpublished stages.

        If no letter is left, drop stages of other redrives, too: those cannot settle their letters
        any more.
        """
        self._held.give_back()
        for target in self._targets.values():
            names = [name for name in target.stages() if name.startswith(self._family)]
            is_over = not self._queue.stats()["live"]
            for name in names:
                if is_over or name.startswith(self._prefix):
                    target.drop_stage(name)


def _place(queue: sync.Queue, lease: sync.Lease) -> tuple[int, int]:
    return queue.shards.number(grant_of(lease._twin).shard), seq_of(lease._twin)


def _table(lot: Mapping[tuple[int, int], sync.Lease], space: str) -> pa.Table:
    rows = [
        _row(shard, seq, lease, space) for (shard, seq), lease in sorted(lot.items(), key=_first)
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _first(item: tuple[tuple[int, int], sync.Lease]) -> tuple[int, int]:
    return item[0]


def _row(shard: int, seq: int, lease: sync.Lease, space: str) -> dict[str, object]:
    told = {name: value.decode(errors="replace") for name, value in lease.headers}
    source = letter.source_of(lease.headers, space)
    is_delete = letter.is_delete(lease.headers)
    reason = letter.BROKEN if letter.is_of_pipeline(lease.headers) else f"{PREFIX}reason"
    return {
        "shard": shard,
        "seq": seq,
        "key": lease.key,
        "value": None if is_delete else lease.body,
        "headers": [
            {"key": name, "value": value} for name, value in letter.returning(lease.headers)
        ],
        "op": DELETE if is_delete else PUT,
        "timestamp": lease.time_ms * 1000,
        "dead_queue": None if source is None else "/".join(source),
        "dead_reason": told.get(reason),
        "dead_deliveries": _number(told.get(f"{PREFIX}deliveries")),
        "dead_failures": _number(told.get(f"{PREFIX}failures")),
        "dead_time": first_ms(lease.headers, lease.time_ms) * 1000,
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _pairs(rows: pa.RecordBatch | pa.Table) -> Iterator[tuple[int, int]]:
    """Yield shard and seq of the rows that have both."""
    for shard, seq in zip(rows["shard"].to_pylist(), rows["seq"].to_pylist(), strict=True):
        if shard is not None and seq is not None:
            yield int(shard), int(seq)


def _message(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of messages, without shard and seq.

    Raises:
        Invalid: a row belongs to no letter.
    """
    if batch["shard"].null_count or batch["seq"].null_count:
        raise Invalid(
            "the change made something whose shard or seq is null, so that it is of no letter; "
            "leave both as they are",
            field="sql",
        )
    return batch.drop_columns(["shard", "seq"])


def _check_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Validate rows as staging would, and yield the shard and seq of their letters."""
    for batch in batches:
        to_rows(_message(batch))
        yield batch.select(["shard", "seq"])


def _stage_part(
    address: Address, prefix: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Stage the rows of one task; yield their letters and the stages."""
    pairs: dict[tuple[int, int], None] = {}

    def noted() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            pairs.update(dict.fromkeys(_pairs(batch)))
            yield _message(batch)

    staged = stage_rows(address.reach(), prefix, noted())
    rows: list[dict[str, object]] = [
        {"shard": shard, "seq": seq, "stage": None} for shard, seq in pairs
    ]
    rows += [{"shard": None, "seq": None, "stage": name} for name in staged.stages]
    yield pa.RecordBatch.from_pylist(rows, schema=_STAGED_ARROW)


class _Part(msgspec.Struct):
    """Seqs held of one lease call."""

    seqs: BitMap64
    since: float
    """Monotonic time of the lease or its last extension."""


class HeldLeases:
    """Leased messages of a queue that the job keeps, and extends, without their bodies."""

    def __init__(self, queue: sync.Queue) -> None:
        self._queue = queue
        self._parts: dict[LeaseGroup, _Part] = {}

    def __len__(self) -> int:
        return sum(len(part.seqs) for part in self._parts.values())

    def add(self, leases: Iterable[sync.Lease]) -> None:
        """Add leases to those held."""
        now = monotonic()
        for lease in leases:
            part = self._parts.setdefault(grant_of(lease._twin), _Part(BitMap64(), now))
            part.seqs.add(seq_of(lease._twin))

    def drop(self, leases: Iterable[sync.Lease]) -> None:
        """Remove leases that have ended."""
        for lease in leases:
            grant = grant_of(lease._twin)
            part = self._parts[grant]
            part.seqs.discard(seq_of(lease._twin))
            if not part.seqs:
                del self._parts[grant]

    def renew(self, now: float | None = None) -> None:
        """Extend the leases past half of their duration."""
        now = monotonic() if now is None else now
        for grant, part in self._parts.items():
            if now - part.since > grant.lease_ms / 2000:
                self._queue._portal.run(partial(_extend, grant, part.seqs))
                part.since = now

    def give_back(self) -> None:
        """Release all leases without counting a delivery."""
        while self._parts:
            grant, part = self._parts.popitem()
            self._queue._portal.run(partial(_release, grant, part.seqs))


async def _extend(grant: LeaseGroup, seqs: BitMap64) -> None:
    command = Extend(grant.lease, seqs, grant.history, grant.lease_ms)
    grant.extended(await grant.engine.ask(grant.shard, command, Outcome))


async def _release(grant: LeaseGroup, seqs: BitMap64) -> None:
    command = grant.take_back(seqs, unseen=True)
    if command.seqs:
        await grant.engine.ask(grant.shard, command, Outcome)
