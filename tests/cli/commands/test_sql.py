"""`millrace sql`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.desk import SECONDS, Desk


def rows(desk: Desk, query: str) -> list[object]:
    return [line["row"] for line in desk.lines("sql", query)]


def test_queues_are_tables(desk: Desk) -> None:
    query = """select text ->> 'customer' as customer, count(*) as orders from orders
        where value is not null group by all order by customer"""
    assert rows(desk, query) == [
        {"customer": "Ada", "orders": 2},
        {"customer": "Edsger", "orders": 1},
        {"customer": "Grace", "orders": 1},
    ]


def test_several_queues_and_twice_the_same(desk: Desk) -> None:
    query = """select count(*) as n from orders a join orders b using (seq)
        join mail m on m.seq = a.seq"""
    assert rows(desk, query) == [{"n": 2}]


def test_names_that_need_quotes(desk: Desk) -> None:
    for name in ("a-b", "shop/baskets"):
        desk.text("queue", "make", name)
        desk.text("publish", name, "x")
        assert rows(desk, f'select text from "{name}"') == [{"text": "x"}]


def test_bytes_that_are_no_text(desk: Desk) -> None:
    desk.text("publish", "mail", given=b"\xff\x00")
    query = "select value, text from mail where seq = 5"
    assert rows(desk, query) == [{"value_base64": "/wA=", "text": None}]
    assert r"\xff\x00" in desk.text("sql", query)


def test_times_and_headers(desk: Desk) -> None:
    (row,) = rows(desk, "select time, headers from orders where seq = 1")
    assert isinstance(row, dict)
    assert row["headers"] == [{"name": "source", "value": "shop"}]
    assert str(row["time"]).endswith("+00:00")


def test_writes_files(desk: Desk) -> None:
    target = desk.home / "mail.parquet"
    desk.text("sql", f"copy (select seq, text from mail) to '{target}'")
    assert target.read_bytes()[:4] == b"PAR1"


def test_mistakes_are_one_line(desk: Desk) -> None:
    result = desk.call("sql", "select * from orderz")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "Error: there is no queue 'orderz'\nHint: did you mean 'orders'?"
    )
    for query in ("sselect 1", "select nothing from orders"):
        result = desk.call("sql", query)
        assert result.exit_code == 1
        assert len(result.stderr.splitlines()) == 2, result.stderr


@pytest.mark.process
def test_without_duckdb(desk: Desk) -> None:
    code = "import sys; sys.modules['duckdb'] = None\nfrom millrace.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, "sql", "select 1"],
        env=desk.environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "Hint: pip install 'millrace[sql]'" in done.stderr
