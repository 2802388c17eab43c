"""Declarations that were changed since they last ran."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millrace import sync
from millrace.errors import Refused, Retry
from millrace.pipeline import (
    DeclaredSink,
    Pipeline,
    Run,
    Setting,
    Step,
    adding_sinks,
    plan_pipeline,
    rewind_pipeline,
    run_pipeline,
)
from millrace.pipeline.change import plan_hash, views_under
from millrace.pipeline.dead import dead_letter_sinks
from millrace.pipeline.declaration import Wrong, check
from millrace.pipeline.record import Book, SinkRecord
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import ledger_at, plain, run_once


def changed(pipeline: Pipeline) -> Pipeline:
    """The same with another setting of its sink."""
    [sink] = pipeline.sinks
    other = msgspec.structs.replace(sink, settings={**sink.settings, "mode": "new"})
    return msgspec.structs.replace(pipeline, sinks=(other,))


def filled(m: sync.Millrace, folder: Path, key: tuple[str, ...]) -> tuple[Pipeline, Ledger]:
    declared, ledger = ledger_at(folder, "one", key=key)
    pipeline = plain(declared)
    queue = m.queue("orders", retention="log")
    queue.publish_many([b"a", b"b"])
    run_once(pipeline, m)
    queue.publish(b"c")
    return pipeline, ledger


def count(ledger: Ledger) -> int:
    return len(ledger.lines())


def test_a_changed_sink_stops_the_run(tmp_path: Path, m: sync.Millrace) -> None:
    pipeline, ledger = filled(m, tmp_path, ())
    with pytest.raises(Refused, match=r"for one was changed.*resume.*backfill.*shadow"):
        run_once(changed(pipeline), m)
    assert count(ledger) == 2
    assert "was changed" in plan_pipeline(changed(pipeline), Setting(millrace=m)).changed
    run_pipeline(changed(pipeline), Setting(millrace=m), once=True, on_change="resume")
    assert count(ledger) == 3
    run_once(changed(pipeline), m)
    assert count(ledger) == 3


def test_a_sink_that_nothing_came_to_may_be_changed(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    pipeline = msgspec.structs.replace(plain(declared), run=Run(patience=0))
    m.queue("orders").publish(b"a")
    down = Path(f"{ledger.path}.down")
    down.touch()
    with pytest.raises(Retry):
        run_once(pipeline, m)
    down.unlink()
    run_once(changed(pipeline), m)
    assert count(ledger) == 1


def test_a_backfill_brings_all_rows_again(tmp_path: Path, m: sync.Millrace) -> None:
    pipeline, ledger = filled(m, tmp_path, ("seq",))
    run_pipeline(changed(pipeline), Setting(millrace=m), once=True, on_change="backfill")
    assert count(ledger) == 3
    assert ledger.boundary("orders/one~1") is not None
    # Whoever still fills it as it was before is over.
    assert ledger.fence("orders/one") == 2


def test_rows_are_not_added_twice(tmp_path: Path, m: sync.Millrace) -> None:
    pipeline, ledger = filled(m, tmp_path, ())
    with pytest.raises(Refused, match="only adds rows"):
        run_pipeline(changed(pipeline), Setting(millrace=m), once=True, on_change="backfill")
    assert count(ledger) == 2


def test_a_shadow_is_filled_beside(tmp_path: Path, m: sync.Millrace) -> None:
    pipeline, ledger = filled(m, tmp_path, ())
    run_pipeline(changed(pipeline), Setting(millrace=m), once=True, on_change="shadow")
    shadow = Ledger(path=f"{ledger.path}_1")
    assert (count(ledger), count(shadow)) == (2, 3)
    m.find("orders").publish(b"d")
    run_once(changed(pipeline), m)
    assert (count(ledger), count(shadow)) == (2, 4)
    # Declared by its own name, it goes on as it is.
    [sink] = changed(pipeline).sinks
    named = msgspec.structs.replace(sink, settings={**sink.settings, "path": shadow.path})
    m.find("orders").publish(b"e")
    run_once(msgspec.structs.replace(pipeline, sinks=(named,)), m)
    assert (count(ledger), count(shadow)) == (2, 5)


def test_only_what_a_sink_is_made_of_matters(tmp_path: Path) -> None:
    declared, _ = ledger_at(tmp_path, "one")
    sink = msgspec.structs.replace(declared, rows="b")
    steps = (
        Step(name="a", sql="SELECT * FROM source"),
        Step(name="b", sql="SELECT * FROM a"),
        Step(name="c", sql="SELECT * FROM b"),
    )
    pipeline = msgspec.structs.replace(plain(sink), steps=steps)
    assert views_under(pipeline, "b") == ("source", "a", "b")
    hash = plan_hash(pipeline, sink)
    other = msgspec.structs.replace(pipeline, steps=(*steps[:2], Step(name="c", sql="SELECT 1")))
    assert plan_hash(other, sink) == hash
    other = msgspec.structs.replace(pipeline, steps=(Step(name="a", sql="SELECT 1"), *steps[1:]))
    assert plan_hash(other, sink) != hash


def test_views_are_known_however_they_are_spelled(tmp_path: Path) -> None:
    declared, _ = ledger_at(tmp_path, "one")
    sink = msgspec.structs.replace(declared, rows="b")
    steps = (Step(name="a", sql="SELECT * FROM SOURCE"), Step(name="b", sql="SELECT * FROM `A`"))
    pipeline = msgspec.structs.replace(plain(sink), steps=steps)
    assert views_under(pipeline, "b") == ("source", "a", "b")
    twice = msgspec.structs.replace(pipeline, steps=(*steps, Step(name="A", sql="SELECT 1")))
    with pytest.raises(Wrong, match="differs by case alone"):
        check(twice, {})


def test_dead_letters_are_the_same_wherever_the_folder_is(tmp_path: Path) -> None:
    declared, _ = ledger_at(tmp_path, "one")
    step = Step(
        name="a", sql="SELECT 1", expect={"x": "y"}, on_fail="dead_letter", dead_letter="bad"
    )
    pipeline = msgspec.structs.replace(plain(declared), steps=(step,))
    hashes = {
        plan_hash(pipeline, sink)
        for home in ({"path": "/a"}, {"url": "http://h:1", "token_file": "/t"})
        for sink in dead_letter_sinks(pipeline, dict(home))
    }
    assert len(hashes) == 1


@pytest.mark.parametrize(
    ("sink", "adds"),
    [
        (DeclaredSink(name="one", kind="redis", settings={"url": "redis://h"}), []),
        (DeclaredSink(name="one", kind="search", settings={"index": "a"}), []),
        (DeclaredSink(name="one", kind="delta", settings={"path": "a"}), ["one"]),
    ],
    ids=lambda one: getattr(one, "kind", None),
)
def test_keys_that_a_kind_has_by_itself_count(sink: DeclaredSink, adds: list[str]) -> None:
    assert adding_sinks(plain(sink), {}) == adds
    assert adding_sinks(plain(sink), {}, ["one", "parsed.dead"]) == [*adds, "parsed.dead"]


def test_dead_letters_are_sent_back_only_by_name(tmp_path: Path, m: sync.Millrace) -> None:
    pipeline, _ = filled(m, tmp_path, ())
    setting, book = Setting(millrace=m), Book(m)
    record = book.find("orders")
    assert record is not None
    dead = SinkRecord(name="parsed.dead", kind="queue")
    book.write(msgspec.structs.replace(record, sinks=(*record.sinks, dead)))
    moved = rewind_pipeline(pipeline, setting, "beginning")
    assert [sink.generation for sink in moved.sinks] == [1, 0]
    moved = rewind_pipeline(pipeline, setting, "beginning", ["parsed.dead"])
    assert [sink.generation for sink in moved.sinks] == [1, 1]
