"""Expiry cells of ended messages are collected early, and no others are."""

from __future__ import annotations

import pytest

from millrace.core import bounds, ticks
from millrace.core.answers import Leased
from millrace.core.cells import Kind
from millrace.core.commands import (
    CreateQueue,
    LeaseMessages,
    Publish,
    RowSchedule,
    RowTtl,
    Settle,
    Tick,
)
from millrace.core.model import CATALOG, NewMessage, ShardId
from millrace.core.spec import QueueSpec
from millrace.core.state.fold import Reader
from tests.support.models.commit_group import Group

QUEUE = ShardId(1)
HOUR_MS = 3600 * 1000
OWN = (RowTtl(0, 1, HOUR_MS),)


def make() -> Group:
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec())))
    return group


def tick(group: Group) -> int:
    """As the host does it, for as long as a batch says that there is more; returns how many."""
    view = group.view(QUEUE)
    assert view is not None
    count = 0
    while ticks.tick_due(view, group.now) and count < 1_000:
        count += 1
        if group.ask((QUEUE, Tick()))[0] is not True:
            break
    return count


def cells(group: Group) -> int:
    return len(list(group.store.cells(QUEUE, Kind.EXPIRY)))


def work(group: Group, count: int) -> None:
    """Publish `count` messages in separate commits, each settled by the next one."""
    for _ in range(count):
        group.now += 10
        group.ask((QUEUE, Publish((NewMessage(b"x"),), lives=OWN)))
        [lease] = group.ask((QUEUE, LeaseMessages(1, 30_000)))
        assert isinstance(lease, Leased)
        group.ask((QUEUE, Settle(lease.lease, lease.seqs, group.history)))


@pytest.mark.parametrize("is_one_left", [False, True])
@pytest.mark.parametrize("crashes", [False, True])
def test_cells_go_when_their_messages_have_ended(*, crashes: bool, is_one_left: bool) -> None:
    """Also behind one that stays: at a thousand commits a second they would be millions."""
    group = make()
    if is_one_left:
        later = (RowSchedule(0, 1, 4, 60_000),)
        group.ask((QUEUE, Publish((NewMessage(b"later"),), aside=later, lives=OWN)))
    work(group, 1_000)
    assert cells(group) >= 1_000
    for _ in range(3):
        group.now += bounds.EXPIRY_GC_MS
        tick(group)
        if crashes:
            group.crash()
    assert cells(group) == is_one_left
    view = group.view(QUEUE)
    assert view is not None
    assert view.is_idle() is not is_one_left
    group.check()
    group.now += HOUR_MS
    tick(group)
    assert not group.seqs(QUEUE, Reader())
    assert not cells(group)


def test_it_is_looked_for_them_now_and_then() -> None:
    group = make()
    work(group, 10)
    group.now += bounds.EXPIRY_GC_MS
    assert tick(group)
    group.now += bounds.EXPIRY_GC_MS - 1
    work(group, 1)
    group.now -= 10
    assert tick(group) == 0
    group.now += 1
    assert tick(group) == 1


def test_nothing_is_asked_of_a_queue_in_which_nothing_happens() -> None:
    group = make()
    group.ask((QUEUE, Publish((NewMessage(b"x"),), lives=OWN)))
    group.now += bounds.EXPIRY_GC_MS
    assert tick(group) == 1
    group.now += bounds.EXPIRY_GC_MS
    assert tick(group) == 0
    assert cells(group) == 1


def test_ids_are_remembered_for_their_time() -> None:
    group = make()
    group.ask((QUEUE, Publish((NewMessage(b"x"),), ids=("a",), lives=OWN)))
    [lease] = group.ask((QUEUE, LeaseMessages(1, 30_000)))
    assert isinstance(lease, Leased)
    group.ask((QUEUE, Settle(lease.lease, lease.seqs, group.history)))
    assert cells(group) == 2
    group.now += bounds.EXPIRY_GC_MS
    tick(group)
    assert cells(group) == 1
    group.now += bounds.DEDUP_MS
    tick(group)
    assert cells(group) == 0
    view = group.view(QUEUE)
    assert view is not None
    assert not view.pointers.expires
    group.check()


def test_who_ended_in_a_batch_that_is_not_folded_needs_no_cell() -> None:
    group = make()
    group.ask((QUEUE, Publish((NewMessage(b"x"),), lives=OWN)))
    [lease] = group.ask((QUEUE, LeaseMessages(1, 30_000)))
    assert isinstance(lease, Leased)
    group.hold = True
    group.ask((QUEUE, Settle(lease.lease, lease.seqs, group.history)))
    group.now += bounds.EXPIRY_GC_MS
    tick(group)
    group.ask((QUEUE, Publish((NewMessage(b"new"),), lives=OWN)))
    group.now += bounds.EXPIRY_GC_MS
    tick(group)
    group.hold = False
    group.fold()
    assert cells(group) == 1
    group.now += HOUR_MS
    tick(group)
    assert not group.seqs(QUEUE, Reader())
    assert not cells(group)
    group.check()
