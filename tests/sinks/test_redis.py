"""Rows in Redis: the contract, names and values, and a server that is killed."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
import redis as client

from millrace import limits
from millrace.errors import Invalid, Retry
from millrace.sinks.base import Task
from millrace.sinks.kinds import parse_sink
from millrace.sinks.newest import newest
from millrace.sinks.redis import APPLY
from millrace.sinks.redis import Redis as RedisSink
from millrace.testing.check_sink import (
    SCHEMA,
    SinkChange,
    SinkRun,
    batch_of,
    check_deletes,
    check_going_on,
    check_late,
    check_newest,
    check_parts,
    check_words,
    puts,
    span,
)
from tests.services.redis import Redis
from tests.sinks.carrier import carry_with_kills, expected, left
from tests.sinks.rigs import Check, ReadRig, every_check


@pytest.fixture
def url(redis: Redis) -> str:
    """A server without keys."""
    with client.Redis.from_url(redis.url) as server:
        server.flushall()
    return redis.url


def make(url: str, **settings: object) -> ReadRig:
    sink = RedisSink(url=url, **settings)  # type: ignore[arg-type]
    return ReadRig(sink, sink)


def test_an_address_is_a_sink() -> None:
    assert parse_sink("redis://h:1/2?name=a:{key}&ttl=5") == RedisSink(
        url="redis://h:1/2", name="a:{key}", ttl=5
    )


@every_check
def test_contract(check: Check, url: str) -> None:
    rig = make(url, name="price:{key}")
    check(rig)
    rig.close()


@pytest.mark.parametrize("check", [check_deletes, check_words, check_newest])
@pytest.mark.parametrize("settings", [{"value": "*"}, {"store": "hash"}], ids=["json", "hash"])
def test_contract_of_other_forms(check: Check, settings: dict[str, object], url: str) -> None:
    rig = make(url, name="price:{key}:all", **settings)
    check(rig)
    rig.close()


@pytest.mark.parametrize("check", [check_going_on, check_newest, check_parts, check_late])
def test_contract_in_pieces(check: Check, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As spans are applied that are too large for one script."""
    monkeypatch.setattr(limits, "REDIS_SCRIPT_ROWS", 1)
    monkeypatch.setattr(limits, "REDIS_PIPELINE_ROWS", 3)
    rig = make(url)
    check(rig)
    rig.close()


def test_a_span_in_pieces_that_is_cut_off_is_brought_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REDIS_SCRIPT_ROWS", 1)
    run, rows = SinkRun(make(url)), puts("a", "b", "c")
    piece = span(0, 5)
    token = run.stage_all(piece, rows)
    part = msgspec.json.decode(token[0], type=list[object])
    with client.Redis.from_url(url) as server:
        keys = ["millrace:flow:orders/sink", "millrace:stages:orders/sink", str(part[0])]
        server.eval(APPLY, 3, *keys, run.held.fence, "", "", 0, 0, 0, 3)
        assert server.get("a") == b"a1"
    again = SinkRun(make(url))
    assert again.at is None
    again.carry(piece, rows)
    again.sees(rows)


@pytest.mark.process
def test_a_writer_that_is_killed_loses_and_doubles_nothing(url: str) -> None:
    carry_with_kills(f"{url}?name=p:{{key}}", kills=2, spans=60, seed=1)
    assert left(make(url, name="p:{key}")) == expected(60)


@pytest.mark.process
def test_a_server_that_is_killed_loses_and_doubles_nothing(url: str, redis: Redis) -> None:
    def strike(_: int) -> None:
        redis.kill()
        redis.start()

    carry_with_kills(f"{url}?name=p:{{key}}", kills=3, spans=60, seed=2, strike=strike)
    assert left(make(url, name="p:{key}")) == expected(60)


@pytest.mark.process
def test_a_server_that_is_down_is_asked_again(url: str, redis: Redis) -> None:
    run = SinkRun(make(url))
    staged = run.stage_all(span(0, 5), puts("a"))
    redis.kill()
    with pytest.raises(Retry, match="is it running there"):
        run.commit(span(0, 5), staged)
    redis.start()
    run.commit(span(0, 5), staged)
    run.sees(puts("a"))


def test_what_is_gone_before_the_commit_is_staged_again(url: str) -> None:
    run = SinkRun(make(url))
    staged = run.stage_all(span(0, 5), puts("a"))
    with client.Redis.from_url(url) as server:
        server.delete(*server.keys("millrace:stage:*"))
    with pytest.raises(Retry, match="stage them again"):
        run.commit(span(0, 5), staged)
    assert run.rig.rows() == []


def test_a_server_without_room_is_asked_again(url: str) -> None:
    run = SinkRun(make(url))
    with client.Redis.from_url(url) as server:
        server.config_set("maxmemory", 1)
        try:
            with pytest.raises(Retry, match="no room"):
                run.carry(span(0, 5), puts("a"))
        finally:
            server.config_set("maxmemory", 0)
    run.carry(span(0, 5), puts("a"))
    run.sees(puts("a"))


def test_values_of_every_type(url: str) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"id": 7, "size": 1.5, "flag": True, "raw": b"\xff", "none": None, "tags": ["a"]}]
    )
    sink = RedisSink(url=url, key=("id",), name="{id}", store="hash")
    held = sink.open("types/sink", batch.schema)
    sink.commit(held, span(0, 1), [sink.stage(Task(held, span(0, 1), "one"), [batch])])
    with client.Redis.from_url(url) as server:
        assert server.hgetall("7") == {
            b"id": b"7",
            b"size": b"1.5",
            b"flag": b"true",
            b"raw": b"\xff",
            b"tags": b'["a"]',
        }


def test_rows_go_after_their_time(url: str) -> None:
    run = SinkRun(make(url, ttl=100))
    run.carry(span(0, 5), puts("a"))
    with client.Redis.from_url(url) as server:
        assert 0 < int(str(server.ttl("a"))) <= 100
        run.carry(span(5, 6), [SinkChange("a", "again", seq=6)])
        assert server.get("a") == b"again"
        assert int(str(server.ttl("a"))) > 0


def test_what_was_staged_goes_by_itself(url: str) -> None:
    SinkRun(make(url)).stage_all(span(0, 5), puts("a"))
    with client.Redis.from_url(url) as server:
        [staged] = server.keys("millrace:stage:*")
        assert 0 < int(str(server.ttl(staged))) <= limits.SINK_STAGED_SECONDS
        run = SinkRun(make(url))
        run.sink.clean(run.held)
        assert server.keys("millrace:stage*") == []


def test_a_committed_span_leaves_nothing_staged(url: str) -> None:
    SinkRun(make(url)).carry(span(0, 5), puts("a"))
    with client.Redis.from_url(url) as server:
        assert sorted(server.keys()) == [b"a", b"millrace:flow:orders/sink"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "fixed"}, "no column"),
        ({"name": "{key}{value}"}, "key, value"),
        ({"value": "missing"}, "'missing'"),
        ({"key": ()}, "has a name"),
        ({"key": ("missing",)}, "'missing'"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        make("redis://localhost", **settings).sink.check(SCHEMA)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Retry, match="is it running there"):
        make("redis://127.0.0.1:1").sink.open("a/b", SCHEMA)
    with pytest.raises(Invalid, match="no address"):
        make("http://127.0.0.1:1").sink.open("a/b", SCHEMA)
    monkeypatch.delenv("REDIS_URL", raising=False)
    with pytest.raises(Invalid, match="none in REDIS_URL"):
        make("").sink.open("a/b", SCHEMA)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(RedisSink(url="redis://me:secret@localhost"))


def test_late_rows_of_a_key_do_not_win() -> None:
    rows = [SinkChange("a", "2", seq=2), SinkChange("a", "1", seq=1), SinkChange("b", "3", seq=3)]
    kept = [
        row
        for batch in newest([batch_of(rows[:2]), batch_of(rows[1:])], ["key"])
        for row in batch.to_pylist()
    ]
    assert [(row["key"], row["value"]) for row in kept] == [("a", "2"), ("b", "3")]


def test_rows_cannot_be_the_keys_of_the_sink(url: str) -> None:
    """Whoever may publish could have the sink skip rows, or apply them twice."""
    rig = make(url)
    held = rig.sink.open("f/s", SCHEMA)
    own = batch_of([SinkChange(f"millrace:flow:{held.flow}", "1")])
    with pytest.raises(Invalid, match="the sink's own") as refused:
        rig.sink.stage(Task(held, span(0, 1), "0"), [own])
    assert refused.value.field == "name"
    with client.Redis.from_url(url) as server:
        assert server.hgetall("millrace:flow:f/s") == {b"fence": b"1"}
    rig.close()
