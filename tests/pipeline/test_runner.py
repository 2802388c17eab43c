"""Pipelines without steps: what every run promises."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import msgspec
import pyarrow as pa
import pytest

from millrace import Message, Settings, limits, sync
from millrace.errors import Refused, Retry, Stale
from millrace.pipeline import DeclaredSink, Run, Setting, rewind_pipeline, run_pipeline
from millrace.pipeline.sink_session import Patience
from millrace.sinks.base import Held
from millrace.sinks.boundary import Span
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


def test_who_slept_longer_than_its_patience_asks_again() -> None:
    """As a process that was stopped in mid-call: no time was left when it woke up."""
    answers: list[int | Retry] = [Retry("nobody answered in time"), 7]

    def call() -> int:
        found = answers.pop(0)
        if isinstance(found, Retry):
            raise found
        return found

    assert Patience(0, Event()).insist("it", call) == 7


@pytest.mark.parametrize(("silent", "said"), [(0.0, 1), (600.0, 0)])
def test_whoever_looks_on_is_told_once_for_whom_it_waits(
    monkeypatch: pytest.MonkeyPatch, silent: float, said: int
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_SILENT_SECONDS", silent)
    monkeypatch.setattr(limits, "PIPELINE_BACKOFF_SECONDS", 0.001)
    answers = [Retry("no way")] * 3
    heard: list[str] = []

    def call() -> None:
        if answers:
            raise answers.pop()

    Patience(600, Event(), heard.append).insist("sink 'db'", call)
    assert heard == ["sink 'db' does not answer, and is asked again: no way"] * said


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


class Deaf(Ledger, frozen=True, kw_only=True):
    """A ledger whose commit is done and not answered, once; something else happens meanwhile."""

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        done = super().commit(held, span, staged)
        if MEANWHILE:
            MEANWHILE.pop()()
            raise Retry("nobody has answered")
        return done


class Slow(Ledger, frozen=True, kw_only=True):
    """A ledger that is opened slowly; much happens meanwhile."""

    def open(self, flow: str, schema: pa.Schema) -> Held:
        while MEANWHILE:
            MEANWHILE.pop()()
        return super().open(flow, schema)


MEANWHILE: list[Callable[[], object]] = []


def as_kind(declared: DeclaredSink, kind: type[Ledger]) -> DeclaredSink:
    return msgspec.structs.replace(declared, kind=f"{__name__}:{kind.__name__}")


def test_a_commit_that_was_not_heard_of_is_made_once(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    m.queue("orders").publish_many([b"a", b"b"])
    MEANWHILE.append(lambda: None)
    told = run_once(plain(as_kind(declared, Deaf)), m)
    assert bodies(ledger) == ["a", "b"]
    assert ledger.fence("orders/one") == 1
    assert [one.rows for one in told[-1].sinks] == [2]


def test_who_did_not_hear_does_not_overtake_the_successor(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    m.queue("orders").publish_many([b"a", b"b", b"c"])
    pipeline = plain(as_kind(declared, Deaf), limit=1)
    MEANWHILE.append(lambda: run_once(pipeline, m))
    with pytest.raises(Stale, match="another run of this pipeline has taken over"):
        run_once(pipeline, m)
    assert bodies(ledger) == ["a", "b", "c"]
    # Nobody has opened the sink after the successor.
    assert ledger.fence("orders/one") == 2


def test_a_predecessor_that_goes_on_until_it_is_overtaken_is_no_sink_ahead(
    tmp_path: Path, m: sync.Millrace
) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    queue = m.queue("orders")
    queue.publish(b"a")

    pipeline = plain(as_kind(declared, Slow))

    def predecessor() -> None:
        queue.publish(b"b")
        run_once(pipeline, m)

    MEANWHILE.append(predecessor)
    run_once(pipeline, m)
    assert bodies(ledger) == ["a", "b"]


def keys_by_shard(queue: sync.Queue) -> list[bytes]:
    """A key of each of two shards."""
    found: dict[int, bytes] = {}
    while len(found) < 2:
        key = b"%d" % sum(ends(queue))
        before = ends(queue)
        queue.publish(b"first", key=key)
        [shard] = [at for at in range(2) if ends(queue)[at] > before[at]]
        found[shard] = key
    return [found[0], found[1]]


def ends(queue: sync.Queue) -> tuple[int, ...]:
    with queue.snapshot() as snapshot:
        return snapshot.boundaries


def test_sinks_that_are_further_in_different_shards_meet(tmp_path: Path, m: sync.Millrace) -> None:
    one, first = ledger_at(tmp_path, "one")
    two, _ = ledger_at(tmp_path, "two", key=("shard", "seq"))
    queue = m.queue("orders", shards=2, retention="log")
    left, right = keys_by_shard(queue)
    pipeline, setting = plain(one, two, limit=3), Setting(millrace=m)
    run_once(pipeline, m)
    queue.publish_many([Message(b"%d" % n, key=right) for n in range(5)])
    passed = datetime.now(UTC) + timedelta(milliseconds=2)
    # Messages have whole milliseconds: what comes within the same one has an earlier time.
    while datetime.now(UTC) <= passed + timedelta(milliseconds=1):
        pass
    queue.publish_many([Message(b"%d" % n, key=left) for n in range(5, 10)])
    stop = Event()
    run_pipeline(pipeline, setting, stop=stop, tell=lambda _: stop.set())
    # One has rows of the left shard only, two is sent to where only the right one had some.
    record = rewind_pipeline(pipeline, setting, passed, ["two"])
    places = [sink.boundary.places[0].seqs for sink in record.sinks if sink.boundary is not None]
    assert places[0][0] > places[1][0]
    assert places[0][1] < places[1][1]
    run_once(pipeline, m)
    assert sorted(word for word in bodies(first) if word != "first") == [f"{n}" for n in range(10)]


def test_runs_of_every_earlier_generation_are_over(tmp_path: Path, m: sync.Millrace) -> None:
    declared, ledger = ledger_at(tmp_path, "one", key=("seq",))
    pipeline, setting = plain(declared), Setting(millrace=m)
    queue = m.queue("orders", retention="log")
    queue.publish(b"a")
    stop = Event()

    def rewind_twice(_: object) -> None:
        for _ in range(2):
            rewind_pipeline(pipeline, setting, "beginning")
        run_once(pipeline, m)
        queue.publish(b"b")

    with pytest.raises(Stale, match="taken over"):
        run_pipeline(pipeline, setting, stop=stop, tell=rewind_twice)
    assert ledger.fence("orders/one") == 2


def test_long_runs_clean_their_sinks(
    tmp_path: Path, m: sync.Millrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared, _ = ledger_at(tmp_path, "one")
    m.queue("orders").publish_many([b"a", b"b", b"c"])
    cleaned: list[str] = []
    monkeypatch.setattr(Ledger, "clean", lambda _, held: cleaned.append(held.flow))
    run_once(plain(declared, limit=1), m)
    assert cleaned == ["orders/one"]
    monkeypatch.setattr(limits, "PIPELINE_CLEAN_SECONDS", 0.0)
    stop = Event()
    m.find("orders").publish(b"d")
    run_pipeline(plain(declared), Setting(millrace=m), stop=stop, tell=lambda _: stop.set())
    assert len(cleaned) == 3
