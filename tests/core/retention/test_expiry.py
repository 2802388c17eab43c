"""TTL, whatever else happens: an expired message is never delivered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace.core import bounds
from millrace.core.answers import Leased, Outcome
from millrace.core.cells import ExpiryCell, Kind, expiry_of
from millrace.core.commands import (
    Configure,
    CreateQueue,
    LeaseMessages,
    MoveDeadLetters,
    Publish,
    Purge,
    Release,
    RowSchedule,
    RowTtl,
    Settle,
    Tick,
)
from millrace.core.format.codec import decode_cell
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.model import (
    CATALOG,
    LeaseId,
    NewMessage,
    ShardId,
)
from millrace.core.spec import QueueSpec, SpecPart
from millrace.core.state.fold import Reader
from tests.support.models.commit_group import Group

QUEUE = ShardId(1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from([0, 1, 5, 20]), st.integers(0, 9)),
        st.tuples(st.just("lease"), st.integers(1, 4), st.sampled_from([2, 30])),
        st.tuples(st.sampled_from(["settle", "release"]), st.integers(0, 9), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.sampled_from([1, 3, 10]), st.just(0)),
        st.tuples(st.just("configure"), st.sampled_from([0, 4, 8, 30]), st.just(0)),
        st.tuples(
            st.sampled_from(["tick", "hold", "fold", "crash", "purge"]), st.just(0), st.just(0)
        ),
    ),
    min_size=20,
    max_size=60,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(steps=STEPS, keyed=st.booleans(), ttl=st.sampled_from([0, 8]))
def test_nobody_gets_a_message_whose_time_is_over(
    *, steps: list[tuple[str, int, int]], keyed: bool, ttl: int
) -> None:
    group = Group()
    spec = QueueSpec(keyed=keyed, ttl_ms=ttl * 1000)
    group.ask((CATALOG, CreateQueue("default", "q", spec)))
    lives: dict[int, tuple[int, int]] = {}
    leases: list[tuple[int, BitMap64]] = []

    def is_over(seq: int) -> bool:
        came_ms, own_ms = lives[seq]
        return any(ms and came_ms + ms <= group.now for ms in (own_ms, ttl * 1000))

    for what, one, two in steps:
        if what == "publish":
            aside = (RowSchedule(0, 1, 9 if two > 6 else 4, 2_000 if two > 7 else None),)
            message = NewMessage(b"x", b"%d" % (two % 3))
            own = (RowTtl(0, 1, one * 1000),) if one else ()
            command = Publish((message, message), aside=aside if two > 4 else (), lives=own)
            group.ask((QUEUE, command))
            view = group.view(QUEUE)
            assert view is not None
            lives[view.last_seq - 1] = group.now, one * 1000
            lives[view.last_seq] = group.now, 0
        elif what == "configure":
            ttl = one
            group.ask((QUEUE, Configure(SpecPart(ttl_ms=ttl * 1000))))
        elif what == "lease":
            [answer] = group.ask((QUEUE, LeaseMessages(one, two * 1000)))
            assert isinstance(answer, Leased)
            assert not any(map(is_over, answer.seqs)), "its time is over"
            if answer.seqs:
                leases.append((answer.lease, answer.seqs))
        elif what in ("settle", "release") and leases:
            lease, seqs = leases[one % len(leases)]
            kind = Settle if what == "settle" else Release
            [done] = group.ask((QUEUE, kind(LeaseId(lease), seqs, group.history)))
            assert isinstance(done, Outcome)
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
            group.crash()
            view = group.view(QUEUE)
            # Uncommitted changes are lost.
            ttl = view.spec.ttl_ms // 1000 if view is not None else ttl
            leases.clear()
        elif what == "purge":
            group.ask((QUEUE, Purge()))
        if not group.pending:
            group.check()
    group.hold = False
    group.fold()
    while group.ask((QUEUE, Tick()))[0] is True:
        pass
    group.check()
    view = group.view(QUEUE)
    assert view is not None
    left = group.seqs(QUEUE, Reader()) - BitMap64(view.holder)
    assert not any(map(is_over, left)), "it is over, and nobody has ended it"


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("returns", ["given back", "run out"])
def test_who_comes_back_after_its_time_is_handed_out_to_nobody(
    *, returns: str, crashes: bool
) -> None:
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec(ttl_ms=10_000))))
    group.ask((QUEUE, Publish((NewMessage(b"x"),))))
    [held] = group.ask((QUEUE, LeaseMessages(1, 20_000)))
    assert isinstance(held, Leased)
    group.now += 10_000
    # Another worker asks for messages, and finds that its TTL has expired.
    group.ask((QUEUE, LeaseMessages(1, 1_000)))
    assert group.seqs(QUEUE, Reader()) == held.seqs, "who is held is not ended"
    if crashes:
        group.crash()
    if returns == "given back":
        group.ask((QUEUE, Release(held.lease, held.seqs, group.history)))
    else:
        group.now += 10_000
    [again] = group.ask((QUEUE, LeaseMessages(1, 1_000)))
    assert isinstance(again, Leased)
    assert not again.seqs
    assert not group.seqs(QUEUE, Reader())
    group.check()


@pytest.mark.parametrize("count", [1, bounds.EXPIRY_SEQS_MAX + 1])
def test_many_go_in_steps(count: int) -> None:
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec())))
    messages = tuple(NewMessage(b"x") for _ in range(count))
    for _ in range(2 * bounds.EXPIRY_CELLS_STEP + 1):
        group.ask((QUEUE, Publish(messages, lives=(RowTtl(0, count, 1_000),))))
    group.now += 1_000
    ticks = 0
    while group.ask((QUEUE, Tick()))[0] is True:
        ticks += 1
        group.check()
    assert ticks >= 2
    assert not group.seqs(QUEUE, Reader())
    view = group.view(QUEUE)
    assert view is not None
    assert view.is_idle()
    assert not view.pointers.expires


def test_those_of_a_batch_that_go_together_are_one_cell() -> None:
    """Independent of their publishes, and of cells that the same batch expires."""
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "q", QueueSpec(ttl_ms=90_000))))
    group.ask((QUEUE, Publish((NewMessage(b"old"),), lives=(RowTtl(0, 1, 1_000),))))
    group.now += 1_000
    one = Publish((NewMessage(b"x"),), lives=(RowTtl(0, 1, 9_000),))
    lives = (RowTtl(0, 1, 9_000), RowTtl(1, 1, 2_000))
    short = Publish((NewMessage(b"x"), NewMessage(b"x")), lives=lives)
    group.ask((QUEUE, one), (QUEUE, one), (QUEUE, short), (QUEUE, one), (QUEUE, Tick()))
    [batch] = [one for one in group.committed()[-1].batches if one.shard == QUEUE]
    cells = [
        (expiry_of(key) - group.now, list(unpack_seqs(cell.seqs)))
        for kind, key, value in batch.changes.cells
        if kind == Kind.EXPIRY and value is not None
        if isinstance(cell := decode_cell(Kind.EXPIRY, value), ExpiryCell)
    ]
    assert sorted(cells) == [(2_000, [5]), (9_000, [2, 3, 4, 6])]
    view = group.view(QUEUE)
    assert view is not None
    assert view.pointers.expires
    assert list(group.seqs(QUEUE, Reader())) == [2, 3, 4, 5, 6]
    for later, left in ((2_000, [2, 3, 4, 6]), (7_000, [])):
        group.now += later
        group.ask((QUEUE, Tick()))
        assert list(group.seqs(QUEUE, Reader())) == left
    group.check()


def let_go(group: Group) -> int:
    """Return how many expiry cells the last batch of the queue has deleted."""
    [batch] = [one for one in group.committed()[-1].batches if one.shard == QUEUE]
    return sum(kind == Kind.EXPIRY and value is None for kind, _, value in batch.changes.cells)


@pytest.mark.parametrize("what", ["ids", "messages"])
def test_no_batch_lets_go_of_more_than_its_bound(what: str) -> None:
    """However much is due: a tick does one step, and a lease call, with that of a tick, a few."""
    group = Group()
    spec = QueueSpec(dedup_ms=1_000)
    group.ask((CATALOG, CreateQueue("default", "q", spec)))
    for at in range(6 * bounds.EXPIRY_CELLS_STEP):
        ids = tuple(f"{at}-{one}" for one in range(3)) if what == "ids" else ()
        lives = (RowTtl(0, 3, 1_000),) if what == "messages" else ()
        group.ask((QUEUE, Publish(tuple(NewMessage(b"x") for _ in range(3)), ids=ids, lives=lives)))
    group.now += 1_000
    assert group.ask((QUEUE, Tick())) == [True]
    assert let_go(group) == bounds.EXPIRY_CELLS_STEP
    group.ask((QUEUE, LeaseMessages(5, 1_000)))
    assert let_go(group) == bounds.EXPIRY_CELLS_STEP * bounds.EXPIRY_STEPS_MAX
    group.ask((QUEUE, Tick()), (QUEUE, LeaseMessages(5, 1_000)), (QUEUE, LeaseMessages(5, 1_000)))
    assert let_go(group) == bounds.EXPIRY_CELLS_STEP * bounds.EXPIRY_STEPS_MAX
    group.check()


@pytest.mark.parametrize("whose", ["the queue's", "their own"])
def test_no_more_expire_than_dead_letters_may_wait(
    monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """If no queue took them, they would fill the memory, and block all others."""
    monkeypatch.setattr(bounds, "DEAD_LETTERS_WAITING_MAX", 4)
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "dead", QueueSpec())))
    ttl_ms = 1_000 if whose == "the queue's" else 0
    spec = QueueSpec(ttl_ms=ttl_ms, dead_letter="default/dead", dead_letter_expired=True)
    group.ask((CATALOG, CreateQueue("default", "q", spec)))
    queue = ShardId(2)
    for at in range(60):
        lives = () if ttl_ms else (RowTtl(0, 1, 1_000),)
        group.ask((queue, Publish((NewMessage(b"%d" % at),), lives=lives)))
    group.now += 1_000
    seen = 0
    while not seen or group.seqs(queue, Reader()):
        while group.ask((queue, Tick()))[0] is True:
            pass
        view = group.view(queue)
        assert view is not None
        assert 0 < len(view.doomed) < bounds.DEAD_LETTERS_WAITING_MAX + bounds.EXPIRY_CELLS_STEP
        [leased] = group.ask((queue, LeaseMessages(5, 1_000)))
        assert isinstance(leased, Leased)
        assert not leased.seqs, "its time is over"
        letters = tuple((seq, group.now, NewMessage(b"x")) for seq in view.doomed)
        seen += len(letters)
        assert group.ask((queue, MoveDeadLetters(letters))) == [len(letters)]
        group.check()
    assert seen == 60
    assert len(group.seqs(ShardId(1), Reader())) == 60
