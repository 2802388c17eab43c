"""Every kind of sink, filled from a queue and compared with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis as client

from millrace import Message, sync
from millrace.pipeline import DeclaredSink, Setting, verify_pipeline
from tests.pipeline.scene import plain
from tests.services.postgres import Postgres
from tests.services.redis import Redis

Settings = dict[str, object]

LAKES: dict[str, Settings] = {
    "delta": {"mode": "upsert", "key": ["key"], "lanes": 2},
    "iceberg": {"mode": "upsert", "key": ["key"], "lanes": 2, "table": "shop.orders"},
    "queue": {"queue": "copy", "key": ["key"]},
}


def judge(m: sync.Millrace, kind: str, settings: Settings) -> None:
    """Fill a sink and verify it; then change the queue, and see that it is still compared."""
    declared = DeclaredSink(name="one", kind=kind, settings=settings)
    queue = m.queue("orders", keyed=True, retention="log")
    rows = [Message(b"\xff%d" % n, key=b"k%d" % n, headers=[("a", b"\x00")]) for n in range(5)]
    queue.publish_many([*rows, Message(None, key=b"k3")])
    pipeline, setting = plain(declared), Setting(millrace=m)
    for _ in range(2):
        [found] = verify_pipeline(pipeline, setting)
        assert (found.method, found.is_right, found.expected, found.found) == ("rows", True, 4, 4)


@pytest.mark.parametrize(
    "kind", ["delta", "queue", pytest.param("iceberg", marks=pytest.mark.long)]
)
def test_lakes_and_queues(tmp_path: Path, m: sync.Millrace, kind: str) -> None:
    judge(m, kind, {"path": str(tmp_path / kind), **LAKES[kind]})


@pytest.mark.parametrize("form", [{}, {"store": "hash"}, {"value": "*"}], ids=str)
def test_redis(m: sync.Millrace, redis: Redis, form: Settings) -> None:
    with client.Redis.from_url(redis.url) as server:
        server.flushall()
    judge(m, "redis", {"url": redis.url, "name": "p:{key}", **form})


def test_postgres(m: sync.Millrace, postgres: Postgres) -> None:
    judge(m, "postgres", {"url": postgres.new_database(), "table": "verified", "key": ["key"]})


def test_the_console_is_not_read_back(m: sync.Millrace) -> None:
    m.queue("orders", retention="log").publish(b"a")
    declared = DeclaredSink(name="one", kind="console")
    [found] = verify_pipeline(plain(declared), Setting(millrace=m))
    assert (found.method, found.is_right) == ("nothing", True)
