"""`millrace follow --into`: a queue straight into a sink, exactly once, whatever is killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import cast

import pytest
import redis as client

from millrace import Message, Settings, sync
from millrace.sinks.kinds import place_of
from tests.cli.desk import Desk
from tests.server.server_process import Process
from tests.services.redis import Redis

Server = client.Redis

SETTINGS = Settings(segment_bytes=2 * 1024 * 1024)


@pytest.fixture
def server(redis: Redis) -> Iterator[Server]:
    with client.Redis.from_url(redis.url) as found:
        found.flushall()
        yield found


def address(redis: Redis) -> str:
    return f"{redis.url}/0?name=p:{{key}}"


def values(server: Server) -> dict[bytes, bytes]:
    names = cast("list[bytes]", server.keys("p:*"))
    return {name[2:]: cast("bytes", server.get(name)) for name in names}


def wait_for(found: Callable[[], object]) -> None:
    while not found():
        time.sleep(0.01)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A folder with one keyed queue of three keys, and one to work."""
    desk = Desk(tmp_path)
    with sync.open(desk.data, settings=SETTINGS) as m:
        m.queue("prices", keyed=True).publish_many(
            [Message(b"%s1" % key, key=key) for key in (b"a", b"b", b"c")]
        )
        m.queue("jobs").publish(b"first")
    return desk


def test_all_that_is_there_is_carried_and_the_next_call_goes_on(
    desk: Desk, redis: Redis, server: Server
) -> None:
    arguments = ["follow", "prices", "--once", "--into", address(redis)]
    cursor = f"prices-into-redis-{place_of(address(redis))}"
    assert desk.one(*arguments, "--rows", 2) == {
        "type": "carried",
        "queue": "prices",
        "sink": "redis",
        "cursor": cursor,
        "rows": 3,
    }
    assert values(server) == {b"a": b"a1", b"b": b"b1", b"c": b"c1"}
    with sync.open(desk.data, settings=SETTINGS) as m:
        prices = m.find("prices")
        prices.publish_many([Message(b"a2", key=b"a"), Message(None, key=b"b")])
        assert prices.cursors() == {cursor: 3}
        # The sink knows where it is; the cursor only keeps rows.
        prices.cursor(cursor, retain=True).delete()
    assert desk.one(*arguments)["rows"] == 2
    assert values(server) == {b"a": b"a2", b"c": b"c1"}
    assert desk.one(*arguments)["rows"] == 0


def test_what_workers_settle_in_between_is_carried(
    desk: Desk, redis: Redis, server: Server
) -> None:
    arguments = ["follow", "jobs", "--once", "--into", f"{redis.url}?key=seq&name=p:{{seq}}"]
    assert desk.one(*arguments)["rows"] == 1
    with sync.open(desk.data, settings=SETTINGS) as m:
        jobs = m.find("jobs")
        jobs.publish(b"short-lived")
        jobs.settle(jobs.lease(2))
    assert desk.one(*arguments)["rows"] == 1
    assert values(server) == {b"1": b"first", b"2": b"short-lived"}


def test_two_places_of_one_kind_have_a_cursor_each(desk: Desk, tmp_path: Path) -> None:
    for name in ("one", "two"):
        desk.text("follow", "jobs", "--once", "--into", f"parquet:{tmp_path / name}")
    with sync.open(desk.data, settings=SETTINGS) as m:
        jobs = m.find("jobs")
        jobs.settle(jobs.lease(1))
        jobs.publish(b"second")
        jobs.settle(jobs.lease(1))
    rows = {
        name: desk.one("follow", "jobs", "--once", "--into", f"parquet:{tmp_path / name}")["rows"]
        for name in ("one", "two")
    }
    assert rows == {"one": 1, "two": 1}


def test_rows_come_while_it_runs_and_it_ends_in_order(
    desk: Desk, redis: Redis, server: Server
) -> None:
    with (
        sync.open(desk.data, settings=SETTINGS) as m,
        sync.share(m),
        desk.start("follow", "prices", "--into", address(redis)) as process,
    ):
        prices = m.find("prices")
        wait_for(lambda: server.get("p:a") == b"a1")
        prices.publish(b"a2", key="a")
        wait_for(lambda: server.get("p:a") == b"a2")
        redis.kill()
        prices.publish(b"a3", key="a")
        redis.start()
        wait_for(lambda: server.get("p:a") == b"a3")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
        assert (process.returncode, err) == (0, b"")
        assert out == b"5 rows of prices written to redis\n"
        assert list(prices.cursors().values()) == [5]


def test_killed_and_killed_again_it_loses_and_doubles_nothing(
    desk: Desk, redis: Redis, server: Server
) -> None:
    chance, expected = Random(7), {key: b"%s1" % key for key in (b"a", b"b", b"c")}
    with Process(desk.data) as served:
        url = f"http://127.0.0.1:{served.port}"
        target = ["--data", url, "--token-file", served.token_file]
        arguments = ["follow", "prices", "--into", address(redis), "--rows", 20, *target]
        with sync.connect(url, token=served.token) as m:
            prices = m.find("prices")
            for number in range(2):
                with desk.start(*arguments) as process:
                    wait_for(partial(is_opened, server, number + 1))
                    for at in range(100):
                        key = b"%d" % chance.randrange(40)
                        if chance.random() < 0.2:
                            prices.publish(None, key=key)
                            expected.pop(key, None)
                        else:
                            expected[key] = b"%d-%d" % (number, at)
                            prices.publish(expected[key], key=key)
                    process.kill()
        done = desk.run(*arguments, "--once")
        assert (done.returncode, done.stderr) == (0, b"")
        assert values(server) == expected


def is_opened(server: Server, times: int) -> bool:
    found = server.hget("millrace:flow:prices-into-redis/redis", "fence")
    return found == b"%d" % times


def test_a_queue_that_was_made_anew_is_refused(desk: Desk, redis: Redis, server: Server) -> None:
    arguments = ["follow", "prices", "--once", "--into", address(redis)]
    desk.text(*arguments)
    before = values(server)
    with sync.open(desk.data, settings=SETTINGS) as m:
        m.delete_queue("prices")
        m.queue("prices", keyed=True).publish(b"z", key="z")
    result = desk.call(*arguments)
    assert result.exit_code == 1
    assert "made anew" in result.stderr
    assert values(server) == before


def test_another_queue_of_the_same_folder(desk: Desk) -> None:
    into = f"queue:{desk.data}?queue=copy&key=key"
    assert desk.one("follow", "prices", "--once", "--into", into)["rows"] == 3
    assert desk.one("follow", "prices", "--once", "--into", into)["rows"] == 0
    assert desk.bodies("copy") == ["a1", "b1", "c1"]


def test_the_console_shows_rows(desk: Desk) -> None:
    shown = desk.text("follow", "prices", "--once", "--into", "console:?form=table&width=20")
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0][:7] == ["shard", "seq", "key", "value", "headers", "timestamp", "op"]
    assert [line[:4] for line in lines[2:5]] == [
        ["0", "1", "a", "a1"],
        ["0", "2", "b", "b1"],
        ["0", "3", "c", "c1"],
    ]
    assert shown.endswith("3 rows of prices written to console\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--into", "nothing"], "is not the address of a sink"),
        (["--into", "cassette:x-y"], "there is no sink 'cassette'"),
        (["--into", "console:?colour=red"], "colour"),
        (["--into", "console:", "--from", "end"], "resumes at the sink"),
    ],
)
def test_what_cannot_be(desk: Desk, arguments: list[str], said: str) -> None:
    result = desk.call("follow", "jobs", "--once", *arguments)
    assert result.exit_code in (1, 2)
    assert said in result.stderr
