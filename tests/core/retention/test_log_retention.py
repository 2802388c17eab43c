"""Retention by bytes: measured rows, dropped cursors and pins, and their errors."""

from __future__ import annotations

import pytest

from millrace.core.answers import Holder, Holders, Leased, QueueRef, SnapshotRef
from millrace.core.cells import CursorCell
from millrace.core.commands import (
    Command,
    CommitCursor,
    CreateQueue,
    LeaseMessages,
    ListHolders,
    NextSnapshot,
    OpenCursor,
    Pin,
    Publish,
    Settle,
    Tick,
)
from millrace.core.format.block import Block
from millrace.core.model import CATALOG, CursorPosition, StartPoint
from millrace.core.retention import log_retention
from millrace.core.spec import QueueSpec
from millrace.core.state import row_sizes
from millrace.core.state.fold import Reader
from millrace.errors import CursorExpired
from tests.support.models.commit_group import Group, Result

SIZE = Block.of_bodies([b"x" * 1000]).size()
SPEC = QueueSpec(retention="log", keep_bytes=3 * SIZE)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sizes, "WEIGHT_BYTES", 100)


class Log:
    """A queue with a log's settings."""

    def __init__(self, **settings: object) -> None:
        self.group = Group()
        spec = QueueSpec(**{"retention": "log", "keep_bytes": 3 * SIZE, **settings})  # type: ignore[arg-type]
        [made] = self.group.ask((CATALOG, CreateQueue("default", "q", spec)))
        assert isinstance(made, QueueRef)
        self.shard = made.shards[0]

    def ask(self, command: Command) -> Result:
        [answer] = self.group.ask((self.shard, command))
        self.group.check()
        return answer

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.ask(Publish(Block.of_bodies([b"x" * 1000])))

    def tick(self) -> list[int]:
        """Let time do its work; returns the rows that are there."""
        while self.ask(Tick()) is True:
            pass
        return list(self.group.seqs(self.shard, Reader()))

    def holders(self) -> list[Holder]:
        answer = self.ask(ListHolders())
        assert isinstance(answer, Holders)
        return list(answer.held)


def test_at_least_so_many_bytes_are_kept() -> None:
    log = Log()
    log.publish(3)
    assert log.tick() == [1, 2, 3]
    log.publish(2)
    assert log.tick() == [3, 4, 5]
    log.group.crash()
    log.publish(1)
    assert log.tick() == [4, 5, 6]
    meta = log.group.store.meta(log.shard)
    assert meta is not None
    assert meta.weight == 6 * SIZE


def test_a_batch_ends_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retention, "TICK_EXPIRED_MAX", 2)
    log = Log()
    log.publish(9)
    assert log.ask(Tick()) is True
    assert list(log.group.seqs(log.shard, Reader())) == [3, 4, 5, 6, 7, 8, 9]
    assert log.tick() == [7, 8, 9]


def test_retention_waits_for_a_cursor_until_it_holds_back_too_much() -> None:
    log = Log(retain_max_bytes=5 * SIZE)
    log.ask(OpenCursor("lake", StartPoint.BEGINNING, retain=True))
    log.publish(5)
    assert log.tick() == [1, 2, 3, 4, 5]
    [holder] = log.holders()
    assert (holder.kind, holder.name, holder.rows, holder.bytes) == ("cursor", "lake", 5, 5 * SIZE)
    log.publish(1)
    log.tick()
    assert log.tick() == [4, 5, 6]
    refused = log.ask(NextSnapshot("lake", 1, 0, 1000))
    assert isinstance(refused, CursorExpired)
    assert "stood at 0" in refused.message
    assert [holder.dropped for holder in log.holders()] == [True]


def test_a_cursor_that_moves_on_is_not_dropped() -> None:
    log = Log(retain_max_bytes=4 * SIZE)
    log.ask(OpenCursor("lake", StartPoint.BEGINNING, retain=True))
    for _ in range(6):
        log.publish(3)
        ref = log.ask(NextSnapshot("lake", 1, 0, 1000))
        assert isinstance(ref, SnapshotRef)
        position = CursorPosition(ref.history, ref.boundary, ref.after, ref.boundary)
        assert isinstance(log.ask(CommitCursor("lake", 1, position)), CursorCell)
        assert len(log.tick()) == 3


def test_a_pin_that_keeps_too_much_is_dropped() -> None:
    log = Log(pin_max_bytes=4 * SIZE)
    log.publish(3)
    pin = log.ask(Pin(3_600_000))
    assert isinstance(pin, SnapshotRef)
    log.publish(4)
    assert log.tick() == [5, 6, 7]
    assert list(log.group.seqs(log.shard, Reader(pin.pin))) == [1, 2, 3, 4, 5, 6, 7]
    [holder] = log.holders()
    assert (holder.kind, holder.rows, holder.bytes, holder.pin) == ("pin", 4, 4 * SIZE, pin.pin)
    log.publish(1)
    assert log.tick() == [6, 7, 8]
    assert [holder.rows for holder in log.holders()] == [5], "it is not weighed all the time"
    log.group.now += log_retention.PIN_CHECK_MS
    log.tick()
    assert log.holders() == []


def test_a_pin_of_a_work_queue_counts_what_died_since() -> None:
    """Neither rows that were dead before, nor live ones."""
    log = Log(retention="work", keep_bytes=0, pin_max_bytes=3 * SIZE)
    log.publish(10)
    for count in (4, 3, 1):
        if count == 3:
            log.ask(Pin(3_600_000))
        leased = log.ask(LeaseMessages(count, 1000))
        assert isinstance(leased, Leased)
        log.ask(Settle(leased.lease, leased.seqs, log.group.history))
        log.group.now += log_retention.PIN_CHECK_MS
        log.tick()
        if count == 3:
            assert [(one.rows, one.bytes) for one in log.holders()] == [(3, 3 * SIZE)]
    assert log.holders() == []


def test_what_settled_rows_a_cursor_holds_back_is_weighed() -> None:
    log = Log(retention="work", keep_bytes=0, retain_max_bytes=2 * SIZE)
    log.ask(OpenCursor("lake", StartPoint.BEGINNING, retain=True))
    log.publish(9)
    for count in (2, 1):
        leased = log.ask(LeaseMessages(count, 1000))
        assert isinstance(leased, Leased)
        log.ask(Settle(leased.lease, leased.seqs, log.group.history))
        log.tick()
        assert [holder.dropped for holder in log.holders()] == [count == 1]
    assert list(log.group.seqs(log.shard, Reader(retain=True))) == [4, 5, 6, 7, 8, 9]


def test_regions_are_forgotten_with_their_rows() -> None:
    log = Log()
    log.publish(200)
    log.tick()
    log.publish(100)
    log.tick()
    view = log.group.view(log.shard)
    assert view is not None
    assert len(view.scale) < 150, "as many go as come, and some more"
