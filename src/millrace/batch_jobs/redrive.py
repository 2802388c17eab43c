"""Dead letters back to where they came from, changed by a query or a function on the way.

Rule 1: a letter ends in the transaction that publishes what was made of it: exactly once, whatever
is cut off in between.
Rule 2: what is made of a letter carries its shard and seq. A letter of which nothing was made
stays, as if nobody had looked at it; one of which several were made ends once.
Rule 3: only what was there when it began is moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from millrace import limits, sync
from millrace.batch_jobs.held_leases import Held
from millrace.batch_jobs.site import Site
from millrace.batch_jobs.transform import find_function, run_python, run_sql
from millrace.client import letter
from millrace.client.lease import grant_of, seq_of
from millrace.client.ticket import write_ticket
from millrace.core.bury import PREFIX, TIME_DIGITS, first_ms
from millrace.errors import Invalid
from millrace.sinks.base import DELETE, PUT
from millrace.spark.address import Address
from millrace.spark.contract import check_schema, to_rows
from millrace.spark.staging import stage_rows

COLUMNS = (
    "shard int, seq bigint, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, op string, timestamp timestamp, "
    "dead_queue string, dead_reason string, dead_deliveries bigint, dead_failures bigint, "
    "dead_time timestamp"
)
"""Of a letter, as a query sees it."""

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


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is made of letters."""

    to: str = ""
    """The queue that they go to, as name or space/name; empty: where each came from."""
    sql: str = ""
    """A query over `input`."""
    python: str = ""
    """Or a function of a DataFrame, as file.py:name."""


class Redriven(msgspec.Struct, frozen=True):
    """What became of dead letters."""

    letters: int
    """That were moved, or with a dry run would be."""
    published: int
    """Messages that were made of them."""
    kept: int
    """Letters of which nothing was made, or nothing that has a queue to go to."""
    aimless: int = 0
    """Messages that were made and have none: their dead_queue is not known."""

    @property
    def reason(self) -> str:
        """Why nothing was moved; empty: something was."""
        if self.letters:
            return ""
        if self.aimless:
            return (
                "no letter names the queue that it came from, or a pipeline's letter names one of "
                "another space, which it may not choose; name one for all by `to`"
            )
        return "nothing was made of the letters" if self.kept else "the queue has no letters"


class Tried(msgspec.Struct, frozen=True):
    """What a dry run shows: some letters, and what would be published instead of them."""

    before: Sequence[Mapping[str, object]]
    after: Sequence[Mapping[str, object]]
    redriven: Redriven


def check_change(change: Change) -> None:
    """See what can be seen of a change without Spark.

    Raises:
        Invalid: both ways are given, or the function's file is not there.
    """
    if change.sql and change.python:
        raise Invalid("give sql, or python; a change is one or the other", field="python")
    if change.python:
        find_function(change.python)


def changed(frame: DataFrame, change: Change) -> DataFrame:
    """What the change makes of letters, checked.

    Raises:
        Invalid: it lacks a column, or has one that no queue knows.
    """
    check_change(change)
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
    # What tells of a letter's death is for the query alone.
    told = ("shard", "seq", "timestamp", *(name for name in _SCHEMA.names if "dead_" in name))
    carried = [name for name in made.columns if name not in told]
    check_schema(made.select(*carried).schema)
    target = F.lit(change.to) if change.to else F.col("dead_queue")
    return made.select("shard", "seq", target.alias("_to"), *carried)


def try_out(site: Site, queue: sync.Queue, change: Change) -> Tried:
    """What a redrive would do; nothing is leased, published or ended.

    Raises:
        Invalid, NotFound: as `redrive`.
    """
    with (
        queue.snapshot(seconds=limits.JOB_PIN_SECONDS) as snapshot,
        site.asking("the change", "sql"),
    ):
        frame = letters_of(site, queue, write_ticket(snapshot._twin))
        made = changed(frame, change).cache()
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
            return Tried(
                wanted.orderBy("shard", "seq").toArrow().to_pylist(),
                after.withColumnRenamed("_to", "to").toArrow().to_pylist(),
                Redriven(moved, published, frame.count() - moved, counts.get("", 0)),
            )
        finally:
            made.unpersist()


def _counts(made: DataFrame) -> dict[str, int]:
    """How many messages go to each queue; those that have none are under ""."""
    found: dict[str, int] = {}
    for target, count in made.groupBy("_to").count().collect():
        found[target or ""] = found.get(target or "", 0) + int(count)
    return found


def _judge(letters: DataFrame, aimed: DataFrame) -> int:
    """How many letters messages are made of, which a queue would take.

    Raises:
        Invalid: one is of no letter. What a queue would refuse ends Spark's task.
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


def find_target(site: Site, queue: sync.Queue, name: str) -> sync.Queue:
    """The queue that letters of `queue` go to, named as name or space/name.

    Raises:
        NotFound: there is none.
        Invalid: it is the same queue.
    """
    space, slash, rest = name.partition("/")
    found = site.m.find(rest if slash else name, space=space if slash else queue.space)
    if found.shards.ids == queue.shards.ids:
        raise Invalid("a queue cannot be redriven to itself", field="to")
    return found


def letters_of(site: Site, queue: sync.Queue, ticket: str) -> DataFrame:
    """The dead letters of a snapshot, as a query sees them."""
    rows = site.read(queue, view="changes", endingSnapshot=ticket).where("op = 'put'")

    def header(name: str) -> Column:
        found = F.expr(f"try_element_at(filter(headers, h -> h.key = '{name}'), -1).value")
        return found.cast("string")

    def told(name: str) -> Column:
        return header(f"{PREFIX}{name}")

    # As `client/letter.py` has it, of a letter in a frame.
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
    """As `first_ms`, of a letter in a frame."""
    is_time = told.rlike(f"^[0-9]{{1,{TIME_DIGITS}}}$")
    return F.when(is_time, F.timestamp_millis(told.cast("bigint"))).otherwise(F.col("timestamp"))


def redrive(site: Site, queue: sync.Queue, change: Change) -> Redriven:
    """Move dead letters, some thousands at a time; each lot is one transaction.

    It may be ended at any time: what was moved is moved, and the same call moves the rest.

    Raises:
        Invalid: the change; nothing was moved.
        NotFound: a queue that letters would go to is not there.
        Stale, Gone: somebody else has worked on the letters; run it again.
    """
    with site.asking("the change", "sql"):
        changed(site.spark.createDataFrame([], COLUMNS), change)
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
    """A redrive while it goes on."""

    def __init__(
        self, site: Site, queue: sync.Queue, change: Change, boundaries: Sequence[int]
    ) -> None:
        self._site = site
        self._queue = queue
        self._change = change
        self._boundaries = boundaries
        self._family = f"redrive.{queue.shards.first}."
        """Begins the names of what redrives of this queue stage."""
        self._prefix = f"{self._family}{uuid4().hex[:16]}."
        self._held = Held(queue)
        self._vain = 0
        """Lots in a row that had nothing old in them."""
        self._targets: dict[str, sync.Queue] = {}
        self.done = Redriven(0, 0, 0)

    def step(self) -> bool:
        """Move one lot; False: there is nothing more that was there when it began."""
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
            # Shards take turns: after as many calls none of them has an old letter to give.
            self._vain += 1
            return bool(leases) and self._vain < len(self._boundaries)
        self._vain = 0
        moved, counts = self._move(lot)
        self._held.drop(moved)
        self.done = Redriven(
            self.done.letters + len(moved),
            self.done.published + sum(count for target, count in counts.items() if target),
            self.done.kept + len(lot) - len(moved),
            self.done.aimless + counts.get("", 0),
        )
        return True

    def _move(
        self, lot: Mapping[tuple[int, int], sync.Lease]
    ) -> tuple[list[sync.Lease], dict[str, int]]:
        """Change letters, publish what was made of them and end them; returns the ended ones, and
        how many messages were made for each queue."""
        with self._site.asking("the change", "sql"):
            frame = self._site.spark.createDataFrame(_table(lot, self._queue.space))
            made = changed(frame, self._change).cache()
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
        """Stage in the executors what goes to one queue; tells of which letters, and the stages."""
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
        """Give back what was leased, unseen, and drop stages that nobody published.

        Where no letter is left, also those of others: whoever staged what was made of one cannot
        end it any more.
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
    """The shards and seqs of rows that have them."""
    for shard, seq in zip(rows["shard"].to_pylist(), rows["seq"].to_pylist(), strict=True):
        if shard is not None and seq is not None:
            yield int(shard), int(seq)


def _message(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What is for a queue of what was made of letters.

    Raises:
        Invalid: some of it is of no letter.
    """
    if batch["shard"].null_count or batch["seq"].null_count:
        raise Invalid(
            "the change made something whose shard or seq is null, so that it is of no letter; "
            "leave both as they are",
            field="sql",
        )
    return batch.drop_columns(["shard", "seq"])


def _check_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of which letters rows are; rows that no queue would take are refused, as where they are
    staged."""
    for batch in batches:
        to_rows(_message(batch))
        yield batch.select(["shard", "seq"])


def _stage_part(
    address: Address, prefix: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Stage what one task has; tells of which letters it was, and the stages."""
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
