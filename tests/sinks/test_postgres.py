"""Rows in PostgreSQL: the contract, what tables refuse, and a server that is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from millrace.errors import Invalid, Refused, Retry, Stale
from millrace.sinks.base import Held, Task
from millrace.sinks.postgres import Connection
from millrace.sinks.postgres import Postgres as PostgresSink
from millrace.testing.check_sink import (
    FLOW,
    SCHEMA,
    SinkRun,
    batch_of,
    puts,
    span,
)
from tests.services.postgres import Postgres
from tests.sinks.carrier import carry_with_kills, expected, left
from tests.sinks.rigs import Check, ReadRig, every_check


@pytest.fixture(scope="module")
def database(starts_processes: None, postgres_of_run: Postgres) -> str:
    return postgres_of_run.new_database()


@pytest.fixture
def url(postgres: Postgres, database: str) -> str:
    """A database that is empty but for nothing."""
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("DROP SCHEMA public CASCADE")
        db.execute("CREATE SCHEMA public")
    return database


def make(url: str, *, key: tuple[str, ...] = ("key",), table: str = "prices") -> ReadRig:
    sink = PostgresSink(url=url, table=table, key=key)
    return ReadRig(sink, sink)


def test_a_run_that_was_stopped_with_the_lock_is_cut_off(url: str) -> None:
    """It would hold up its successor for as long as it sleeps."""
    sink = PostgresSink(url=url, table="prices")
    held = sink.open(FLOW, SCHEMA)
    idle: list[object] = []

    class Looking(PostgresSink, frozen=True, kw_only=True, forbid_unknown_fields=True):
        def _fenced(self, db: Connection, held: Held, *, lock: bool) -> Held:
            query = "SHOW idle_in_transaction_session_timeout"
            idle.append((lock, db.execute(query).fetchone()))
            return super()._fenced(db, held, lock=lock)

    run = Looking(url=url, table="prices")
    piece = span(0, 5)
    staged = run.stage(Task(held, piece, "part"), [batch_of(puts("a"))])
    run.commit(held, piece, [staged])
    assert idle == [(False, ("0",)), (True, ("10s",))]


@every_check
@pytest.mark.parametrize("key", [(), ("key",)], ids=["added", "keyed"])
def test_contract(check: Check, key: tuple[str, ...], url: str) -> None:
    rig = make(url, key=key)
    check(rig)
    rig.close()


def ask(url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(query).fetchall()


@pytest.mark.process
def test_a_writer_that_is_killed_loses_and_doubles_nothing(url: str) -> None:
    address = f"{url}?table=prices&key=key"
    carry_with_kills(address, kills=2, spans=30, seed=1)
    assert left(make(url)) == expected(30)


@pytest.mark.process
def test_a_server_that_is_killed_loses_and_doubles_nothing(url: str, postgres: Postgres) -> None:
    def strike(_: int) -> None:
        postgres.kill()
        postgres.start()

    carry_with_kills(f"{url}?table=prices&key=key", kills=2, spans=30, seed=2, strike=strike)
    assert left(make(url)) == expected(30)


@pytest.mark.process
def test_a_server_that_is_down_is_asked_again(url: str, postgres: Postgres) -> None:
    run = SinkRun(make(url))
    postgres.kill()
    with pytest.raises(Retry, match="is it running there"):
        run.carry(span(0, 5), puts("a"))
    with pytest.raises(Retry, match="is it running there"):
        run.sink.open(run.flow, SCHEMA)
    postgres.start()
    again = SinkRun(make(url))
    again.carry(span(0, 5), puts("a"))
    again.sees(puts("a"))


@pytest.mark.process
def test_what_was_staged_before_a_crash_is_staged_again(url: str, postgres: Postgres) -> None:
    run = SinkRun(make(url))
    staged = run.stage_all(span(0, 5), puts("a"))
    postgres.kill()
    postgres.start()
    with pytest.raises(Retry):
        run.commit(span(0, 5), staged)
    with pytest.raises(Retry, match="stage them again"):
        run.commit(span(0, 5), staged)
    run.sees([])


def test_a_value_that_is_refused_is_named(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE prices (key text PRIMARY KEY, value integer, seq bigint)")
    sink = PostgresSink(url=url, table="prices", key=("key",))
    run = SinkRun(make(url))
    good, bad = batch_of(puts("a", value="")), batch_of(puts("b", "c", value="x"))
    number = pa.array(["1"], pa.string())
    good = good.set_column(2, "value", number)
    with pytest.raises(Invalid, match=r"row key 'b', column 'value'.*'bx'.*type integer"):
        sink.stage(Task(run.held, span(0, 5), "bad"), [good, bad])
    token = sink.stage(Task(run.held, span(0, 5), "good"), [good])
    sink.commit(run.held, span(0, 5), [token])
    assert ask(url, "SELECT key, value FROM prices") == [("a", 1)]


def test_a_text_that_no_text_may_be_is_named(url: str) -> None:
    run = SinkRun(make(url))
    with pytest.raises(Invalid, match=r"row key 'b1?', column 'value'.*NUL") as caught:
        run.carry(span(0, 5), [*puts("a"), *puts("b", value="\0")])
    assert caught.value.field == "value"
    run.sees([])


def test_what_the_table_refuses_changes_nothing(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "CREATE TABLE prices (key text PRIMARY KEY, value text CHECK (value <> 'b1'), "
            "seq bigint, extra integer DEFAULT 7)"
        )
    run = SinkRun(make(url))
    with pytest.raises(Invalid, match=r"prices.*check constraint.*b1"):
        run.carry(span(0, 5), puts("a", "b"))
    run.sees([])
    run.carry(span(0, 5), puts("a"))
    assert ask(url, "SELECT key, extra FROM prices") == [("a", 7)]


def test_a_table_that_does_not_fit_is_refused(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE prices (key text, value text)")
        db.execute("CREATE TABLE loose (key text, value text, seq bigint)")
    with pytest.raises(Invalid, match=r'lacks a column of the rows: column "seq"'):
        SinkRun(make(url))
    with pytest.raises(Invalid, match=r"no unique index on \(key\)"):
        SinkRun(make(url, table="loose"))


def test_names_are_quoted(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute('CREATE SCHEMA "Shop ""A"""')
    run = SinkRun(make(url, table='Shop "A".pri"ces; --'))
    run.carry(span(0, 5), puts("a"))
    run.sees(puts("a"))
    assert ask(url, 'SELECT count(*) FROM "Shop ""A"""."pri""ces; --"') == [(1,)]


def test_every_type_has_its_place(url: str) -> None:
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "id": 1,
                "flag": True,
                "size": 1.5,
                "raw": b"\x00\xff",
                "at": datetime(2026, 1, 2, tzinfo=UTC),
                "day": date(2026, 1, 2),
                "price": Decimal("12.30"),
                "tags": ["a", "b"],
                "who": {"name": "Ada", "raw": b"x"},
                "nothing": None,
            }
        ]
    )
    sink = PostgresSink(url=url, table="types", key=("id",))
    held = sink.open("types/sink", batch.schema)
    token = sink.stage(Task(held, span(0, 1), "one"), [batch])
    sink.commit(held, span(0, 1), [token])
    [row] = ask(url, "SELECT id, flag, size, raw, day, price, tags, who, nothing FROM types")
    assert row == (
        1,
        True,
        1.5,
        b"\x00\xff",
        date(2026, 1, 2),
        Decimal("12.30"),
        ["a", "b"],
        {"name": "Ada", "raw": "eA=="},
        None,
    )
    [back] = sink.rows(["at", "id"])
    assert back.to_pylist() == [{"at": datetime(2026, 1, 2, tzinfo=UTC), "id": 1}]


def test_cleaning_drops_the_tables_of_those_who_were_overtaken(url: str) -> None:
    SinkRun(make(url)), SinkRun(make(url), "other/sink")
    run = SinkRun(make(url))
    run.sink.clean(run.held)
    query = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename ~ '_stage_'"
    assert ask(url, query) == [(2,)]


def test_two_commits_at_once_wait_for_each_other(url: str) -> None:
    run, rows = SinkRun(make(url)), puts("a")
    staged = run.stage_all(span(0, 5), rows)
    with psycopg.connect(url) as db:
        db.execute("SELECT fence FROM millrace_flows WHERE flow = %s FOR UPDATE", [run.flow])
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(run.commit, span(0, 5), staged)
            while not ask(url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
                pass
            db.execute("UPDATE millrace_flows SET fence = fence + 1")
            db.commit()
            with pytest.raises(Stale):
                waiting.result()
    run.sees([])


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/none"])
def test_nobody_there(url: str) -> None:
    with pytest.raises(Retry, match="is it running there"):
        make(url).sink.open("a/b", SCHEMA)


def test_nobody_is_let_in(url: str) -> None:
    wrong = url.rsplit("/", 1)[0] + "/missing"
    with pytest.raises(Refused, match='database "missing" does not exist'):
        make(wrong).sink.open("a/b", SCHEMA)
    with pytest.raises(Refused, match="no address"):
        make("postgresql://[").sink.open("a/b", SCHEMA)
