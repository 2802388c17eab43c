"""TTL of a queue: expired messages are found by their publish time, without any cell."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from millrace.core import bounds, ticks
from millrace.core.answers import Leased, QueueRef
from millrace.core.commands import (
    Configure,
    CreateQueue,
    DeleteQueue,
    LeaseMessages,
    MoveDeadLetters,
    Publish,
    Release,
    RowSchedule,
    RowTtl,
    Settle,
    Tick,
)
from millrace.core.model import CATALOG, NewMessage, ShardId
from millrace.core.needs import ExpiredRows
from millrace.core.spec import QueueSpec, SpecPart
from millrace.core.state.fold import Reader
from millrace.core.state.view import View
from millrace.store.memory_store import MemoryStore
from tests.support.models.commit_group import Group

QUEUE = ShardId(1)
DAY_MS = 24 * 3600 * 1000


class Counting(MemoryStore):
    """A store that records the reads of expired messages."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def outlived(self, shard: ShardId, after: int, before_ms: int, limit: int) -> ExpiredRows:
        self.asked.append(after)
        return super().outlived(shard, after, before_ms, limit)


def queue_of(spec: QueueSpec) -> Group:
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "q", spec)))
    return group


def view_of(group: Group) -> View:
    view = group.view(QUEUE)
    assert view is not None
    return view


def leased(group: Group, count: int = 10, lease_ms: int = 30_000) -> Leased:
    [answer] = group.ask((QUEUE, LeaseMessages(count, lease_ms)))
    assert isinstance(answer, Leased)
    return answer


def live(group: Group) -> list[int]:
    return list(group.seqs(QUEUE, Reader()))


def tick(group: Group) -> int:
    """As the host does it; returns in how many batches."""
    count = 0
    while ticks.tick_due(view_of(group), group.now):
        count += 1
        if group.ask((QUEUE, Tick()))[0] is not True:
            break
    return count


@pytest.mark.parametrize("crashes", [False, True])
def test_what_was_settled_leaves_nothing_behind(*, crashes: bool) -> None:
    """Four days of commits would be hundreds of millions of cells, and a view in memory."""
    group = queue_of(QueueSpec(ttl_ms=4 * DAY_MS))
    cells = len(list(group.store.cells(QUEUE)))
    for _ in range(1_000):
        group.now += 10
        group.ask((QUEUE, Publish((NewMessage(b"x"),))))
        lease = leased(group)
        group.ask((QUEUE, Settle(lease.lease, lease.seqs, group.history)))
    assert not live(group)
    group.now += DAY_MS
    tick(group)
    assert len(list(group.store.cells(QUEUE))) <= cells + 1, "the pointers, and nothing else"
    if crashes:
        group.crash()
    assert view_of(group).is_idle()
    group.check()


def test_a_view_stays_while_something_is_left_that_will_be_over() -> None:
    group = queue_of(QueueSpec(ttl_ms=DAY_MS))
    group.ask((QUEUE, Publish((NewMessage(b"a"), NewMessage(b"b")))))
    lease = leased(group, 1)
    group.ask((QUEUE, Settle(lease.lease, lease.seqs, group.history)))
    group.now += DAY_MS // 2
    tick(group)
    assert not view_of(group).is_idle()
    group.crash()
    assert not view_of(group).is_idle()
    group.now += DAY_MS // 2
    tick(group)
    assert not live(group)
    assert view_of(group).is_idle()
    group.check()


def test_whether_a_queue_is_empty_is_asked_once() -> None:
    group = queue_of(QueueSpec(ttl_ms=DAY_MS))
    group.ask((QUEUE, Publish((NewMessage(b"a"),), aside=(RowSchedule(0, 1, 4, 3_600_000),))))
    assert not ticks.tick_due(view_of(group), group.now + bounds.EMPTY_CHECK_MS - 1)
    group.now += bounds.EMPTY_CHECK_MS
    assert tick(group) == 1
    assert not view_of(group).is_idle(), "it is delayed, and there"
    group.now += bounds.EMPTY_CHECK_MS
    assert tick(group) == 0


@pytest.mark.parametrize("crashes", [False, True])
def test_another_time_counts_for_what_is_there(*, crashes: bool) -> None:
    group = queue_of(QueueSpec(ttl_ms=DAY_MS))
    for _ in range(3):
        group.ask((QUEUE, Publish((NewMessage(b"x"),))))
        group.now += 60_000
    group.ask((QUEUE, Configure(SpecPart(ttl_ms=120_000))))
    if crashes:
        group.crash()
    tick(group)
    assert live(group) == [3], "shortened"
    group.ask((QUEUE, Configure(SpecPart(ttl_ms=200_000))))
    group.now += 60_000
    tick(group)
    assert leased(group).seqs == BitMap64([3]), "lengthened"
    group.check()


def test_a_time_that_comes_later_counts_for_what_is_there() -> None:
    group = queue_of(QueueSpec())
    group.ask((QUEUE, Publish((NewMessage(b"x"),), lives=(RowTtl(0, 1, DAY_MS),))))
    group.now += 60_000
    group.ask((QUEUE, Publish((NewMessage(b"x"),))))
    group.ask((QUEUE, Configure(SpecPart(ttl_ms=60_000))))
    assert leased(group, 5).seqs == BitMap64([2])
    assert live(group) == [2]
    group.check()


def test_without_a_time_nothing_goes_any_more() -> None:
    group = queue_of(QueueSpec(ttl_ms=1_000))
    group.ask((QUEUE, Publish((NewMessage(b"x"),))))
    group.ask((QUEUE, Configure(SpecPart(ttl_ms=0))))
    group.now += DAY_MS
    tick(group)
    assert live(group) == [1]
    assert view_of(group).is_idle(), "nothing goes by itself"


def test_those_of_their_own_time_go_by_the_shorter_one() -> None:
    group = queue_of(QueueSpec(ttl_ms=10_000))
    lives = (RowTtl(0, 1, 5_000), RowTtl(1, 1, 20_000))
    group.ask((QUEUE, Publish(tuple(NewMessage(b"x") for _ in range(3)), lives=lives)))
    for later, left in ((4_999, [1, 2, 3]), (1, [2, 3]), (4_999, [2, 3]), (1, [])):
        group.now += later
        tick(group)
        assert live(group) == left
    group.check()


def test_their_own_time_holds_when_that_of_the_queue_is_longer_later() -> None:
    group = queue_of(QueueSpec(ttl_ms=10_000))
    group.ask((QUEUE, Publish((NewMessage(b"x"),), lives=(RowTtl(0, 1, 20_000),))))
    group.ask((QUEUE, Configure(SpecPart(ttl_ms=DAY_MS))))
    group.now += 19_999
    tick(group)
    assert live(group) == [1]
    group.now += 1
    tick(group)
    assert live(group) == []


def test_nobody_is_given_what_is_over_though_it_is_not_folded() -> None:
    group = queue_of(QueueSpec(ttl_ms=1_000))
    group.ask((QUEUE, Publish((NewMessage(b"stored"),))))
    group.hold = True
    group.ask((QUEUE, Publish((NewMessage(b"over"),))))
    group.now += 500
    group.ask((QUEUE, Publish((NewMessage(b"new"),))))
    group.now += 500
    assert leased(group).seqs == BitMap64([3])
    group.hold = False
    group.fold()
    assert live(group) == [3]
    group.check()


def test_more_than_a_batch_ends_go_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "QUEUE_TTL_STEP", 10)
    group = queue_of(QueueSpec(ttl_ms=1_000))
    group.ask((QUEUE, Publish(tuple(NewMessage(b"x") for _ in range(95)))))
    group.now += 1_000
    group.ask((QUEUE, Publish((NewMessage(b"new"),))))
    assert not leased(group).seqs, "it may be among those that are over"
    assert len(live(group)) == 96 - 10 * bounds.EXPIRY_STEPS_MAX
    assert tick(group) == 8
    assert live(group) == [96]
    assert leased(group).seqs == BitMap64([96])
    group.check()


def test_who_is_held_ends_when_it_comes_back_also_after_a_crash() -> None:
    group = queue_of(QueueSpec(ttl_ms=1_000))
    group.ask((QUEUE, Publish((NewMessage(b"x"), NewMessage(b"y")))))
    held = leased(group, 1)
    group.now += 1_000
    for _ in range(3):
        tick(group)
        assert live(group) == [1]
        batches = len(group.log)
        group.crash()
        tick(group)
        assert len(group.log) == batches, "its lease knows it already"
    group.ask((QUEUE, Release(held.lease, held.seqs, group.history)))
    tick(group)
    assert not live(group)
    group.check()


@pytest.mark.parametrize("whose", ["the queue's", "its own"])
def test_a_view_stays_while_somebody_holds_what_is_over(whose: str) -> None:
    """Else it would not end when it comes back, unless somebody asks for it."""
    group = queue_of(QueueSpec(ttl_ms=1_000 if whose == "the queue's" else 0))
    own = () if whose == "the queue's" else (RowTtl(0, 1, 1_000),)
    group.ask((QUEUE, Publish((NewMessage(b"x"),), lives=own)))
    leased(group, 1, 60_000)
    group.now += 1_000
    tick(group)
    group.now += bounds.EXPIRY_GC_MS
    tick(group)
    assert not view_of(group).is_idle()
    group.crash()
    assert not view_of(group).is_idle()
    group.now += 60_000
    tick(group)
    assert not live(group)
    group.now += bounds.EXPIRY_GC_MS
    tick(group)
    assert view_of(group).is_idle()


@pytest.mark.parametrize("whose", ["the queue's", "its own"])
@pytest.mark.parametrize("crashes", [False, True])
def test_a_dead_letter_that_is_none_any_more_is_over_all_the_same(
    whose: str, *, crashes: bool
) -> None:
    """Its queue was deleted, so that it waited; then the settings named none any more."""
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "dead", QueueSpec())))
    ttl_ms = 1_000 if whose == "the queue's" else 0
    spec = QueueSpec(ttl_ms=ttl_ms, dead_letter="default/dead", max_deliveries=1)
    [made] = group.ask((CATALOG, CreateQueue("default", "q", spec)))
    assert isinstance(made, QueueRef)
    [queue] = made.shards
    group.ask((CATALOG, DeleteQueue("default", "dead")))
    lives = () if ttl_ms else (RowTtl(0, 1, 1_000),)
    group.ask((queue, Publish((NewMessage(b"x"), NewMessage(b"y")), lives=lives)))
    [lease] = group.ask((queue, LeaseMessages(1, 30_000)))
    assert isinstance(lease, Leased)
    group.ask((queue, Release(lease.lease, lease.seqs, group.history)))
    group.now += 1_000
    group.ask((queue, Tick()))
    view = group.view(queue)
    assert view is not None
    assert view.doomed == BitMap64([1])
    if crashes:
        group.crash()
    group.ask((queue, Configure(SpecPart(dead_letter="", max_deliveries=0))))
    group.ask((queue, MoveDeadLetters(((1, group.now - 1_000, NewMessage(b"x")),))))
    [lease] = group.ask((queue, LeaseMessages(2, 30_000)))
    assert isinstance(lease, Leased)
    assert 1 not in lease.seqs
    group.ask((queue, Tick()))
    assert 1 not in group.seqs(queue, Reader())
    group.check()


def test_deletes_go_by_their_own_age() -> None:
    group = queue_of(QueueSpec(keyed=True, ttl_ms=1_000, keep_deletes_ms=60_000))
    group.ask((QUEUE, Publish((NewMessage(b"x", b"k"),))))
    group.ask((QUEUE, Publish((NewMessage(None, b"k"), NewMessage(b"y", b"other")))))
    group.now += 1_000
    tick(group)
    assert live(group) == [2]
    group.now += 60_000
    tick(group)
    assert not live(group)
    group.check()


def test_the_store_is_asked_when_something_may_be_over_and_not_before() -> None:
    group = queue_of(QueueSpec(ttl_ms=10_000))
    counting = Counting()
    for entry in group.committed():
        counting.fold(entry, None)
    group.store = counting
    for _ in range(100):
        group.now += 100
        group.ask((QUEUE, Publish((NewMessage(b"x"),))))
        lease = leased(group)
        assert len(lease.seqs) == 1
        group.ask((QUEUE, Settle(lease.lease, lease.seqs, group.history)))
    assert len(counting.asked) <= 2
    group.check()


def test_what_is_replayed_is_the_same() -> None:
    group = queue_of(QueueSpec(ttl_ms=1_000))
    for at in range(20):
        group.ask((QUEUE, Publish((NewMessage(b"%d" % at),))))
        group.now += 100
        leased(group, 1, 150)
    tick(group)
    left, meta = live(group), group.store.meta(QUEUE)
    group.take_over("B", len(group.log))
    assert live(group) == left
    assert group.store.meta(QUEUE) == meta
    group.check()
