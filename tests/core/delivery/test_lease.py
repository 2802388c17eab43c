"""The fast path of single messages: the same answers and the same bytes as the long one."""

from __future__ import annotations

from random import Random

import pytest
from pyroaring import BitMap64

from millrace.core.answers import Leased
from millrace.core.commands import (
    Command,
    Configure,
    CreateQueue,
    Extend,
    LeaseMessages,
    OpenCursor,
    Publish,
    Purge,
    Release,
    RowSchedule,
    Settle,
    SpecPart,
    Tick,
)
from millrace.core.decide import decide, learn
from millrace.core.delivery import attempt_id, lease, settle
from millrace.core.model import (
    CATALOG,
    Millis,
    NewMessage,
    ShardId,
    StartPoint,
)
from millrace.core.needs import Need
from millrace.core.spec import QueueSpec
from millrace.core.state.draft import BatchContext
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

    def _decide(self, context: BatchContext, shard: ShardId, command: Command) -> Result:
        if not isinstance(command, LeaseMessages | Settle):
            return super()._decide(context, shard, command)
        draft = context.draft(shard)
        assert draft is not None
        if isinstance(command, Settle):
            return settle.do_settle(draft, command, settle.judge(draft, command))
        while True:
            found = attempt_id.again(draft, command) or lease.check_lease(draft, command)
            if not isinstance(found, Need):
                break
            learn(draft, found, self.store)
        return found or attempt_id.remember(draft, command, lease.do_lease(draft, command))


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
    rows = tuple(NewMessage(b"x", key) for _ in range(chance.choice((1, 1, 3))))
    apart = RowSchedule(0, len(rows), chance.choice((3, 4, 5)), chance.choice((None, 1_500)))
    return Publish(rows, aside=(apart,) if chance.random() < 0.1 else ())


def _command(chance: Random, pair: Pair) -> Command:
    old = chance.choice(pair.leases[-6:]) if pair.leases else None
    kind = chance.random()
    if kind < 0.3:
        return _publish(chance)
    if kind < 0.6 or old is None:
        again = "again" if chance.random() < 0.1 else ""
        return LeaseMessages(chance.choice((1, 1, 1, 2, 5)), chance.choice((1_000, 30_000)), again)
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
        return OpenCursor("c", StartPoint.END, retain=True)
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
    group.ask((QUEUE, Publish((NewMessage(b"a"), NewMessage(b"b"), NewMessage(b"c")))))
    draft = BatchContext(group.view, Millis(group.now)).draft(QUEUE)
    assert draft is not None
    found = [lease.lease_next(draft, LeaseMessages(count, 1_000)) for count in (1, 5, 1)]
    assert [list(one.seqs) if one else None for one in found] == [[1], [2, 3], None]
    given = found[0]
    assert given is not None
    done = settle.settle_whole(draft, Settle(given.lease, given.seqs, group.history))
    assert done is not None
    assert list(done.done) == [1]


def test_where_nothing_is_nothing_is_begun() -> None:
    """Thousands of calls may wait, and ask again and again."""
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec(ttl_ms=60_000))))
    context = BatchContext(group.view, Millis(group.now))
    answer = decide(context, QUEUE, LeaseMessages(10, 1_000))
    assert isinstance(answer, Leased)
    assert not answer.seqs
    assert not context.drafts


def test_settings_hold_at_once_for_single_messages() -> None:
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec())))
    group.ask((QUEUE, Publish((NewMessage(b"a"), NewMessage(b"b")))))
    slow = Configure(SpecPart(rate_us=1_000_000, rate_burst=1))
    single = (QUEUE, LeaseMessages(1, 1_000))
    answers = group.ask((QUEUE, slow), single, single)
    given = [list(one.seqs) for one in answers if isinstance(one, Leased)]
    assert given == [[1], []]
