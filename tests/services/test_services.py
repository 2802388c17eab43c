"""Each service answers, and has after a kill what it had acknowledged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest
from redis import Redis as RedisClient

from tests.services.cache import cached
from tests.services.leash import parents
from tests.services.maven import pom
from tests.services.packages import find_program
from tests.services.postgres import Postgres
from tests.services.redis import Redis
from tests.services.search import Search
from tests.services.service import Service, wait_until

ROOT = Path(__file__).resolve().parents[2]


def ask(url: str, body: str | None = None, method: str | None = None) -> dict[str, object]:
    data = None if body is None else body.encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def test_postgres_keeps_what_was_committed(postgres: Postgres) -> None:
    dsn = postgres.new_database()
    with psycopg.connect(dsn) as connection:
        connection.execute("create table kept (number int primary key)")
        connection.execute("insert into kept select generate_series(1, 1000)")
    with psycopg.connect(dsn) as torn:
        torn.execute("insert into kept values (0)")
        first = postgres.pid
        postgres.kill()
        assert not postgres.is_running
        with pytest.raises(psycopg.OperationalError):
            torn.commit()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    postgres.start()
    assert postgres.pid != first
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select count(*), min(number) from kept").fetchone() == (1000, 1)


def test_databases_are_apart(postgres: Postgres) -> None:
    one, other = postgres.new_database(), postgres.new_database()
    assert one != other
    with psycopg.connect(one) as connection:
        connection.execute("create table here ()")
    with psycopg.connect(other) as connection:
        assert connection.execute("select to_regclass('here')").fetchone() == (None,)


def test_redis_keeps_what_it_acknowledged(redis: Redis) -> None:
    with RedisClient.from_url(redis.url) as client:
        for number in range(1000):
            client.set(f"kept:{number}", number)
    redis.kill()
    redis.start()
    with RedisClient.from_url(redis.url) as client:
        assert client.get("kept:999") == b"999"
        assert client.eval("return #redis.call('keys', 'kept:*')", 0) == 1000


def test_search_keeps_what_it_acknowledged_and_refuses_what_is_stale(search: Search) -> None:
    def write(version: int) -> object:
        head = {"index": {"_id": "a", "version": version, "version_type": "external"}}
        lines = f"{json.dumps(head)}\n{json.dumps({'version': version})}\n"
        found = ask(f"{search.url}/kept/_bulk?refresh=true", lines)
        items = found["items"]
        assert isinstance(items, list)
        return items[0]["index"]["status"]

    assert write(7) == 201
    search.kill()
    search.start()
    assert write(7) == 409
    assert write(8) == 200
    assert ask(f"{search.url}/kept/_doc/a")["_source"] == {"version": 8}
    assert ask(f"{search.url}/kept/_count")["count"] == 1


def test_one_that_was_left_dead_is_there_for_the_next_test(redis: Redis) -> None:
    redis.kill()
    redis.kill()
    redis.revive()
    redis.revive()
    assert redis.is_ready()


@pytest.mark.process
def test_nothing_outlives_tests_that_are_killed() -> None:
    program = (
        "import sys; from tests.services.postgres import Postgres\n"
        "with Postgres() as service:\n"
        "    print(service.pid, service.folder, flush=True); sys.stdin.read()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout is not None
        pid, folder = run.stdout.readline().split()
        assert int(pid) in parents()
        run.send_signal(signal.SIGKILL)
    wait_until(lambda: int(pid) not in parents() and not Path(folder).exists())


class Broken(Service):
    """A program that ends at once."""

    name = "broken"

    def command(self) -> Sequence[str]:
        return ["sh", "-c", "echo no such luck; exit 3"]

    def is_ready(self) -> bool:
        return False


@pytest.mark.process
def test_one_that_does_not_start_says_why() -> None:
    broken = Broken()
    with pytest.raises(AssertionError, match="broken has ended:\nno such luck"):
        broken.__enter__()
    assert not broken.folder.exists()


def test_what_is_cached_is_whole_and_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[Path] = []

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("no room")

    def make(folder: Path) -> None:
        (folder / "whole").touch()
        made.append(folder)

    with pytest.raises(OSError, match="no room"):
        cached("thing", fail)
    assert not (tmp_path / "millrace" / "thing").exists()
    found = cached("thing", make)
    assert cached("thing", make) == found == tmp_path / "millrace" / "thing"
    assert [path.name for path in found.iterdir()] == ["whole"]
    assert len(made) == 1


def test_the_project_file_names_each_artifact() -> None:
    text = pom(["org.example:one:1.0", "org.example:two:2.0"])
    assert text.count("<dependency>") == 2
    assert "<artifactId>two</artifactId>\n      <version>2.0</version>" in text


def test_programs_are_found_beside_the_path(tmp_path: Path) -> None:
    program = tmp_path / "usr" / "bin" / "odd-program"
    program.parent.mkdir(parents=True)
    program.touch()
    pattern = str(tmp_path.relative_to("/")) + "/usr/*"
    assert find_program("odd-program", pattern) == program
    assert find_program("odd-program") is None
