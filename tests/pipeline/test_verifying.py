"""Sinks compared with their queue, looked at, and sent back."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from millrace import Message, sync
from millrace.errors import CursorExpired, Invalid, Refused
from millrace.pipeline import (
    DeclaredSink,
    Pipeline,
    Setting,
    Source,
    pipeline_status,
    plan_pipeline,
    rewind_pipeline,
    verify_pipeline,
)
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import ledger_at, plain, run_once


def keyed(m: sync.Millrace, folder: Path) -> tuple[Pipeline, Ledger, sync.Queue]:
    declared, ledger = ledger_at(folder, "one", key=("key",))
    queue = m.queue("orders", keyed=True, retention="log")
    queue.publish_many([Message(b"%d" % n, f"k{n % 10}") for n in range(50)])
    queue.publish(None, key="k3")
    return plain(declared), ledger, queue


def test_sinks_that_are_right(tmp_path: Path, m: sync.Millrace) -> None:
    pipeline, _, queue = keyed(m, tmp_path)
    run_once(pipeline, m)
    queue.publish(b"new", key="k1")
    for _ in range(2):
        [found] = verify_pipeline(pipeline, Setting(millrace=m))
        assert (found.method, found.is_right, found.expected, found.found) == ("rows", True, 9, 9)


def test_rows_that_are_wrong_are_named(tmp_path: Path, m: sync.Millrace) -> None:
    pipeline, ledger, _ = keyed(m, tmp_path)
    run_once(pipeline, m)
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("delete from lines where id = ?", (json.dumps(["k1"]),))
        db.execute("update lines set line = replace(line, '\"42\"', '\"no\"')")
        [(line,)] = db.execute("select line from lines where id = ?", (json.dumps(["k4"]),))
        db.execute("insert into lines values ('x', ?)", (line.replace("k4", "kx"),))
    [found] = verify_pipeline(pipeline, Setting(millrace=m))
    said = {bytes.fromhex(json.loads(one.key)[0]): one.what for one in found.differences}
    assert said == {b"k1": "missing", b"k2": "different", b"kx": "too many"}
    assert not found.is_right


def test_rows_that_were_only_added(tmp_path: Path, m: sync.Millrace) -> None:
    declared, _ = ledger_at(tmp_path, "one")
    m.queue("orders", retention="log").publish_many([b"a", b"b", b"b"])
    [found] = verify_pipeline(plain(declared), Setting(millrace=m))
    assert (found.method, found.is_right, found.expected) == ("rows", True, 3)


def test_what_cannot_be_compared_is_counted(tmp_path: Path, m: sync.Millrace) -> None:
    declared, _ = ledger_at(tmp_path, "one")
    queue = m.queue("orders")
    queue.publish_many([b"a", b"b"])
    queue.settle(queue.lease(2))
    run_once(plain(declared), m)
    [found] = verify_pipeline(plain(declared), Setting(millrace=m))
    assert (found.method, found.is_right) == ("count", True)
    assert "does not keep every row" in found.why


def test_a_sink_that_was_sent_back_to_the_beginning_is_compared(
    tmp_path: Path, m: sync.Millrace
) -> None:
    pipeline, ledger, _ = keyed(m, tmp_path)
    run_once(pipeline, m)
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("delete from lines where id = ?", (json.dumps(["k1"]),))
    rewind_pipeline(pipeline, Setting(millrace=m), "beginning")
    [found] = verify_pipeline(pipeline, Setting(millrace=m))
    assert (found.method, found.is_right, found.expected, found.found) == ("rows", True, 9, 9)
    rewind_pipeline(pipeline, Setting(millrace=m), 5)
    [found] = verify_pipeline(pipeline, Setting(millrace=m))
    assert (found.method, found.why) == ("count", "it was begun in the middle of the queue")


def test_rows_that_were_purged_say_how_to_go_on(tmp_path: Path, m: sync.Millrace) -> None:
    pipeline, ledger, queue = keyed(m, tmp_path)
    run_once(pipeline, m)
    queue.publish(b"never read", key="k1")
    queue.purge()
    queue.publish(b"new", key="k2")
    with pytest.raises(CursorExpired, match="rewind it to the beginning"):
        run_once(pipeline, m)
    queue.cursor(pipeline.name, retain=True).delete()
    with pytest.raises(CursorExpired, match="rewind it to the beginning"):
        run_once(pipeline, m)
    rewind_pipeline(pipeline, Setting(millrace=m), "beginning")
    run_once(pipeline, m)
    assert len(ledger.lines()) == 9


def test_status_says_how_far_behind(tmp_path: Path, m: sync.Millrace) -> None:
    declared, _ = ledger_at(tmp_path, "one")
    pipeline = plain(declared)
    queue = m.queue("orders", shards=2, retention="log")
    queue.publish_many([b"a", b"b", b"c"])
    with pytest.raises(Refused, match="never run"):
        pipeline_status(pipeline, Setting(millrace=m))
    run_once(pipeline, m)
    queue.publish_many([b"d" * 100, b"e" * 100])
    status = pipeline_status(pipeline, Setting(millrace=m))
    [sink] = status.sinks
    assert status.record.state == "stopped"
    assert sink.lag is not None
    assert sink.lag.rows == 2
    assert sink.lag.bytes > 2
    assert sink.lag.seconds >= 0


def test_status_is_of_what_is_declared_now(tmp_path: Path, m: sync.Millrace) -> None:
    declared, _ = ledger_at(tmp_path, "one")
    added, _ = ledger_at(tmp_path, "two")
    before = plain(declared)
    m.queue("orders", retention="log").publish_many([b"a", b"b", b"c"])
    m.queue("returns", retention="log").publish(b"d")
    run_once(before, m)
    now = msgspec.structs.replace(before, source=Source(queue="returns"), sinks=(declared, added))
    status = pipeline_status(now, Setting(millrace=m))
    assert (status.record.queue, status.before) == ("returns", "default/orders")
    old, new = status.sinks
    assert (old.lag, old.why) == (None, "filled from default/orders")
    assert new.name == "two"
    assert new.lag is not None
    assert new.lag.rows == 1


@pytest.mark.parametrize(
    "kind",
    [
        "parquet",
        "delta",
        pytest.param("iceberg", marks=pytest.mark.long),
        pytest.param("queue", marks=pytest.mark.long),
    ],
)
def test_sinks_are_asked_how_far_they_are(tmp_path: Path, m: sync.Millrace, kind: str) -> None:
    others: dict[str, dict[str, object]] = {
        "iceberg": {"table": "shop.orders"},
        "queue": {"queue": "copy"},
    }
    settings = {"path": str(tmp_path / "there"), **others.get(kind, {})}
    pipeline = plain(DeclaredSink(name="one", kind=kind, settings=settings))
    queue, setting = m.queue("orders", retention="log"), Setting(millrace=m)
    queue.publish(b"a")
    [sink] = plan_pipeline(pipeline, setting).sinks
    assert (sink.is_asked, sink.boundary) == (True, None)
    run_once(pipeline, m)
    queue.publish(b"b")
    # It is brought there, and nobody writes that down.
    verify_pipeline(pipeline, setting)
    [sink] = pipeline_status(pipeline, setting).sinks
    assert sink.is_asked
    assert sink.lag is not None
    assert sink.lag.rows == 0


@pytest.mark.parametrize(("to", "again"), [("beginning", 3), (2, 2), ("end", 0)])
def test_sinks_are_sent_back(tmp_path: Path, m: sync.Millrace, to: str | int, again: int) -> None:
    one, first = ledger_at(tmp_path, "one")
    two, second = ledger_at(tmp_path, "two", key=("seq",))
    pipeline = plain(one, two)
    m.queue("orders", retention="log").publish_many([b"a", b"b", b"c"])
    run_once(pipeline, m)
    rewind_pipeline(pipeline, Setting(millrace=m), to, ["one"])
    run_once(pipeline, m)
    assert (len(first.lines()), len(second.lines())) == (3 + again, 3)
    run_once(pipeline, m)
    assert len(first.lines()) == 3 + again


def test_places_that_are_none(tmp_path: Path, m: sync.Millrace) -> None:
    one, _ = ledger_at(tmp_path, "one")
    m.queue("orders", retention="log").publish(b"a")
    pipeline, setting = plain(one), Setting(millrace=m)
    run_once(pipeline, m)
    for to, sinks in ((7, ()), ("middle", ()), ("end", ("two",))):
        with pytest.raises(Invalid):
            rewind_pipeline(pipeline, setting, to, sinks)
    past = datetime(2020, 1, 1, tzinfo=UTC)
    record = rewind_pipeline(pipeline, setting, past)
    assert record.sinks[0].start is not None
    assert record.sinks[0].start.number == 0
