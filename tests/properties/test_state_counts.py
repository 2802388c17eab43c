"""Counts of messages by state agree with `explain` of each message, and with the counters."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace.core.answers import Explanation, Holders, Leased
from millrace.core.commands import (
    Command,
    CreateQueue,
    Discard,
    Explain,
    Extend,
    LeaseMessages,
    ListHolders,
    MoveDeadLetters,
    Publish,
    Purge,
    Release,
    Replace,
    RowSchedule,
    RowTtl,
    Settle,
    Tick,
)
from millrace.core.model import (
    CATALOG,
    LeaseId,
    NewMessage,
    Seq,
    ShardId,
)
from millrace.core.spec import QueueSpec
from tests.support.models.commit_group import Group

DEAD, QUEUE = ShardId(1), ShardId(2)
WAITING = ("ready", "returned", "blocked", "limited")

SPECS = {
    "plain": QueueSpec(max_failures=2, retry_min_ms=3_000, dead_letter="default/dead"),
    "dropping": QueueSpec(max_deliveries=2),
    "keyed": QueueSpec(keyed=True, delay_ms=2_000, max_failures=2, dead_letter="default/dead"),
    "strict": QueueSpec(order="strict"),
    "group": QueueSpec(order="group"),
    "fair": QueueSpec(order="fair", group_in_flight=2),
    "bounded": QueueSpec(max_in_flight=2),
    "log": QueueSpec(retention="log"),
}

Step = tuple[str, int, int]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("publish", "delayed", "brief", "lease", "settle", "release", "failed", "later"),
                *("discard", "extend", "replace", "wait", "bury", "tick", "crash", "purge"),
            ]
        ),
        st.integers(0, 5),
        st.integers(1, 3),
    ),
    max_size=25,
)


class Runner:
    """Does steps on a queue, and compares the counts after each."""

    def __init__(self, spec: QueueSpec) -> None:
        self.group = Group()
        self.spec = spec
        self.group.ask((CATALOG, CreateQueue("default", "dead", QueueSpec())))
        self.group.ask((CATALOG, CreateQueue("default", "jobs", spec)))
        self.leases: list[tuple[LeaseId, BitMap64]] = []

    def ask(self, command: Command) -> object:
        [answer] = self.group.ask((QUEUE, command))
        return answer

    def do(self, step: Step) -> None:
        """One step; one that is refused is as good as any."""
        verb, at, count = step
        history = self.group.history
        messages = tuple(NewMessage(b"x", b"k%d" % ((at + n) % 4)) for n in range(count))
        if verb == "publish":
            self.ask(Publish(messages))
        elif verb == "delayed":
            self.ask(Publish(messages, aside=(RowSchedule(0, count, 4, (at + 1) * 1_000),)))
        elif verb == "brief":
            self.ask(Publish(messages, lives=(RowTtl(0, count, (at + 1) * 1_000),)))
        elif verb == "lease":
            answer = self.ask(LeaseMessages(count, (at + 1) * 1_000))
            if isinstance(answer, Leased) and answer.seqs:
                self.leases.append((answer.lease, BitMap64(answer.seqs)))
        elif verb == "wait":
            self.group.now += at * 1_000
        elif verb == "bury":
            view = self.group.view(QUEUE)
            assert view is not None
            rows = self.group.store.rows(QUEUE, BitMap64(list(view.doomed)[:count]))
            self.ask(
                MoveDeadLetters(
                    tuple((row.seq, row.time_ms, NewMessage(b"x", row.key)) for row in rows)
                )
            )
        elif verb == "tick":
            self.ask(Tick())
        elif verb == "purge":
            self.ask(Purge())
        elif verb == "crash":
            self.group.crash()
        elif self.leases:
            lease, seqs = self.leases[at % len(self.leases)]
            chosen = BitMap64(list(seqs)[:count])
            commands: dict[str, Command] = {
                "settle": Settle(lease, chosen, history),
                "release": Release(lease, chosen, history),
                "failed": Release(lease, chosen, history, failed=True),
                "later": Release(lease, chosen, history, delay_ms=at * 1_000),
                "discard": Discard(lease, chosen, history),
                "extend": Extend(lease, chosen, history, (at + 1) * 1_000),
                "replace": Replace(lease, BitMap64([seqs.min()]), history, messages[0], 2_000),
            }
            self.ask(commands[verb])

    def check(self) -> None:
        """Compare the counts with the explanation of each message."""
        view = self.group.view(QUEUE)
        meta = self.group.store.meta(QUEUE)
        assert view is not None
        assert meta is not None
        # The counts are asked for first: they must not rest on what `explain` has looked up.
        holders = self.ask(ListHolders())
        assert isinstance(holders, Holders)
        found: Counter[str] = Counter()
        for seq in range(1, meta.last_seq + 1):
            told = self.ask(Explain(Seq(seq), b"k0" if self.spec.is_grouped else None))
            assert isinstance(told, Explanation)
            found[told.state] += 1
        postponed = holders.held_by_workers - holders.in_flight
        dead = sum(one.rows for one in holders.held if one.kind == "dead letters")
        assert holders.in_flight == found["leased"], found
        assert holders.delayed + postponed == found["delayed"], found
        assert dead == found["doomed"], found
        if self.spec.retention == "work":
            waiting = sum(found[state] for state in WAITING)
            states = holders.in_flight + holders.delayed + postponed + dead + waiting
            assert meta.live == states + found["delete"], found
            assert meta.published == meta.live + sum(meta.died)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=60)
@given(steps=STEPS)
@example(steps=[("publish", 0, 3), ("lease", 5, 3), ("release", 0, 1)])
@example(steps=[("publish", 0, 3), ("lease", 1, 3), ("wait", 2, 1)])
@example(steps=[("publish", 0, 3), ("lease", 1, 3), ("later", 3, 1), ("wait", 3, 1)])
@example(steps=[("publish", 0, 3), ("lease", 1, 3), ("later", 3, 2), ("crash", 0, 1)])
@example(steps=[("delayed", 5, 3), ("crash", 0, 1), ("publish", 5, 1)])
def test_5_7_counts_balance_with_explain(name: str, steps: list[Step]) -> None:
    runner = Runner(SPECS[name])
    for step in steps:
        runner.do(step)
        runner.check()
    runner.group.check()
