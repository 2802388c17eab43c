"""Pipelines without steps: what every run promises."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event

import msgspec
import pytest

from millrace import Message, Settings, sync
from millrace.errors import Refused, Retry, Stale
from millrace.pipeline import Run, Setting, run_pipeline
from tests.pipeline.ledger import Ledger
from tests.pipeline.scene import ledger_at, plain, run_once


def bodies(ledger: Ledger) -> list[str]:
    return sorted(str(line["value"]) for line in ledger.lines())


def test_rows_come_once(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    queue = m.queue("orders")
    queue.publish_many([b"a", b"b"])
    run_once(plain(declared), m)
    queue.publish(b"c")
    told = run_once(plain(declared), m)
    assert bodies(ledger) == ["a", "b", "c"]
    assert [progress.rows for progress in told] == [1]
    assert run_once(plain(declared), m) == []


def test_limits_cut_spans(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    queue = m.queue("orders", shards=3)
    queue.publish_many([Message(b"%d" % n, key=b"%d" % n) for n in range(20)])
    told = run_once(plain(declared, limit=3), m)
    assert [progress.rows for progress in told] == [3] * 6 + [2]
    assert len(set(bodies(ledger))) == len(ledger.lines()) == 20
    assert queue.cursors() == {"orders": 20}


def test_laggards_are_brought_up_alone(tmp_path: Path, m: sync.Millrace) -> None:
    one, first = ledger_at(tmp_path, "one")
    two, second = ledger_at(tmp_path, "two")
    queue = m.queue("orders")
    queue.publish_many([b"a", b"b"])
    run_once(plain(one), m)
    queue.publish(b"c")
    told = run_once(plain(one, two), m)
    assert bodies(first) == bodies(second) == ["a", "b", "c"]
    assert [progress.rows for progress in told] == [2, 1]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_deleted_cursor_loses_nothing(tmp_path: Path, m: sync.Millrace, shards: int) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    queue = m.queue("orders", shards=shards, retention="log")
    queue.publish_many([b"a", b"b", b"c"])
    run_once(plain(declared), m)
    queue.cursor("orders", retain=True).delete()
    queue.publish_many([b"d", b"e"])
    run_once(plain(declared), m)
    assert bodies(ledger) == ["a", "b", "c", "d", "e"]


def test_what_workers_settle_is_carried(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    queue = m.queue("orders")
    run_once(plain(declared), m)
    queue.publish_many([b"a", b"b"])
    queue.settle(queue.lease(2))
    run_once(plain(declared), m)
    assert bodies(ledger) == ["a", "b"]


def test_deletes_are_applied(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one", key=("key",))
    queue = m.queue("orders", keyed=True, retention="log")
    queue.publish(b"1", key="x")
    queue.publish(b"2", key="y")
    run_once(plain(declared), m)
    queue.publish(None, key="x")
    queue.publish(b"3", key="y")
    run_once(plain(declared), m)
    assert {line["key"]: line["value"] for line in ledger.lines()} == {"y": "3"}


def test_a_queue_made_anew_is_refused(tmp_path: Path, m: sync.Millrace) -> None:
    declared, _ = ledger_at(tmp_path, "one")
    m.queue("orders").publish(b"a")
    run_once(plain(declared), m)
    m.delete_queue("orders")
    m.queue("orders").publish_many([b"b", b"c"])
    with pytest.raises(Refused, match=r"sink 'one'.*made anew"):
        run_once(plain(declared), m)


def test_a_sink_ahead_of_its_queue_is_refused(tmp_path: Path) -> None:
    declared, _ = ledger_at(tmp_path, "one")
    settings = Settings(segment_bytes=4 * 1024 * 1024)
    with sync.open(tmp_path / "new", settings=settings) as m:
        m.queue("orders").publish(b"a")
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    with sync.open(tmp_path / "new") as m:
        m.queue("orders").publish(b"b")
        run_once(plain(declared), m)
    with (
        sync.open(tmp_path / "old", fork=True) as m,
        pytest.raises(Refused, match="another history"),
    ):
        run_once(plain(declared), m)


def test_a_sink_that_is_down_is_asked_again(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    m.queue("orders").publish(b"a")
    down = Path(f"{ledger.path}.down")
    down.touch()
    hasty = msgspec.structs.replace(plain(declared), run=Run(patience=0.05))
    with pytest.raises(Retry, match="sink 'one' did not answer"):
        run_once(hasty, m)
    down.unlink()
    run_once(hasty, m)
    assert bodies(ledger) == ["a"]


def test_who_was_overtaken_ends_and_says_so(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    queue = m.queue("orders")
    queue.publish_many([b"a", b"b"])
    pipeline = plain(declared, limit=1)

    def overtake(_: object) -> None:
        run_once(pipeline, m)

    with pytest.raises(Stale, match="another run of this pipeline has taken over"):
        run_pipeline(pipeline, Setting(millrace=m), once=True, tell=overtake)
    assert bodies(ledger) == ["a", "b"]


def test_a_stop_finishes_what_was_begun(tmp_path: Path, m: sync.Millrace) -> None:
    one, first = ledger_at(tmp_path, "one")
    two, second = ledger_at(tmp_path, "two")
    m.queue("orders").publish_many([b"a", b"b", b"c"])
    stop = Event()
    run_pipeline(
        plain(one, two, limit=1), Setting(millrace=m), stop=stop, tell=lambda _: stop.set()
    )
    assert bodies(first) == bodies(second) == ["a"]
