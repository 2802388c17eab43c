"""The contract of sinks: run it over your own implementation of `millrace.sinks.base`.

A rig has a sink on an empty place, and reads that place back. `CHECKS` are functions that take a
new rig each; `check_sink` runs them all. The rows are texts, as in
`SCHEMA`: a sink with a key has the key ("key",), and is read back as one row per key.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa

from millrace.errors import Refused, Stale
from millrace.sinks.base import DELETE, PUT, Held, Sink, Task
from millrace.sinks.boundary import Boundary, Place, Span, begins
from millrace.sinks.lane import lanes_of

_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("seq", pa.int64(), nullable=False),
    pa.field("key", pa.string(), nullable=False),
    pa.field("value", pa.string()),
    pa.field("op", pa.string(), nullable=False),
]
SCHEMA = pa.schema(_FIELDS)
"""Columns of the test rows."""

TOKEN_BYTES_MAX = 16 * 1024
"""Maximum size of the token from `stage` to `commit`, independent of the number of rows."""

FLOW = "orders/sink"


class Row(NamedTuple):
    """A row as read back. A sink with a key has no deletes: they were applied."""

    key: str
    value: str | None
    op: str = PUT


class SinkChange(NamedTuple):
    """A row as it is written to the sink."""

    key: str
    value: str | None
    op: str = PUT
    seq: int = 0


class Rig(Protocol):
    """A sink on an empty place, and a reader of that place."""

    @property
    def sink(self) -> Sink:
        """The sink under test; it is pickled for every run, as for another process."""
        ...

    @property
    def is_early(self) -> bool:
        """True if rows may be visible before their commit, because the place has no transactions.

        Such a sink must pass all other checks: it validates a span when it is staged.
        """
        ...

    def rows(self) -> Iterable[Row]:
        """Return the rows that a reader of the place sees, in any order."""
        ...

    def close(self) -> None:
        """Close the rig, and remove its place."""
        ...


def at(*seqs: int, queue: str = "orders", shards: Sequence[int] = (), history: str = "aa") -> Place:
    """Return a place in a queue."""
    ids = tuple(shards) or tuple(range(7, 7 + len(seqs)))
    return Place("default", queue, ids, history, seqs)


def span(after: int, upto: int) -> Span:
    """Return a span of the queue that most checks read."""
    return Span(Boundary((at(after),)), Boundary((at(upto),)))


def puts(*keys: str, value: str = "1", after: int = 0) -> list[SinkChange]:
    """Return puts of these keys, at the seqs after `after`."""
    return [SinkChange(key, f"{key}{value}", PUT, seq) for seq, key in enumerate(keys, after + 1)]


def batch_of(changes: Sequence[SinkChange]) -> pa.RecordBatch:
    """Return the test rows as a record batch."""
    names = {"seq": 3, "key": 0, "value": 1, "op": 2}
    return pa.RecordBatch.from_arrays(
        [
            pa.array([change[at] for change in changes], SCHEMA.field(name).type)
            for name, at in names.items()
        ],
        schema=SCHEMA,
    )


class SinkRun:
    """A run over a sink: opens the flow, and verifies the rows read back."""

    _parts = 0

    def __init__(self, rig: Rig, flow: str = FLOW) -> None:
        self.rig = rig
        self.sink: Sink = pickle.loads(pickle.dumps(rig.sink))
        self.sink.check(SCHEMA)
        self.flow = flow
        self.held: Held = self.sink.open(flow, SCHEMA)
        assert self.held.flow == flow

    @property
    def at(self) -> Boundary | None:
        """The boundary of the sink, as of the last open or commit."""
        return self.held.boundary

    def stage(self, piece: Span, batches: Iterable[pa.RecordBatch]) -> bytes:
        """Stage one part."""
        SinkRun._parts += 1
        sink: Sink = pickle.loads(pickle.dumps(self.sink))
        token = sink.stage(Task(self.held, piece, f"part-{SinkRun._parts}"), batches)
        assert len(token) <= TOKEN_BYTES_MAX, "what commit is handed is little"
        return token

    def stage_all(self, piece: Span, changes: Sequence[SinkChange], parts: int = 1) -> list[bytes]:
        """Stage rows in several parts, by lane; return the tokens."""
        if not changes:
            return []
        batch = batch_of(changes)
        lanes = self.sink.lanes
        if lanes:
            homes = [int(lane) % parts for lane in lanes_of(batch, self.sink.key, lanes)]
        else:
            homes = [number % parts for number in range(len(changes))]
        pieces = [
            [change for change, home in zip(changes, homes, strict=True) if home == part]
            for part in range(parts)
        ]
        return [self.stage(piece, [batch_of(rows)]) for rows in pieces]

    def commit(self, piece: Span, staged: Sequence[bytes]) -> None:
        """Commit staged parts, and verify the returned boundary."""
        self.held = self.sink.commit(self.held, piece, staged)
        assert self.held.boundary is not None
        assert self.held.boundary.covers(piece.upto), "the boundary is told after a commit"

    def carry(self, piece: Span, changes: Sequence[SinkChange], parts: int = 1) -> None:
        """Stage and commit rows of a span."""
        self.commit(piece, self.stage_all(piece, changes, parts))

    def sees(self, *changes: Sequence[SinkChange]) -> None:
        """Verify that a reader sees the result of these spans, each applied once."""
        seen, expected = sorted(self.rig.rows(), key=repr), sorted(self._left(changes), key=repr)
        assert seen == expected, f"seen: {seen[:20]}, expected: {expected[:20]}"

    def _left(self, spans: Sequence[Sequence[SinkChange]]) -> Iterator[Row]:
        if not self.sink.key:
            return (Row(*change[:3]) for changes in spans for change in changes)
        left: dict[str, Row] = {}
        for changes in spans:
            for change in sorted(changes, key=lambda each: each.seq):
                left.pop(change.key, None)
                if change.op != DELETE:
                    left[change.key] = Row(change.key, change.value)
        return iter(left.values())


__all__ = ["CHECKS", "SCHEMA", "Rig", "Row", "check_sink"]


def check_sink(make: Callable[[], Rig]) -> None:
    """Run all checks; raise AssertionError if the sink breaks its contract. `make` returns rigs."""
    for check in CHECKS:
        rig = make()
        check(rig)
        rig.close()


def _refused(kind: type[Refused], attempt: Callable[[], object], why: str) -> None:
    try:
        attempt()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected: {why}")


# --- The checks -----------------------------------------------------------------------------------


def check_empty(rig: Rig) -> None:
    """An empty place has no boundary, even after several opens."""
    first, second = SinkRun(rig), SinkRun(rig)
    assert first.at is None
    assert second.at is None
    assert second.held.fence > first.held.fence, "the fence rises with every opening"
    second.sees([])


def check_together(rig: Rig) -> None:
    """Rows and boundary are committed together, and visible after a new open."""
    run, rows = SinkRun(rig), puts("a", "b")
    run.carry(span(0, 5), rows)
    assert run.at == span(0, 5).upto
    run.sees(rows)
    again = SinkRun(rig)
    assert again.at == span(0, 5).upto
    assert again.held.fence > run.held.fence
    again.sees(rows)


def check_going_on(rig: Rig) -> None:
    """Spans are carried one after the other, by one run and by later ones."""
    carried: list[list[SinkChange]] = []
    run = SinkRun(rig)
    for number in range(10):
        after, upto = number * 10, number * 10 + 10
        rows = puts(f"k{number % 4}", f"n{number}", value=f"-{number}", after=after)
        run.carry(span(after, upto), rows)
        carried.append(rows)
        if number % 3 == 2:
            run = SinkRun(rig)
            assert run.at == span(after, upto).upto
    run.sees(*carried)


def check_repeats(rig: Rig) -> None:
    """A span is applied once, whichever run repeats it."""
    run, first, second = SinkRun(rig), puts("a", "b"), puts("a", "c", value="2", after=5)
    staged = run.stage_all(span(0, 5), first)
    run.commit(span(0, 5), staged)
    run.commit(span(0, 5), staged)
    run.carry(span(0, 5), first)
    run.sees(first)
    run.carry(span(5, 9), second)
    for _ in range(2):
        for after, upto, rows in ((0, 5, first), (5, 9, second), (0, 9, [*first, *second])):
            run.carry(span(after, upto), rows)
            assert run.at == span(5, 9).upto, "a repeat does not take the boundary back"
            run.sees(first, second)
        run = SinkRun(rig)
    assert SinkRun(rig).at == span(5, 9).upto


def check_unheard(rig: Rig) -> None:
    """A run that missed the result of its commit repeats it, and continues with its result."""
    run, first, second = SinkRun(rig), puts("a", "b"), puts("a", "c", value="2", after=5)
    before, staged = run.held, run.stage_all(span(0, 5), first)
    run.commit(span(0, 5), staged)
    run.held = before
    run.carry(span(0, 5), first)
    assert run.at == span(0, 5).upto
    run.sees(first)
    run.carry(span(5, 9), second)
    run.sees(first, second)
    assert SinkRun(rig).at == span(5, 9).upto


def check_overlaps(rig: Rig) -> None:
    """A span that overlaps or leaves a gap is refused and changes nothing."""
    run, rows = SinkRun(rig), puts("a", "b")
    run.carry(span(0, 5), rows)
    for after, upto in ((0, 9), (4, 9), (6, 9), (9, 10)):
        wrong = puts("a", "z", value="wrong", after=upto - 2)
        attempt = partial(run.carry, span(after, upto), wrong)
        _refused(Stale, attempt, f"{after} to {upto} does not go on at 5")
        run.sees(rows)
    assert SinkRun(rig).at == span(0, 5).upto


def check_uncommitted(rig: Rig) -> None:
    """Staged but uncommitted rows are invisible, and do not block later commits."""
    run, first, second = SinkRun(rig), puts("a", "b"), puts("b", "c", value="2", after=5)
    run.carry(span(0, 5), first)
    run.stage_all(span(5, 9), second)
    if not rig.is_early:
        run.sees(first)
    again = SinkRun(rig)
    assert again.at == span(0, 5).upto
    again.carry(span(5, 9), second)
    again.sees(first, second)


def check_attempts(rig: Rig) -> None:
    """Of rows staged twice, as two parts, only those of the committed part count."""
    run, rows = SinkRun(rig), puts("a", "b")
    run.stage_all(span(0, 5), rows)
    token = run.stage_all(span(0, 5), rows)
    run.commit(span(0, 5), token)
    run.sees(rows)


def check_overtaken(rig: Rig) -> None:
    """A run with an old fence commits nothing, not even parts staged before."""
    zombie, rows = SinkRun(rig), puts("a", "b")
    staged = zombie.stage_all(span(0, 5), rows)
    run = SinkRun(rig)
    _refused(Stale, lambda: zombie.commit(span(0, 5), staged), "somebody else has opened the flow")
    if not rig.is_early:
        run.sees([])
    run.carry(span(0, 5), rows)
    _refused(Stale, lambda: zombie.carry(span(5, 9), []), "also when it would go on")
    more = puts("c", after=5)
    run.carry(span(5, 9), more)
    run.sees(rows, more)
    assert SinkRun(rig).at == span(5, 9).upto


def check_late(rig: Rig) -> None:
    """A run with an old fence neither reverts rows nor restores deleted ones."""
    zombie, first = SinkRun(rig), puts("a", "b")
    second = [
        SinkChange("a", "new", seq=6),
        SinkChange("b", None, DELETE, 7),
        SinkChange("d", "d", seq=8),
    ]
    before = zombie.stage_all(span(0, 5), first)
    run = SinkRun(rig)
    run.carry(span(0, 5), first)
    run.carry(span(5, 9), second)
    attempts: list[Callable[[], None]] = [
        lambda: zombie.commit(span(0, 5), before),
        lambda: zombie.carry(span(0, 5), first),
        lambda: zombie.carry(span(0, 4), puts("b", value="old")),
    ]
    for attempt in attempts:
        # The attempt is also a repeat; success and refusal are both correct.
        with suppress(Stale):
            attempt()
        run.sees(first, second)
    _refused(Stale, lambda: zombie.carry(span(9, 12), []), "it would go on, and was overtaken")
    run.carry(span(9, 10), puts("e"))
    run.sees(first, second, puts("e"))


def check_two_flows(rig: Rig) -> None:
    """Flows that share a place have their own boundaries and fences."""
    one, two = SinkRun(rig, "one/sink"), SinkRun(rig, "two/sink")
    one.carry(span(0, 5), puts("a"))
    assert SinkRun(rig, "three/sink").at is None
    two.carry(span(0, 7), puts("b"))
    waiting = two.stage_all(span(7, 9), puts("d"))
    one = SinkRun(rig, "one/sink")
    assert one.at == span(0, 5).upto
    one.sink.clean(one.held)
    one.carry(span(5, 6), puts("c"))
    two.commit(span(7, 9), waiting)
    one.sees(puts("a"), puts("b"), puts("c"), puts("d"))
    assert SinkRun(rig, "two/sink").at == span(7, 9).upto


def check_deletes(rig: Rig) -> None:
    """Deletes are applied by key, or kept as change rows."""
    run, first = SinkRun(rig), puts("a", "b", "c")
    second = [SinkChange("b", None, DELETE, 4), SinkChange("unknown", None, DELETE, 5)]
    third = [SinkChange("b", "again", PUT, 6), SinkChange("c", None, DELETE, 7)]
    run.carry(span(0, 3), first)
    run.carry(span(3, 5), second)
    run.sees(first, second)
    run.carry(span(5, 7), third)
    run.sees(first, second, third)


def check_newest(rig: Rig) -> None:
    """Of several rows of one key in a span the newest counts, in any order."""
    rows = [
        SinkChange("a", "3", seq=3),
        SinkChange("a", "1", seq=1),
        SinkChange("b", None, DELETE, 9),
        SinkChange("b", "8", seq=8),
        SinkChange("c", "5", seq=5),
        SinkChange("c", None, DELETE, 4),
        SinkChange("a", "2", seq=2),
    ]
    run = SinkRun(rig)
    run.carry(span(0, 9), rows)
    run.sees(rows)
    more = [
        SinkChange("c", "12", seq=12),
        SinkChange("a", "11", seq=11),
        SinkChange("c", "10", seq=10),
    ]
    run.commit(span(9, 12), [run.stage(span(9, 12), (batch_of([row]) for row in more))])
    run.sees(rows, more)
    last = [row._replace(value=row.value and f"{row.value}-", seq=row.seq + 20) for row in rows]
    run.carry(span(12, 40), last, parts=3)
    run.sees(rows, more, last)


def check_parts(rig: Rig) -> None:
    """A span has parts in any order; one may be empty."""
    run, rows = SinkRun(rig), puts(*(f"k{number}" for number in range(50)))
    staged = run.stage_all(span(0, 50), rows, parts=4)
    staged.append(run.stage(span(0, 50), []))
    run.commit(span(0, 50), staged[::-1])
    run.sees(rows)


def check_nothing(rig: Rig) -> None:
    """A span without rows moves the boundary."""
    run = SinkRun(rig)
    run.carry(span(0, 5), [])
    assert SinkRun(rig).at == span(0, 5).upto
    run = SinkRun(rig)
    run.commit(span(5, 6), [run.stage(span(5, 6), [])])
    run.commit(span(6, 7), [run.stage(span(6, 7), [batch_of([])])])
    run.carry(span(7, 9), puts("a"))
    run.sees(puts("a"))
    assert SinkRun(rig).at == span(7, 9).upto


def check_batches(rig: Rig) -> None:
    """Batches are consumed one by one, as a stream."""
    run = SinkRun(rig)
    rows = puts(*(f"key {number}" for number in range(2000)))
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for start in range(0, len(rows), 100):
            taken += 1
            yield batch_of(rows[start : start + 100])

    token = run.stage(span(0, 2000), batches())
    assert taken == 20
    run.commit(span(0, 2000), [token])
    run.sees(rows)


def check_words(rig: Rig) -> None:
    """Any text may be a key or a value."""
    words = [
        "",
        " ",
        "a b",
        "a\tb\n",
        "\\N",
        "'; drop table t; --",
        '"',
        "{key}",
        "100%",
        "a/b#c?d",
    ]
    words += ["ü", "\U0001f40c", "_id", "null", "x" * 300]
    rows = [SinkChange(f"key {word}", word, PUT, number) for number, word in enumerate(words, 1)]
    run = SinkRun(rig)
    run.carry(span(0, 99), rows)
    run.sees(rows)


def check_places(rig: Rig) -> None:
    """A boundary of several queues and shards is compared place by place, not by its sum."""

    def cut(one: tuple[int, int], two: int) -> Boundary:
        return Boundary((at(*one), at(two, queue="items", shards=(99,))))

    run, rows, more = SinkRun(rig), puts("a"), puts("b")
    run.carry(Span(cut((0, 0), 0), cut((5, 3), 2)), rows)
    for after, upto in (
        (cut((4, 4), 2), cut((6, 4), 2)),
        (cut((5, 3), 1), cut((5, 3), 3)),
        (cut((0, 0), 0), cut((6, 0), 0)),
    ):
        bad = partial(run.carry, Span(after, upto), [])
        _refused(Stale, bad, "it begins elsewhere")
    run.carry(Span(cut((0, 0), 0), cut((5, 0), 2)), [])
    run.carry(Span(cut((5, 3), 2), cut((5, 2**61), 2)), more)
    run.sees(rows, more)
    assert SinkRun(rig).at == cut((5, 2**61), 2)


def check_other_queue(rig: Rig) -> None:
    """Rows of a recreated or restored queue are refused."""
    run, rows = SinkRun(rig), puts("a")
    run.carry(span(0, 5), rows)
    others = [at(9, shards=(70,)), at(9, history="bb"), at(9, queue="other")]
    for place in others:
        upto = Boundary((place,))
        bad = Span(begins(upto), upto)

        _refused(Refused, partial(run.carry, bad, puts("z")), "these are rows of another queue")
        run.sees(rows)
    run.carry(span(5, 6), puts("b"))
    run.sees(rows, puts("b"))


def check_cleaning(rig: Rig) -> None:
    """Cleaning keeps committed rows, and parts that the run itself has staged."""
    SinkRun(rig).stage_all(span(0, 5), puts("a"))
    run, first, second = SinkRun(rig), puts("a", "b"), puts("c")
    run.sink.clean(run.held)
    staged = run.stage_all(span(0, 5), first)
    run.sink.clean(run.held)
    run.commit(span(0, 5), staged)
    run.carry(span(5, 6), second)
    run.sink.clean(run.held)
    run.sees(first, second)
    assert SinkRun(rig).at == span(5, 6).upto


def check_closing(rig: Rig) -> None:
    """A closed sink reconnects when it is used."""
    run = SinkRun(rig)
    run.carry(span(0, 5), puts("a"))
    run.sink.close()
    run.sink.close()
    run.carry(span(5, 6), puts("b"))
    again = SinkRun(rig)
    again.sink.close()
    again.carry(span(6, 7), puts("c"))
    again.sees(puts("a"), puts("b"), puts("c"))


def check_only_puts(rig: Rig) -> None:
    """Without the column `op` every row is a put; without `seq` the later row is the newer."""
    sink = rig.sink
    schema = pa.schema([field for field in SCHEMA if field.name in ("key", "value")])
    sink.check(schema)
    held = sink.open(FLOW, schema)
    batch = batch_of([*puts("a", "b"), *puts("c")]).select(["key", "value"])
    token = sink.stage(Task(held, span(0, 5), "only-puts"), [batch])
    sink.commit(held, span(0, 5), [token])
    assert sorted(row[:2] for row in rig.rows()) == [("a", "a1"), ("b", "b1"), ("c", "c1")]


def check_missing(rig: Rig) -> None:
    """Rows without the columns of the key are refused before anything is written."""
    sink = rig.sink
    if sink.key:
        short = pa.schema([field for field in SCHEMA if field.name not in sink.key])
        _refused(Refused, lambda: sink.check(short), "the key is missing")


def check_null_keys(rig: Rig) -> None:
    """A row whose key is null is refused, put or delete, and nothing of its span counts."""
    if not rig.sink.key:
        return
    first = _nullable([("a", "a1", PUT, 1), (None, "n2", PUT, 2), (None, "n3", PUT, 3)])
    second = _nullable([("b", "b1", PUT, 1), (None, None, DELETE, 2)])
    for batches in ([first], [second], [_nullable([("a", "a1", PUT, 1)]), second]):
        run = SinkRun(rig)
        attempt = partial(_carry, run, batches)
        _refused(Refused, attempt, "null names no row: rows without a key would replace each other")
        assert SinkRun(rig).at is None, "a span that was refused does not move the boundary"
        if not rig.is_early:
            run.sees([])
    run, rows = SinkRun(rig), puts("a", "b")
    run.carry(span(0, 5), rows)
    run.sees(rows)


def check_empty_keys(rig: Rig) -> None:
    """An empty text is a key: stored or refused, never treated as null or dropped."""
    run, rows = SinkRun(rig), [SinkChange("", "empty", seq=1), *puts("a", after=1)]
    try:
        run.carry(span(0, 5), rows)
    except Refused:
        assert SinkRun(rig).at is None, "a span that was refused does not move the boundary"
        return
    run.sees(rows)


def _nullable(rows: Sequence[tuple[str | None, str | None, str, int]]) -> pa.RecordBatch:
    """Return test rows with nullable keys as a record batch."""
    names = {"key": 0, "value": 1, "op": 2, "seq": 3}
    fields = [SCHEMA.field(name).with_nullable(True) for name in SCHEMA.names]
    columns = [pa.array([row[names[field.name]] for row in rows], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _carry(run: SinkRun, batches: Sequence[pa.RecordBatch]) -> None:
    run.commit(span(0, 5), [run.stage(span(0, 5), batches)])


CHECKS: tuple[Callable[[Rig], None], ...] = (
    check_empty,
    check_together,
    check_going_on,
    check_repeats,
    check_unheard,
    check_overlaps,
    check_uncommitted,
    check_attempts,
    check_overtaken,
    check_late,
    check_two_flows,
    check_deletes,
    check_newest,
    check_parts,
    check_nothing,
    check_batches,
    check_words,
    check_places,
    check_other_queue,
    check_cleaning,
    check_closing,
    check_only_puts,
    check_missing,
    check_null_keys,
    check_empty_keys,
)
"""All checks; each takes a new rig."""
