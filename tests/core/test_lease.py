"""The short way of single messages: the same answers and the same bytes as by the long one."""

from __future__ import annotations

from random import Random

import pytest
from pyroaring import BitMap64

from millrace.core import attempt, lease, work
from millrace.core.answers import Leased
from millrace.core.commands import (
    Aside,
    Command,
    Configure,
    CreateQueue,
    Extend,
    Lease,
    Need,
    OpenCursor,
    Publish,
    Purge,
    Release,
    Settle,
    SpecPart,
    Tick,
)
from millrace.core.decide import decide, learn
from millrace.core.desk import Desk
from millrace.core.model import CATALOG, Message, Millis, QueueSpec, ShardId, Start
from millrace.errors import MillraceError
from tests.support.models.commit_group import Group, Result

QUEUE = ShardId(1)

SPECS = {
    "plain": QueueSpec(),
    "keyed": QueueSpec(keyed=True),
    "log": QueueSpec(retention="log"),
    "strict": QueueSpec(order="strict"),
    "group": QueueSpec(order="group"),
    "partitions": QueueSpec(delivery="partitions"),
    "rate": QueueSpec(rate_us=2_000_000, rate_burst=2),
    "ttl": QueueSpec(ttl_ms=4_000),
    "bounded": QueueSpec(max_in_flight=3),
    "failures": QueueSpec(max_failures=2, retry_min_ms=500, retry_max_ms=2_000),
}


class LongWay(Group):
    """Decides every lease call and every settle by looking at everything."""

    def _decide(self, desk: Desk, shard: ShardId, command: Command) -> Result:
        if not isinstance(command, Lease | Settle):
            return super()._decide(desk, shard, command)
        draft = desk.draft(shard)
        assert draft is not None
        if isinstance(command, Settle):
            return work.do_settle(draft, command, work.judge(draft, command))
        while True:
            found = attempt.again(draft, command) or lease.check_lease(draft, command)
            if not isinstance(found, Need):
                break
            learn(draft, found, self.store)
        return found or attempt.remember(draft, command, lease.do_lease(draft, command))


def said(answer: Result) -> object:
    """An answer as one that can be compared."""
    return (type(answer), str(answer)) if isinstance(answer, MillraceError) else answer


class Pair:
    """Two groups that are asked the same."""

    def __init__(self, spec: QueueSpec) -> None:
        self.short, self.long = Group(), LongWay()
        self.leases: list[Leased] = []
        self.ask((CATALOG, CreateQueue("default", "q", spec)))

    def ask(self, *commands: tuple[ShardId, Command]) -> None:
        answers = self.short.ask(*commands)
        assert list(map(said, answers)) == list(map(said, self.long.ask(*commands)))
        self.leases += [one for one in answers if isinstance(one, Leased) and one.seqs]

    def each(self) -> tuple[Group, Group]:
        return self.short, self.long


def _publish(chance: Random) -> Publish:
    key = chance.choice((None, b"a", b"b"))
    rows = tuple(Message(b"x", key) for _ in range(chance.choice((1, 1, 3))))
    apart = Aside(0, len(rows), chance.choice((3, 4, 5)), chance.choice((None, 1_500)))
    return Publish(rows, aside=(apart,) if chance.random() < 0.1 else ())


def _command(chance: Random, pair: Pair) -> Command:
    old = chance.choice(pair.leases[-6:]) if pair.leases else None
    kind = chance.random()
    if kind < 0.3:
        return _publish(chance)
    if kind < 0.6 or old is None:
        again = "again" if chance.random() < 0.1 else ""
        return Lease(chance.choice((1, 1, 1, 2, 5)), chance.choice((1_000, 30_000)), again)
    seqs = BitMap64([chance.choice(list(old.seqs))]) if chance.random() < 0.5 else old.seqs
    history = pair.short.history
    if kind < 0.75:
        return Settle(old.lease, seqs, history)
    if kind < 0.9:
        return Release(old.lease, seqs, history, failed=chance.random() < 0.5)
    if kind < 0.94:
        return Extend(old.lease, seqs, history, 5_000)
    if kind < 0.97:
        return Tick()
    if kind < 0.98:
        return OpenCursor("c", Start.END, retain=True)
    if kind < 0.99:
        return Purge()
    return Configure(SpecPart(rate_us=chance.choice((0, 1_000_000)), rate_burst=1))


@pytest.mark.parametrize("name", SPECS)
def test_the_short_way_is_the_long_one(name: str) -> None:
    for seed in range(5):
        chance = Random(seed)
        pair = Pair(SPECS[name])
        for _ in range(50):
            hold, fold = chance.random() < 0.3, chance.random() < 0.5
            passes = chance.choice((0, 0, 10, 700, 1_500))
            commands = [(QUEUE, _command(chance, pair)) for _ in range(chance.randint(1, 4))]
            for group in pair.each():
                group.hold = hold
                group.now += passes
            pair.ask(*commands)
            if fold:
                for group in pair.each():
                    group.fold()
        for group in pair.each():
            group.fold()
            group.check()
        assert pair.short.log == pair.long.log


def test_a_single_message_goes_the_short_way() -> None:
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec())))
    group.ask((QUEUE, Publish((Message(b"a"), Message(b"b"), Message(b"c")))))
    draft = Desk(group.view, Millis(group.now)).draft(QUEUE)
    assert draft is not None
    found = [lease.lease_next(draft, Lease(count, 1_000)) for count in (1, 5, 1)]
    assert [list(one.seqs) if one else None for one in found] == [[1], [2, 3], None]
    given = found[0]
    assert given is not None
    done = work.settle_whole(draft, Settle(given.lease, given.seqs, group.history))
    assert done is not None
    assert list(done.done) == [1]


def test_where_nothing_is_nothing_is_begun() -> None:
    """Thousands of calls may wait, and ask again and again."""
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec(ttl_ms=60_000))))
    desk = Desk(group.view, Millis(group.now))
    answer = decide(desk, QUEUE, Lease(10, 1_000))
    assert isinstance(answer, Leased)
    assert not answer.seqs
    assert not desk.drafts


def test_settings_hold_at_once_for_single_messages() -> None:
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec())))
    group.ask((QUEUE, Publish((Message(b"a"), Message(b"b")))))
    slow = Configure(SpecPart(rate_us=1_000_000, rate_burst=1))
    single = (QUEUE, Lease(1, 1_000))
    answers = group.ask((QUEUE, slow), single, single)
    given = [list(one.seqs) for one in answers if isinstance(one, Leased)]
    assert given == [[1], []]
