"""Dead messages in groups are passed in bounded steps, however many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import Leased
from millrace.core.cells import Kind
from millrace.core.commands import (
    CreateQueue,
    LeaseMessages,
    Publish,
    RowTtl,
    Settle,
    Tick,
)
from millrace.core.model import (
    CATALOG,
    GROUP_HEADER,
    NewMessage,
    ShardId,
)
from millrace.core.needs import RowFacts
from millrace.core.spec import QueueSpec
from millrace.store.memory_store import MemoryStore
from tests.support.models.commit_group import Group

QUEUE = ShardId(1)


class Counting(MemoryStore):
    """A store that counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()

    def ended(self, shard: ShardId, low: int, high: int) -> BitMap64:
        self.asked["ranges"] += 1
        return super().ended(shard, low, high)

    def row(self, shard: ShardId, seq: int) -> RowFacts:
        self.asked["rows"] += 1
        return super().row(shard, seq)

    def points(self, shard: ShardId, names: Sequence[tuple[Kind, bytes]]) -> list[bytes | None]:
        self.asked["points"] += len(names)
        self.asked["looks"] += 1
        return super().points(shard, names)


def scene(dead: int, each: int) -> Group:
    """Return a queue with `dead` groups of expired messages, and one live group behind them."""
    group = Group()
    store = group.store = Counting()
    for entry in group.committed():
        store.fold(entry, None)
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec(order="group"))))
    rows = tuple(
        NewMessage(b"x", None, ((GROUP_HEADER, b"%d" % (at % dead)),)) for at in range(dead * each)
    )
    group.ask((QUEUE, Publish(rows, lives=(RowTtl(0, len(rows), 1_000),))))
    group.ask((QUEUE, Publish((NewMessage(b"alive", None, ((GROUP_HEADER, b"alive"),)),))))
    group.now += 2_000
    while group.ask((QUEUE, Tick())) == [True]:
        pass
    group.crash()
    return group


@pytest.mark.parametrize("each", [1, 3, 90])
def test_dead_groups_are_passed_in_bounded_steps(
    each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "GROUPS_PASSED_MAX", 40)
    monkeypatch.setattr(limits, "THIN_GROUPS_AHEAD", 8)
    monkeypatch.setattr(limits, "GROUPS_AHEAD", 8)
    monkeypatch.setattr(limits, "RING_TURNS", 32)
    monkeypatch.setattr(limits, "RING_PAGE_TURNS", 8)
    monkeypatch.setattr(limits, "CHUNK_ROWS", 64)
    dead = 200
    group = scene(dead, each)
    store = group.store
    assert isinstance(store, Counting)
    batches = 0
    while True:
        store.asked.clear()
        before = len(list(store.cells(QUEUE, Kind.TURN)))
        [answer] = group.ask((QUEUE, LeaseMessages(1, 60_000)))
        assert isinstance(answer, Leased)
        batches += 1
        most = limits.GROUPS_PASSED_MAX + limits.THIN_GROUPS_AHEAD * limits.THIN_DEPTH
        gone = before - len(list(store.cells(QUEUE, Kind.TURN)))
        assert gone <= most
        assert not store.asked["rows"], "rows are asked for one by one"
        assert store.asked["points"] <= 2 * most
        assert store.asked["looks"] <= limits.GROUPS_PASSED_MAX // 2, "one look for each group"
        assert store.asked["ranges"] <= 4 * most
        if answer.seqs:
            break
        assert batches < dead * each, "nobody comes to the living"
    assert list(answer.seqs) == [dead * each + 1]
    assert batches > dead * each // (2 * most)
    group.check()
    group.ask((QUEUE, Settle(answer.lease, answer.seqs, group.history)))
    for kind in (Kind.TURN, Kind.GROUP, Kind.RING):
        assert not list(store.cells(QUEUE, kind))
