"""Rows whose key is null, on their way into sinks that replace rows by key."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from millrace import Message, Row, limits, sync
from millrace.errors import Invalid, Refused
from millrace.pipeline import (
    DeclaredSink,
    Pipeline,
    Run,
    Setting,
    Step,
    Where,
    run_pipeline,
    verify_pipeline,
)
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import ledger_at, plain, run_once
from tests.services.postgres import Postgres
from tests.services.redis import Redis

Settings = dict[str, object]

LAKES: dict[str, Settings] = {
    "delta": {"mode": "upsert", "key": ["key"], "lanes": 2},
    "iceberg": {"mode": "upsert", "key": ["key"], "lanes": 2, "table": "shop.orders"},
    "queue": {"queue": "copy", "key": ["key"]},
}


def refused(m: sync.Millrace, kind: str, settings: Settings) -> None:
    """A sink of this kind takes no row without a key, and nothing of its span."""
    queue = m.queue("orders", retention="log")
    queue.publish_many([Message(b"tea", "a"), Message(b"milk"), Message(b"bread")])
    pipeline = plain(DeclaredSink(name="one", kind=kind, settings=settings))
    with pytest.raises(Refused, match="null in the row of seq 2") as error:
        run_once(pipeline, m)
    assert error.value.field == "key"
    with pytest.raises(Refused, match="null in the row of seq 2"):
        verify_pipeline(pipeline, Setting(millrace=m))


@pytest.mark.parametrize(
    "kind", ["delta", "queue", pytest.param("iceberg", marks=pytest.mark.long)]
)
def test_lakes_and_queues(tmp_path: Path, m: sync.Millrace, kind: str) -> None:
    refused(m, kind, {"path": str(tmp_path / kind), **LAKES[kind]})


def test_redis(m: sync.Millrace, redis: Redis) -> None:
    refused(m, "redis", {"url": redis.url, "name": "null:{key}"})


def test_postgres(m: sync.Millrace, postgres: Postgres) -> None:
    refused(m, "postgres", {"url": postgres.new_database(), "table": "orders", "key": ["key"]})


def test_a_sink_that_does_not_look_is_guarded(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one", key=("key",))
    queue = m.queue("orders", retention="log")
    queue.publish_many([Message(b"tea", "a"), b"milk"])
    with pytest.raises(Invalid, match="null in the row of seq 2"):
        run_once(plain(declared), m)
    assert ledger.lines() == []


def test_a_key_of_several_columns_is_null_with_one_of_them(
    tmp_path: Path, m: sync.Millrace
) -> None:
    declared, ledger = ledger_at(tmp_path, "one", key=("seq", "key"))
    m.queue("orders", retention="log").publish_many([Message(b"tea", "a"), b"milk"])
    with pytest.raises(Invalid, match="column 'key' of the key is null in the row of seq 2"):
        run_once(plain(declared), m)
    assert ledger.lines() == []


def filled_before(folder: Path, m: sync.Millrace, retention: str) -> tuple[Pipeline, Ledger]:
    """A sink that was filled when null was a key like any other."""
    added, _ = ledger_at(folder, "one")
    queue = m.queue("orders", retention=retention)
    queue.publish_many([Message(b"tea", "a"), b"milk", b"bread"])
    run_once(plain(added), m)
    keyed, ledger = ledger_at(folder, "one", key=("key",))
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("delete from lines where line like '%milk%'")
    return plain(keyed), ledger


def verified(pipeline: Pipeline, m: sync.Millrace) -> tuple[bool, int, int]:
    setting = Setting(millrace=m)
    with pytest.raises(Refused, match="--on-change"):
        verify_pipeline(pipeline, setting)
    run_pipeline(pipeline, setting, once=True, on_change="resume")
    [found] = verify_pipeline(pipeline, setting)
    return found.is_right, found.keyless, found.keyless_found


def test_verify_counts_rows_without_a_key_on_both_sides(tmp_path: Path, m: sync.Millrace) -> None:
    pipeline, ledger = filled_before(tmp_path, m, "log")
    assert verified(pipeline, m) == (False, 2, 1)
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute("delete from lines where line like '%bread%'")
    [found] = verify_pipeline(pipeline, Setting(millrace=m))
    # What the sink holds is right; two rows of the queue are nowhere.
    assert (found.is_right, found.wrong, found.keyless, found.keyless_found) == (False, 0, 2, 0)


def test_verify_sees_rows_without_a_key_where_it_only_counts(
    tmp_path: Path, m: sync.Millrace
) -> None:
    pipeline, ledger = filled_before(tmp_path, m, "work")
    assert verified(pipeline, m) == (False, 0, 1)
    [line] = [line for line in ledger.lines() if line["key"] is None]
    assert json.dumps(line["value"]) == '"bread"'


def kept_apart(declared: DeclaredSink, queue: str = "bad") -> DeclaredSink:
    return msgspec.structs.replace(declared, null_key="dead_letter", dead_letter=queue)


def at(m: sync.Millrace, folder: Path) -> Setting:
    """With a place that sinks of dead letters find by themselves."""
    return Setting(millrace=m, where=Where(path=str(folder / "data")))


def told(row: Row) -> dict[str, bytes]:
    return dict(row.headers)


def test_rows_without_a_key_become_dead_letters_as_declared(
    tmp_path: Path, m: sync.Millrace
) -> None:
    declared, ledger = ledger_at(tmp_path, "one", key=("key",))
    queue = m.queue("orders", retention="log")
    queue.publish(b"tea", key="a")
    run_once(plain(declared), m)
    reserved = [("aws.topic", b"t"), ("millrace-dead-queue", b"a/b"), ("millrace-step", b"old")]
    queue.publish_many([Message(b"milk", headers=[("h", b"\x00"), *reserved]), b"bread"])
    with pytest.raises(Invalid, match="declare for the sink"):
        run_once(plain(declared), m)
    # It may be declared later: nothing that is there was made in another way.
    pipeline = plain(kept_apart(declared))
    setting = at(m, tmp_path)
    with sync.share(m):
        for _ in range(2):
            run_pipeline(pipeline, setting, once=True)
        found = {one.sink: one for one in verify_pipeline(pipeline, setting)}
    assert [line["value"] for line in ledger.lines()] == ["tea"]
    milk, bread = m.find("bad").peek(10)
    assert (milk.key, milk.body, bread.body) == (None, b"milk", b"bread")
    assert milk.headers == (
        ("h", b"\x00"),
        ("millrace-pipeline", b"orders"),
        ("millrace-sink", b"one"),
        ("millrace-queue", b"default/orders"),
        ("millrace-broken", b"null key: key"),
        ("millrace-shard", b"0"),
        ("millrace-seq", b"2"),
    )
    sink = found["one"]
    assert (sink.is_right, sink.expected, sink.found) == (True, 1, 1)
    assert (sink.keyless, sink.keyless_found) == (2, 0)
    assert (found["one.keyless"].method, found["one.keyless"].is_right) == ("rows", True)


def test_a_letter_has_the_key_of_its_message(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one", key=("value",))
    queue = m.queue("orders", keyed=True, retention="log")
    queue.publish_many([Message(b"tea", "a"), Message(b"milk", "b"), Message(None, "b")])
    with sync.share(m):
        run_pipeline(plain(kept_apart(declared)), at(m, tmp_path), once=True)
    assert [line["value"] for line in ledger.lines()] == ["tea"]
    [letter] = m.find("bad").peek(10)
    assert (letter.key, letter.body, told(letter)["millrace-op"]) == (b"b", b"", b"delete")
    assert told(letter)["millrace-broken"] == b"null key: value"


def test_many_rows_without_a_key_do_not_come_to_the_driver(
    tmp_path: Path, m: sync.Millrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_SMALL_ROWS", 3)
    declared, ledger = ledger_at(tmp_path, "one", key=("key",))
    queue = m.queue("orders", shards=2, retention="log")
    for n in range(30):
        queue.publish(b"%d" % n, key=None if n % 3 else b"k%d" % n)
    with sync.share(m):
        run_pipeline(plain(kept_apart(declared)), at(m, tmp_path), once=True)
    assert len(ledger.lines()) == 10
    letters = m.find("bad").peek(100)
    assert sorted(int(row.body or b"") for row in letters) == [n for n in range(30) if n % 3]
    assert {told(row)["millrace-shard"] for row in letters} == {b"0", b"1"}


def test_dead_letters_are_published_beside_the_run_of_a_folder(tmp_path: Path) -> None:
    declared, ledger = ledger_at(tmp_path, "one", key=("key",))
    folder = tmp_path / "data"
    with sync.open(folder) as m:
        m.queue("orders", retention="log").publish_many([Message(b"tea", "a"), b"milk"])
    run_pipeline(plain(kept_apart(declared)), Setting(where=Where(path=str(folder))), once=True)
    assert [line["value"] for line in ledger.lines()] == ["tea"]
    with sync.open(folder) as m:
        assert [row.body for row in m.find("bad").peek(10)] == [b"milk"]


IDS = "SELECT seq, op, get_json_object(cast(value AS string), '$.id') AS id FROM source"


@pytest.mark.spark
@pytest.mark.parametrize("is_small", [True, False], ids=["driver", "executors"])
def test_a_key_that_a_step_makes_may_be_null(
    tmp_path: Path,
    m: sync.Millrace,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_small: bool,
) -> None:
    """Of a delete, which has no body, too; it goes back as what it was."""
    monkeypatch.setattr(limits, "PIPELINE_SMALL_ROWS", 100 if is_small else 1)
    declared, ledger = ledger_at(tmp_path, "one", key=("id",))
    reserved = [("aws.topic", b"t"), ("millrace-dead-queue", b"a/b")]
    rows = [Message(b'{"id": ""}', "a"), Message(b'{"ID": 2}', "b", reserved), Message(None, "c")]
    queue = m.queue("orders", keyed=True, retention="log")
    queue.publish(b"before", key="c")
    queue.publish_many(rows)
    setting = at(m, tmp_path)
    refusing = msgspec.structs.replace(
        plain(msgspec.structs.replace(declared, rows="ids")), steps=(Step(name="ids", sql=IDS),)
    )
    with sync.share(m):
        with pytest.raises(Refused, match="column 'id' of the key is null in the row of seq 3"):
            run_pipeline(refusing, setting, once=True, spark=spark)
        assert ledger.lines() == []
        [sink] = refusing.sinks
        pipeline = msgspec.structs.replace(refusing, sinks=(kept_apart(sink),))
        run_pipeline(pipeline, setting, once=True, spark=spark)
        # An empty text is a key.
        assert [line["id"] for line in ledger.lines()] == [""]
        put, delete = m.find("bad").peek(10)
        assert (put.key, put.body) == (b"b", b'{"ID": 2}')
        assert told(put)["millrace-broken"] == b"null key: id"
        assert not {name for name, _ in reserved} & set(told(put))
        assert (told(put)["millrace-step"], told(put)["millrace-seq"]) == (b"ids", b"3")
        assert (delete.key, delete.body, told(delete)["millrace-op"]) == (b"c", b"", b"delete")
        assert m.find("bad").redrive().run().moved == 2
        assert {row.key: row.body for row in queue.peek(10)} == {
            b"a": b'{"id": ""}',
            b"b": b'{"ID": 2}',
            b"c": None,
        }


@pytest.mark.spark
def test_rows_without_a_key_of_steps_that_keep_a_state(
    tmp_path: Path, m: sync.Millrace, spark: SparkSession
) -> None:
    """They may be refused; dead letters they cannot be, since many messages have made them."""
    one, totals = ledger_at(tmp_path, "totals", key=("id",))
    two, each = ledger_at(tmp_path, "each", key=("id",))
    steps = (
        Step(name="ids", sql=IDS),
        Step(name="sums", sql="SELECT id, count(*) AS many FROM ids GROUP BY id"),
    )
    one = msgspec.structs.replace(one, rows="sums")
    two = kept_apart(msgspec.structs.replace(two, rows="ids"))
    pipeline = msgspec.structs.replace(
        plain(one), steps=steps, run=Run(checkpoint="checkpoint"), folder=str(tmp_path)
    )
    setting = at(m, tmp_path)
    queue = m.queue("orders", retention="log")
    queue.publish_many([Message(b'{"id": "x"}', "a"), Message(b'{"id": "x"}', "b")])
    with sync.share(m):
        run_pipeline(pipeline, setting, once=True, spark=spark)
        assert [(line["id"], line["many"]) for line in totals.lines()] == [("x", 2)]
        queue.publish_many([Message(b"{}", "c")])
        with pytest.raises(Refused, match="column 'id' of the key is null"):
            run_pipeline(pipeline, setting, once=True, spark=spark)
        assert [(line["id"], line["many"]) for line in totals.lines()] == [("x", 2)]
        alone = msgspec.structs.replace(
            pipeline, name="alone", sinks=(two,), run=Run(checkpoint="alone")
        )
        run_pipeline(alone, setting, once=True, spark=spark)
        assert [line["id"] for line in each.lines()] == ["x"]
        [letter] = m.find("bad").peek(10)
        assert (letter.key, letter.body) == (b"c", b"{}")
        wrong = msgspec.structs.replace(pipeline, sinks=(kept_apart(one),))
        with pytest.raises(Invalid, match="sink 'totals' has dead letters, and it is not known"):
            run_pipeline(wrong, setting, once=True, spark=spark)
