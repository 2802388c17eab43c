"""The cursor of a pipeline: made anew, set back, and what went while nothing kept it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from millrace import sync
from millrace.client.multi_shard_cursor import dropped_cursors
from millrace.errors import CursorExpired
from millrace.pipeline import Pipeline, Setting, rewind_pipeline
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import ledger_at, plain, run_once


def bodies(ledger: Ledger) -> list[str]:
    return sorted(str(line["value"]) for line in ledger.lines())


def settled(queue: sync.Queue, *values: bytes) -> None:
    """Messages that came and were settled."""
    queue.publish_many(list(values))
    queue.settle(queue.lease(len(values)))


def carried(m: sync.Millrace, folder: Path) -> tuple[Pipeline, Ledger, sync.Queue]:
    """A work queue whose first two messages were carried, and settled."""
    declared, ledger = ledger_at(folder, "one")
    queue = m.queue("orders")
    run_once(plain(declared), m)
    settled(queue, b"a", b"b")
    run_once(plain(declared), m)
    return plain(declared), ledger, queue


def test_rows_that_were_settled_while_nothing_kept_them_are_missed(
    tmp_path: Path, m: sync.Millrace
) -> None:
    pipeline, ledger, queue = carried(m, tmp_path)
    queue.cursor("orders", retain=True).delete()
    settled(queue, b"c")
    queue.publish(b"d")
    for _ in range(2):
        with pytest.raises(CursorExpired, match=r"1 rows after 2 were settled.*rewind"):
            run_once(pipeline, m)
    assert bodies(ledger) == ["a", "b"]
    rewind_pipeline(pipeline, Setting(millrace=m), "end")
    queue.publish(b"e")
    run_once(pipeline, m)
    assert bodies(ledger) == ["a", "b", "e"]


def test_a_cursor_that_was_deleted_with_nothing_settled_goes_on(
    tmp_path: Path, m: sync.Millrace
) -> None:
    pipeline, ledger, queue = carried(m, tmp_path)
    queue.cursor("orders", retain=True).delete()
    queue.publish_many([b"c", b"d"])
    run_once(pipeline, m)
    assert bodies(ledger) == ["a", "b", "c", "d"]


def test_a_sink_that_was_put_back_misses_what_the_queue_let_go(
    tmp_path: Path, m: sync.Millrace
) -> None:
    pipeline, ledger, queue = carried(m, tmp_path)
    with closing(sqlite3.connect(ledger.path)) as db, db:
        [(text,)] = db.execute("select boundary from flows")
        settled(queue, b"c", b"d")
        run_once(pipeline, m)
        db.execute("update flows set boundary = ?", (text,))
        db.execute("delete from lines where line like '%\"c\"%' or line like '%\"d\"%'")
    with pytest.raises(CursorExpired, match="2 rows after 2 were settled"):
        run_once(pipeline, m)
    # What comes is kept all the same.
    assert queue.cursors() == {"orders": 4}


def test_a_sink_that_is_added_takes_nothing_from_the_others(
    tmp_path: Path, m: sync.Millrace
) -> None:
    pipeline, first, queue = carried(m, tmp_path)
    settled(queue, b"c")
    two, second = ledger_at(tmp_path, "two")
    run_once(msgspec.structs.replace(pipeline, sinks=(*pipeline.sinks, two)), m)
    assert bodies(first) == ["a", "b", "c"]
    # The others were settled before it was there.
    assert bodies(second)[-1] == "c"


def test_purged_rows_are_missed_also_where_another_sink_begins(
    tmp_path: Path, m: sync.Millrace
) -> None:
    one, first = ledger_at(tmp_path, "one")
    two, _ = ledger_at(tmp_path, "two")
    queue = m.queue("orders", retention="log")
    queue.publish_many([b"a", b"b"])
    run_once(plain(one), m)
    queue.publish(b"never read")
    queue.purge()
    queue.publish(b"c")
    with pytest.raises(CursorExpired, match="rewind"):
        run_once(plain(one, two), m)
    assert bodies(first) == ["a", "b"]


def test_a_cursor_that_was_dropped_is_left_by_a_rewind(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    pipeline = plain(declared)
    queue = m.queue("orders", keyed=True, retain_max_bytes=1000)
    run_once(pipeline, m)
    queue.publish(b"a", key="a")
    run_once(pipeline, m)
    for number in range(20):
        queue.publish(b"x" * 500, key=f"{number}")
    while not is_dropped_named(queue):
        queue.publish(b"x" * 500, key="more")
        queue.settle(queue.lease(1))
    with pytest.raises(CursorExpired, match="was dropped"):
        run_once(pipeline, m)
    rewind_pipeline(pipeline, Setting(millrace=m), "end")
    queue.publish(b"z", key="z")
    run_once(pipeline, m)
    assert bodies(ledger) == ["a", "z"]


def is_dropped_named(queue: sync.Queue) -> bool:
    return bool(queue._portal.run(lambda: dropped_cursors(queue._twin, "orders")))
