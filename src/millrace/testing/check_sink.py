"""What every sink must do: run it over your own implementation of `millrace.sinks.base`.

A rig is a sink on an empty place, and eyes: what a reader of that place sees. `CHECKS` are
functions that take a new rig each; `check_sink` runs them all. The rows are texts, as in
`SCHEMA`: a sink with a key has the key ("key",), and is read back as one row per key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa

from millrace.errors import Refused, Stale
from millrace.sinks.base import DELETE, PUT, Task
from millrace.sinks.boundary import Boundary, Span, begins
from millrace.testing.sink_rig import FLOW, SCHEMA, Change, Rig, Row, Run, at, batch_of, puts, span

__all__ = ["CHECKS", "SCHEMA", "Rig", "Row", "check_sink"]


def check_sink(make: Callable[[], Rig]) -> None:
    """Raise AssertionError where the sink breaks its promises; `make` gives new rigs."""
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
    """A place that nothing came to has no boundary, however often it is opened."""
    first, second = Run(rig), Run(rig)
    assert first.at is None
    assert second.at is None
    assert second.held.fence > first.held.fence, "the fence rises with every opening"
    second.sees([])


def check_together(rig: Rig) -> None:
    """Rows and boundary are both there after a commit, also for who opens anew."""
    run, rows = Run(rig), puts("a", "b")
    run.carry(span(0, 5), rows)
    assert run.at == span(0, 5).upto
    run.sees(rows)
    again = Run(rig)
    assert again.at == span(0, 5).upto
    assert again.held.fence > run.held.fence
    again.sees(rows)


def check_going_on(rig: Rig) -> None:
    """Span after span, by one run and by the next ones."""
    carried: list[list[Change]] = []
    run = Run(rig)
    for number in range(10):
        after, upto = number * 10, number * 10 + 10
        rows = puts(f"k{number % 4}", f"n{number}", value=f"-{number}", after=after)
        run.carry(span(after, upto), rows)
        carried.append(rows)
        if number % 3 == 2:
            run = Run(rig)
            assert run.at == span(after, upto).upto
    run.sees(*carried)


def check_repeats(rig: Rig) -> None:
    """A span that was applied is not applied again, whoever brings it."""
    run, first, second = Run(rig), puts("a", "b"), puts("a", "c", value="2", after=5)
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
        run = Run(rig)
    assert Run(rig).at == span(5, 9).upto


def check_unheard(rig: Rig) -> None:
    """Whoever did not hear of their commit makes it again, and goes on with what is told then."""
    run, first, second = Run(rig), puts("a", "b"), puts("a", "c", value="2", after=5)
    before, staged = run.held, run.stage_all(span(0, 5), first)
    run.commit(span(0, 5), staged)
    run.held = before
    run.carry(span(0, 5), first)
    assert run.at == span(0, 5).upto
    run.sees(first)
    run.carry(span(5, 9), second)
    run.sees(first, second)
    assert Run(rig).at == span(5, 9).upto


def check_overlaps(rig: Rig) -> None:
    """What overlaps, or leaves something out, is refused and changes nothing."""
    run, rows = Run(rig), puts("a", "b")
    run.carry(span(0, 5), rows)
    for after, upto in ((0, 9), (4, 9), (6, 9), (9, 10)):
        wrong = puts("a", "z", value="wrong", after=upto - 2)
        attempt = partial(run.carry, span(after, upto), wrong)
        _refused(Stale, attempt, f"{after} to {upto} does not go on at 5")
        run.sees(rows)
    assert Run(rig).at == span(0, 5).upto


def check_uncommitted(rig: Rig) -> None:
    """What was staged and not committed counts for nothing, and does not stand in the way."""
    run, first, second = Run(rig), puts("a", "b"), puts("b", "c", value="2", after=5)
    run.carry(span(0, 5), first)
    run.stage_all(span(5, 9), second)
    if not rig.is_early:
        run.sees(first)
    again = Run(rig)
    assert again.at == span(0, 5).upto
    again.carry(span(5, 9), second)
    again.sees(first, second)


def check_attempts(rig: Rig) -> None:
    """Rows that were staged twice, as two parts, count once: those of the part that is named."""
    run, rows = Run(rig), puts("a", "b")
    run.stage_all(span(0, 5), rows)
    token = run.stage_all(span(0, 5), rows)
    run.commit(span(0, 5), token)
    run.sees(rows)


def check_overtaken(rig: Rig) -> None:
    """Who was overtaken commits nothing, also what was staged before."""
    zombie, rows = Run(rig), puts("a", "b")
    staged = zombie.stage_all(span(0, 5), rows)
    run = Run(rig)
    _refused(Stale, lambda: zombie.commit(span(0, 5), staged), "somebody else has opened the flow")
    if not rig.is_early:
        run.sees([])
    run.carry(span(0, 5), rows)
    _refused(Stale, lambda: zombie.carry(span(5, 9), []), "also when it would go on")
    more = puts("c", after=5)
    run.carry(span(5, 9), more)
    run.sees(rows, more)
    assert Run(rig).at == span(5, 9).upto


def check_late(rig: Rig) -> None:
    """Who wakes after the successor has gone on neither takes rows back nor raises the dead."""
    zombie, first = Run(rig), puts("a", "b")
    second = [Change("a", "new", seq=6), Change("b", None, DELETE, 7), Change("d", "d", seq=8)]
    before = zombie.stage_all(span(0, 5), first)
    run = Run(rig)
    run.carry(span(0, 5), first)
    run.carry(span(5, 9), second)
    attempts: list[Callable[[], None]] = [
        lambda: zombie.commit(span(0, 5), before),
        lambda: zombie.carry(span(0, 5), first),
        lambda: zombie.carry(span(0, 4), puts("b", value="old")),
    ]
    for attempt in attempts:
        # What it brings is a repeat as well; either answer will do.
        with suppress(Stale):
            attempt()
        run.sees(first, second)
    _refused(Stale, lambda: zombie.carry(span(9, 12), []), "it would go on, and was overtaken")
    run.carry(span(9, 10), puts("e"))
    run.sees(first, second, puts("e"))


def check_two_flows(rig: Rig) -> None:
    """Flows that share a place have their own boundaries and fences."""
    one, two = Run(rig, "one/sink"), Run(rig, "two/sink")
    one.carry(span(0, 5), puts("a"))
    assert Run(rig, "three/sink").at is None
    two.carry(span(0, 7), puts("b"))
    waiting = two.stage_all(span(7, 9), puts("d"))
    one = Run(rig, "one/sink")
    assert one.at == span(0, 5).upto
    one.sink.clean(one.held)
    one.carry(span(5, 6), puts("c"))
    two.commit(span(7, 9), waiting)
    one.sees(puts("a"), puts("b"), puts("c"), puts("d"))
    assert Run(rig, "two/sink").at == span(7, 9).upto


def check_deletes(rig: Rig) -> None:
    """Deletes are applied by key, or kept as change rows."""
    run, first = Run(rig), puts("a", "b", "c")
    second = [Change("b", None, DELETE, 4), Change("unknown", None, DELETE, 5)]
    third = [Change("b", "again", PUT, 6), Change("c", None, DELETE, 7)]
    run.carry(span(0, 3), first)
    run.carry(span(3, 5), second)
    run.sees(first, second)
    run.carry(span(5, 7), third)
    run.sees(first, second, third)


def check_newest(rig: Rig) -> None:
    """Of several rows of one key in a span the newest counts, in whatever order they come."""
    rows = [
        Change("a", "3", seq=3),
        Change("a", "1", seq=1),
        Change("b", None, DELETE, 9),
        Change("b", "8", seq=8),
        Change("c", "5", seq=5),
        Change("c", None, DELETE, 4),
        Change("a", "2", seq=2),
    ]
    run = Run(rig)
    run.carry(span(0, 9), rows)
    run.sees(rows)
    more = [Change("c", "12", seq=12), Change("a", "11", seq=11), Change("c", "10", seq=10)]
    run.commit(span(9, 12), [run.stage(span(9, 12), (batch_of([row]) for row in more))])
    run.sees(rows, more)
    last = [row._replace(value=row.value and f"{row.value}-", seq=row.seq + 20) for row in rows]
    run.carry(span(12, 40), last, parts=3)
    run.sees(rows, more, last)


def check_parts(rig: Rig) -> None:
    """A span comes in parts, whose order means nothing; one may be empty."""
    run, rows = Run(rig), puts(*(f"k{number}" for number in range(50)))
    staged = run.stage_all(span(0, 50), rows, parts=4)
    staged.append(run.stage(span(0, 50), []))
    run.commit(span(0, 50), staged[::-1])
    run.sees(rows)


def check_nothing(rig: Rig) -> None:
    """A span without rows moves the boundary."""
    run = Run(rig)
    run.carry(span(0, 5), [])
    assert Run(rig).at == span(0, 5).upto
    run = Run(rig)
    run.commit(span(5, 6), [run.stage(span(5, 6), [])])
    run.commit(span(6, 7), [run.stage(span(6, 7), [batch_of([])])])
    run.carry(span(7, 9), puts("a"))
    run.sees(puts("a"))
    assert Run(rig).at == span(7, 9).upto


def check_batches(rig: Rig) -> None:
    """Batches are taken one by one, as they come."""
    run = Run(rig)
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
    rows = [Change(f"key {word}", word, PUT, number) for number, word in enumerate(words, 1)]
    run = Run(rig)
    run.carry(span(0, 99), rows)
    run.sees(rows)


def check_places(rig: Rig) -> None:
    """A boundary of several queues and shards is compared place by place, not by its sum."""

    def cut(one: tuple[int, int], two: int) -> Boundary:
        return Boundary((at(*one), at(two, queue="items", shards=(99,))))

    run, rows, more = Run(rig), puts("a"), puts("b")
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
    assert Run(rig).at == cut((5, 2**61), 2)


def check_other_queue(rig: Rig) -> None:
    """Rows of a queue that was made anew, or restored, do not go on."""
    run, rows = Run(rig), puts("a")
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
    """Cleaning leaves alone what counts, and what the run itself has staged."""
    Run(rig).stage_all(span(0, 5), puts("a"))
    run, first, second = Run(rig), puts("a", "b"), puts("c")
    run.sink.clean(run.held)
    staged = run.stage_all(span(0, 5), first)
    run.sink.clean(run.held)
    run.commit(span(0, 5), staged)
    run.carry(span(5, 6), second)
    run.sink.clean(run.held)
    run.sees(first, second)
    assert Run(rig).at == span(5, 6).upto


def check_closing(rig: Rig) -> None:
    """A sink that was closed connects again when it is used."""
    run = Run(rig)
    run.carry(span(0, 5), puts("a"))
    run.sink.close()
    run.sink.close()
    run.carry(span(5, 6), puts("b"))
    again = Run(rig)
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
        run = Run(rig)
        attempt = partial(_carry, run, batches)
        _refused(Refused, attempt, "null names no row: rows without a key would replace each other")
        assert Run(rig).at is None, "a span that was refused does not move the boundary"
        if not rig.is_early:
            run.sees([])
    run, rows = Run(rig), puts("a", "b")
    run.carry(span(0, 5), rows)
    run.sees(rows)


def check_empty_keys(rig: Rig) -> None:
    """An empty text is a key: stored as one, or refused, never mistaken for null or left out."""
    run, rows = Run(rig), [Change("", "empty", seq=1), *puts("a", after=1)]
    try:
        run.carry(span(0, 5), rows)
    except Refused:
        assert Run(rig).at is None, "a span that was refused does not move the boundary"
        return
    run.sees(rows)


def _nullable(rows: Sequence[tuple[str | None, str | None, str, int]]) -> pa.RecordBatch:
    """Rows of the suite whose key may be null."""
    names = {"key": 0, "value": 1, "op": 2, "seq": 3}
    fields = [SCHEMA.field(name).with_nullable(True) for name in SCHEMA.names]
    columns = [pa.array([row[names[field.name]] for row in rows], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _carry(run: Run, batches: Sequence[pa.RecordBatch]) -> None:
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
"""Each is given a new rig."""
