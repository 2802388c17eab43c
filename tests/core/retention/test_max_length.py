"""Maximum lengths: a queue never exceeds its limit, and drops nothing in flight."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace.core.answers import Leased, PublishResult
from millrace.core.commands import (
    ApplyTransaction,
    CreateQueue,
    LeaseMessages,
    Publish,
    Purge,
    Release,
    RowSchedule,
    Settle,
    Tick,
)
from millrace.core.model import (
    CATALOG,
    LeaseId,
    NewMessage,
    ShardId,
)
from millrace.core.spec import QueueSpec
from millrace.core.state.view import View
from millrace.errors import Full, TooLarge
from tests.support.models.commit_group import Group

QUEUE = ShardId(1)
MOST = 6
NO_SEQS: frozenset[int] = frozenset()
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 8), st.integers(0, 9)),
        st.tuples(st.just("lease"), st.integers(1, 4), st.sampled_from([2, 30])),
        st.tuples(
            st.sampled_from(["settle", "release", "both"]), st.integers(0, 9), st.integers(0, 3)
        ),
        st.tuples(st.just("wait"), st.sampled_from([1, 3, 10]), st.just(0)),
        st.tuples(
            st.sampled_from(["tick", "hold", "fold", "crash", "purge"]), st.just(0), st.just(0)
        ),
    ),
    min_size=20,
    max_size=60,
)


class Naive:
    """All messages, counted one by one: seq → key, and those ever delivered."""

    def __init__(self, *, keyed: bool, drop: bool) -> None:
        self.keyed = keyed
        self.drop = drop
        self.live: dict[int, bytes] = {}
        self.handed: set[int] = set()
        self.dropped = 0

    def publish(self, first: int, keys: list[bytes], settled: frozenset[int] = NO_SEQS) -> bool:
        """Publish if the rows fit; returns True if they did."""
        after = {seq: key for seq, key in self.live.items() if seq not in settled}
        for seq, key in enumerate(keys, first):
            if self.keyed:
                after = {old: other for old, other in after.items() if other != key}
            after[seq] = key
        grows = len(after) > len(self.live)
        excess = len(after) - MOST
        if grows and excess > 0:
            waiting = [seq for seq in sorted(after) if seq < first and seq not in self.handed]
            if not self.drop or len(waiting) < excess:
                return False
            for seq in waiting[:excess]:
                del after[seq]
            self.dropped += excess
        self.live = after
        return True


def open_of(view: View, lease: int) -> BitMap64:
    """Return the messages that the receipts of a lease call still hold."""
    known = view.leases.get(lease)
    return BitMap64(known.open if known is not None else ())


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(steps=STEPS, keyed=st.booleans(), drop=st.booleans())
def test_a_queue_holds_as_much_as_it_may(
    *, steps: list[tuple[str, int, int]], keyed: bool, drop: bool
) -> None:
    group = Group()
    overflow: Literal["refuse", "drop"] = "drop" if drop else "refuse"
    spec = QueueSpec(keyed=keyed, max_messages=MOST, overflow=overflow)
    group.ask((CATALOG, CreateQueue("default", "q", spec)))
    naive, folded = Naive(keyed=keyed, drop=drop), Naive(keyed=keyed, drop=drop)
    leases: list[tuple[int, BitMap64]] = []

    def keep() -> None:
        folded.live, folded.handed = dict(naive.live), set(naive.handed)
        folded.dropped = naive.dropped

    for what, one, two in steps:
        view = group.view(QUEUE)
        assert view is not None
        if what in ("publish", "both"):
            keys = [b"%d" % (at % 4) for at in range(two, two + one)] if what == "publish" else []
            keys = keys or [b"k%d" % two]
            aside = (RowSchedule(0, 1, 9 if two > 6 else 4, 2_000 if two > 7 else None),)
            rows = tuple(NewMessage(b"x", key) for key in keys)
            command = Publish(rows, aside=aside if two > 4 else ())
            first = view.last_seq + 1
            settled = NO_SEQS
            if what == "both" and leases:
                lease, seqs = leases.pop(one % len(leases))
                seqs = seqs & open_of(view, lease)
                if not seqs:
                    continue
                settled = frozenset(seqs)
                done = Settle(LeaseId(lease), seqs, group.history)
                [answer] = group.ask((QUEUE, ApplyTransaction(((QUEUE, command), (QUEUE, done)))))
                was_taken = isinstance(answer, tuple)
            else:
                [answer] = group.ask((QUEUE, command))
                was_taken = isinstance(answer, PublishResult)
            assert was_taken or isinstance(answer, Full | TooLarge)
            assert naive.publish(first, keys, settled) == was_taken
        elif what == "lease":
            [answer] = group.ask((QUEUE, LeaseMessages(one, two * 1000)))
            assert isinstance(answer, Leased)
            assert all(seq in naive.live for seq in answer.seqs), "it was dropped"
            naive.handed |= set(answer.seqs)
            if answer.seqs:
                leases.append((answer.lease, answer.seqs))
        elif what in ("settle", "release") and leases:
            lease, seqs = leases[one % len(leases)]
            held = seqs & open_of(view, lease)
            kind = Settle if what == "settle" else Release
            group.ask((QUEUE, kind(LeaseId(lease), seqs, group.history)))
            if what == "settle":
                for seq in held:
                    naive.live.pop(seq, None)
        elif what == "wait":
            group.now += one * 1000
        elif what == "tick":
            group.ask((QUEUE, Tick()))
        elif what == "hold":
            group.hold = True
        elif what == "fold":
            group.fold()
            group.hold = False
        elif what == "crash":
            if group.pending:
                naive.live, naive.handed = dict(folded.live), set(folded.handed)
                naive.dropped = folded.dropped
            group.crash()
            leases.clear()
        elif what == "purge":
            group.ask((QUEUE, Purge()))
            naive.live.clear()
        if not group.pending:
            group.check()
            meta = group.store.meta(QUEUE)
            assert meta is not None
            assert meta.live == len(naive.live)
            keep()
