"""A blocked group costs nothing while it waits, whatever its backlog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from millrace import limits
from millrace.core.answers import Leased
from millrace.core.cells import Kind
from millrace.core.commands import (
    CreateQueue,
    LeaseMessages,
    Publish,
    Settle,
)
from millrace.core.model import (
    CATALOG,
    GROUP_HEADER,
    NewMessage,
    ShardId,
)
from millrace.core.ordering.groups import more_name, turn_name
from millrace.core.spec import QueueSpec
from tests.core.ordering.test_group_gc import QUEUE, Counting
from tests.support.models.commit_group import Group

ROUNDS = 300


class Weighing(Counting):
    """It also counts scans, weighs the cells that are read, and remembers their names."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[tuple[Kind, bytes]] = set()

    def points(self, shard: ShardId, names: Sequence[tuple[Kind, bytes]]) -> list[bytes | None]:
        self.names.update(names)
        found = super().points(shard, names)
        self.asked["bytes"] += sum(len(value) for value in found if value is not None)
        return found

    def cells_from(
        self, shard: ShardId, kind: Kind, low: bytes, limit: int
    ) -> list[tuple[bytes, bytes]]:
        found = super().cells_from(shard, kind, low, limit)
        self.asked["scans"] += 1
        self.asked["bytes"] += sum(len(value) for _, value in found)
        return found


def message(group: bytes, key: int) -> NewMessage:
    return NewMessage(b"x", b"%d" % key, ((GROUP_HEADER, group),))


def cost(blocked: int, *, crash: bool, keyed: bool) -> Counter[str]:
    """Return the store reads of other calls while one message of a group of `blocked` is in
    flight."""
    group = Group()
    store = group.store = Weighing()
    for entry in group.committed():
        store.fold(entry, None)
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec(order="group", keyed=keyed))))
    group.ask((QUEUE, Publish(tuple(message(b"blocked", at) for at in range(blocked)))))
    [held] = group.ask((QUEUE, LeaseMessages(1, 3_600_000)))
    assert isinstance(held, Leased)
    assert list(held.seqs) == [1]
    view = group.view(QUEUE)
    assert view is not None
    [number] = view.groups.flights
    early = tuple(message(b"early %d" % at, blocked + at) for at in range(40))
    group.ask((QUEUE, Publish(early)))
    if crash:
        group.crash()
    store.asked.clear()
    store.names.clear()
    for at in range(ROUNDS):
        key = blocked + len(early) + 2 * at
        rows = (message(b"%d" % at, key), message(b"%d" % (at // 2), key + 1))
        group.ask((QUEUE, Publish(rows)))
        [answer] = group.ask((QUEUE, LeaseMessages(10, 60_000)))
        assert isinstance(answer, Leased)
        assert answer.seqs
        assert min(answer.seqs) > blocked, "a message of the blocked group is handed out"
        group.ask((QUEUE, Settle(answer.lease, answer.seqs, group.history)))
    assert turn_name(view, number) not in store.names
    assert not any(more_name(view, number, at) in store.names for at in range(blocked))
    return store.asked


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("crash", [False, True])
def test_what_a_blocked_group_has_is_never_read_again(*, crash: bool, keyed: bool) -> None:
    few = cost(300, crash=crash, keyed=keyed)
    # Enough more that seqs take as many bytes, and ranges of rows begin at the same places.
    many = cost(300 + limits.CHUNK_ROWS, crash=crash, keyed=keyed)
    assert many == few
    assert few["points"] <= 2 * ROUNDS
    assert few["scans"] <= 4
    assert not few["rows"]
