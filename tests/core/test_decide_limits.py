"""Limits: each is enforced by a clear error, and nothing in a view grows for ever."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import (
    Leased,
    Outcome,
    PublishResult,
    QueueRef,
    SnapshotRef,
)
from millrace.core.commands import (
    ApplyTransaction,
    CommitCursor,
    CreateQueue,
    Explain,
    Extend,
    InitCatalog,
    LeaseMessages,
    NextSnapshot,
    OpenCursor,
    Pin,
    ProducerNumber,
    Publish,
    PublishStaged,
    Purge,
    Release,
    Settle,
    Stage,
    Tick,
)
from millrace.core.decide import decide, publish_plain
from millrace.core.delivery.lease import is_empty
from millrace.core.format.block import Block
from millrace.core.model import (
    CATALOG,
    CursorPosition,
    LeaseId,
    Millis,
    NewMessage,
    Seq,
    ShardId,
    StartPoint,
)
from millrace.core.spec import QueueSpec
from millrace.core.state.draft import BatchContext
from millrace.core.state.view import View
from millrace.core.ticks import tick_due
from millrace.core.topic_commands import CreateTopic, TopicRef
from millrace.errors import Full, Gone, Invalid, NotFound, TooLarge
from tests.support.models.commit_group import (
    SECRET,
    Group,
    Result,
    facts_of,
)

QUEUE = ShardId(1)


def make(*, keyed: bool = False, log: bool = False) -> Group:
    group = Group()
    group.ask(
        (CATALOG, CreateQueue("default", "q", QueueSpec(keyed, "log" if log else "work", 10_000)))
    )
    return group


def view_of(group: Group) -> View:
    view = group.view(QUEUE)
    assert view is not None
    return view


def publish(group: Group, *bodies: bytes | None, key: bytes | None = None) -> None:
    group.ask((QUEUE, Publish(tuple(NewMessage(body, key) for body in bodies))))


def lease(group: Group, count: int, lease_ms: int = 30_000) -> Leased:
    [answer] = group.ask((QUEUE, LeaseMessages(count, lease_ms)))
    assert isinstance(answer, Leased)
    return answer


def settle(group: Group, lease: int, *seqs: int) -> Result:
    return group.ask((QUEUE, Settle(LeaseId(lease), BitMap64(seqs), group.history)))[0]


# --- Beyond a limit comes an error ----------------------------------------------------------------


def test_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: beyond the count a new producer is refused, and none is forgotten for it."""
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 2)
    group = make()
    rows = (NewMessage(b"x"),)
    for name in ("p", "q"):
        group.ask((QUEUE, Publish(rows, ProducerNumber(name, 1))))
    [answer] = group.ask((QUEUE, Publish(rows, ProducerNumber("r", 1))))
    assert isinstance(answer, TooLarge)
    assert answer.limit == 2
    [answer] = group.ask((QUEUE, Publish(rows, ProducerNumber("p", 1))))
    assert answer == PublishResult(Seq(1), 1, repeated=True)


def test_cursors_pins_and_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CURSORS_MAX", "PINS_MAX", "STAGES_MAX"):
        monkeypatch.setattr(limits, name, 1)
    monkeypatch.setattr(limits, "STAGE_ROWS_MAX", 3)
    group = make()
    publish(group, b"x")
    block = Block.of_bodies([b"x", b"y"])
    commands = (
        OpenCursor("c", StartPoint.BEGINNING, False),
        Pin(1000),
        Stage("s", block),
    )
    for command in commands:
        assert not isinstance(group.ask((QUEUE, command))[0], TooLarge)
    for refused in (OpenCursor("d", StartPoint.BEGINNING, False), Stage("s", block)):
        assert isinstance(group.ask((QUEUE, refused))[0], TooLarge), refused
    # Transient states are no reason to give up.
    for later in (Pin(1000), NextSnapshot("c", 1, 0, 1000), Stage("t", block)):
        answer = group.ask((QUEUE, later))[0]
        assert isinstance(answer, Full), later
        assert answer.limit == 1
    group.check()


def test_pins_of_readers_leave_room_for_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PLAIN_PINS_MAX", 1)
    monkeypatch.setattr(limits, "PINS_MAX", 2)
    group = make()
    publish(group, b"x")
    group.ask((QUEUE, OpenCursor("c", StartPoint.BEGINNING, False)))
    group.ask((QUEUE, Pin(1000)))
    [answer] = group.ask((QUEUE, Pin(1000)))
    assert isinstance(answer, Full)
    assert answer.limit == 1
    [answer] = group.ask((QUEUE, NextSnapshot("c", 1, 0, 1000)))
    assert isinstance(answer, SnapshotRef)
    [answer] = group.ask((QUEUE, Pin(1000)))
    assert isinstance(answer, Full)
    group.check()


def test_more_cursors_than_pins_read_one_snapshot() -> None:
    group = make()
    publish(group, b"x", b"y")
    count = limits.PINS_MAX + 100
    names = [f"c{number}" for number in range(count)]
    for name in names:
        group.ask((QUEUE, OpenCursor(name, StartPoint.BEGINNING, False)))
    asked = [(QUEUE, NextSnapshot(name, at, 0, 1000)) for at, name in enumerate(names, 1)]
    answers = [*group.ask(*asked[:50]), *(group.ask(one)[0] for one in asked[50:])]
    refs = [answer for answer in answers if isinstance(answer, SnapshotRef)]
    assert len(refs) == count
    assert {ref.pin for ref in refs} == {1}
    assert {ref.boundary for ref in refs} == {2}
    assert view_of(group).readers == {1: count}
    done = CursorPosition(group.history, 2, 0, 2)
    for at, name in enumerate(names, 1):
        assert len(view_of(group).pins) == 1
        group.ask((QUEUE, CommitCursor(name, at, done)))
    assert not view_of(group).pins
    group.check()


def test_without_room_a_cursor_reads_an_older_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    """K2: it reads the present rows, and the others with the next snapshot; nobody is refused."""
    monkeypatch.setattr(limits, "PINS_MAX", 2)
    group = make()
    refs: list[SnapshotRef] = []
    for at in range(1, 5):
        publish(group, b"x")
        group.ask((QUEUE, OpenCursor(f"c{at}", StartPoint.BEGINNING, False)))
        [ref] = group.ask((QUEUE, NextSnapshot(f"c{at}", at, 0, 1000)))
        assert isinstance(ref, SnapshotRef)
        refs.append(ref)
    assert [(ref.pin, ref.boundary) for ref in refs] == [(1, 1), (2, 2), (2, 2), (2, 2)]
    # A cursor that has read everything waits for room: its snapshot would be empty.
    [ahead] = group.ask((QUEUE, NextSnapshot("c4", 4, 2, 1000)))
    assert isinstance(ahead, Full)
    for at in (2, 3, 4):
        group.ask((QUEUE, CommitCursor(f"c{at}", at, CursorPosition(group.history, 2, 0, 2))))
    [newer] = group.ask((QUEUE, NextSnapshot("c4", 4, 2, 1000)))
    assert isinstance(newer, SnapshotRef)
    assert (newer.after, newer.boundary) == (2, 4)
    group.check()


def test_bytes_of_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block.of_bodies([b"x" * 100])
    monkeypatch.setattr(limits, "STAGE_BYTES_MAX", 2 * block.size())
    group = make()
    for rows in (1, 2):
        assert group.ask((QUEUE, Stage("s", block))) == [rows]
    [answer] = group.ask((QUEUE, Stage("s", block)))
    assert isinstance(answer, TooLarge)
    assert answer.limit == 2 * block.size()


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_of_stages_that_are_published_at_once(
    monkeypatch: pytest.MonkeyPatch, *, keyed: bool
) -> None:
    """Of a keyed queue every key is looked up in one decision, however many stages there are."""
    monkeypatch.setattr(limits, "STAGE_ROWS_MAX", 3)
    group = make(keyed=keyed)
    for name in "abc":
        group.ask((QUEUE, Stage(name, Block.of_bodies([b"x", b"y"]))))
    parts = tuple((QUEUE, PublishStaged((name,))) for name in "ab")
    for command in (ApplyTransaction(parts), PublishStaged(("a", "b"))):
        if keyed:
            [answer] = group.ask((QUEUE, command))
            assert isinstance(answer, TooLarge), command
    if not keyed:
        [answer] = group.ask((QUEUE, ApplyTransaction(parts)))
        assert answer == (PublishResult(Seq(1), 2), PublishResult(Seq(3), 2))
    [answer] = group.ask((QUEUE, PublishStaged(("c",))))
    assert isinstance(answer, PublishResult)
    group.check()


def test_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUES_MAX", 2)
    group = make()
    commands = [CreateQueue("default", name, QueueSpec()) for name in ("r", "s", "r")]
    made, refused, found = group.ask(*((CATALOG, command) for command in commands))
    assert isinstance(made, QueueRef)
    assert isinstance(refused, TooLarge)
    assert refused.limit == 2
    assert found == QueueRef(made.shards, made=False)


def test_queues_and_topics_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUEUES_MAX", 2)
    group = make()
    made, refused = group.ask(
        (CATALOG, CreateTopic("default", "t")),
        (CATALOG, CreateQueue("default", "r", QueueSpec())),
    )
    assert isinstance(made, TopicRef)
    assert isinstance(refused, TooLarge)
    assert refused.limit == 2


def test_parts_of_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_PARTS_MAX", 1)
    group = make()
    part = (QUEUE, Publish((NewMessage(b"x"),)))
    assert isinstance(group.ask((CATALOG, ApplyTransaction((part, part))))[0], TooLarge)
    assert group.ask((CATALOG, ApplyTransaction((part,))))[0] == (PublishResult(Seq(1), 1),)
    assert group.ask((CATALOG, ApplyTransaction(())))[0] == ()


def test_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit nothing new is delivered, but expired leases are redelivered: else work would
    stop."""
    monkeypatch.setattr(limits, "IN_FLIGHT_MAX", 3)
    group = make()
    publish(group, *[b"x"] * 9)
    assert list(lease(group, 2, 10_000).seqs) == [1, 2]
    assert list(lease(group, 5, 90_000).seqs) == [3]
    [answer] = group.ask((QUEUE, LeaseMessages(1, 30_000)))
    assert isinstance(answer, Full)
    group.now += 10_000
    assert list(lease(group, 5).seqs) == [1, 2]
    settle(group, 3, 1)
    assert list(lease(group, 5).seqs) == [4]
    group.check()


def test_leases_that_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """H3: by number too, oldest end first; an evicted lease stays forgotten."""
    monkeypatch.setattr(limits, "LEASES_REMEMBERED_MAX", 2)
    group = make()
    publish(group, *[b"x"] * 4)
    for number in range(1, 5):
        assert lease(group, 1).lease == number
    for number in (3, 1, 4):
        group.now += 1
        settle(group, number, number)
    group.check()
    answers = {number: settle(group, number, number) for number in (1, 2, 3, 4)}
    refused = {
        number: [type(error) for error in answer.refused.values()]
        for number, answer in answers.items()
        if isinstance(answer, Outcome)
    }
    assert refused == {1: [], 2: [], 3: [Gone], 4: []}
    group.check()


def test_leases_that_end_in_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is evicted at its own end is gone for good: it is not written again."""
    monkeypatch.setattr(limits, "LEASES_REMEMBERED_MAX", 1)
    group = make()
    publish(group, *[b"x"] * 3)
    for _ in range(3):
        lease(group, 1)
    settle(group, 2, 2)
    settle(group, 1, 1)
    group.check()
    assert sorted(view_of(group).leases) == [2, 3]
    group.ask((QUEUE, Purge()))
    group.check()
    assert sorted(view_of(group).leases) == [3]


@pytest.mark.parametrize("secret", [b"", b"short", b"x" * 65])
def test_secrets(secret: bytes) -> None:
    group = Group()
    assert isinstance(group.ask((CATALOG, InitCatalog(secret)))[0], Invalid)


def test_found_once() -> None:
    group = Group()
    [answer] = group.ask((CATALOG, InitCatalog(b"x" * 32)))
    assert getattr(answer, "secret", None) == SECRET


# --- Nothing grows for ever -----------------------------------------------------------------------


def test_deadlines_that_were_moved_are_forgotten() -> None:
    group = make()
    publish(group, b"x", b"y")
    lease(group, 2)
    for seconds in range(5_000):
        group.now += 1_000
        seqs = BitMap64([1 + seconds % 2])
        group.ask((QUEUE, Extend(LeaseId(1), seqs, group.history, 12 * 3_600_000)))
    assert len(view_of(group).deadlines) < 2_100
    group.check()


def test_deadlines_of_ended_leases_are_forgotten() -> None:
    group = make()
    publish(group, *[b"x"] * 3_000)
    for number in range(1, 3_001):
        lease(group, 1, 12 * 3_600_000)
        settle(group, number, number)
    assert len(view_of(group).deadlines) < 1_100


def test_layers_and_facts_go_when_they_are_folded() -> None:
    group = make(keyed=True)
    group.hold = True
    for _ in range(5):
        publish(group, b"x", key=b"k")
    assert len(view_of(group).layers) == 6 - 1
    group.fold()
    assert view_of(group).layers == []
    assert not view_of(group).facts.keys
    group.check()


def test_what_was_fetched_is_forgotten_with_a_fold() -> None:
    """A fact is as of the last folded batch: beyond it, the layers no longer cover for it."""
    group = make(keyed=True)
    publish(group, b"x", key=b"k")
    view = view_of(group)
    view.facts.keys[b"k"] = 0
    view.folded(view.index)
    assert view.facts.keys == {}


def test_hidden_rows_are_known_only_within_the_window() -> None:
    """Revisions that die above the window are asked for when it gets there, not remembered."""
    group = make(keyed=True)
    publish(group, b"x", key=b"first")
    publish(group, b"x", key=b"second")
    lease(group, 1)
    for _ in range(100):
        publish(group, b"x", key=b"k")
    assert len(view_of(group).hidden) == 0
    assert list(lease(group, 5).seqs) == [2, 102]
    assert len(view_of(group).hidden) == 0
    group.check()


def test_a_desert_of_dead_rows_is_crossed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK_ROWS", 8)
    group = make(keyed=True)
    for _ in range(100):
        publish(group, b"x", key=b"k")
    publish(group, None, key=b"k")
    assert not lease(group, 1).seqs
    assert len(view_of(group).hidden) == 0
    group.crash()
    assert view_of(group).pointers.next == 102
    publish(group, b"y", key=b"k")
    assert list(lease(group, 1).seqs) == [102]
    group.check()


def test_deletes_of_many_seconds_go_together() -> None:
    group = make(keyed=True)
    for number in range(200):
        group.now += 1_000
        publish(group, None, key=b"%d" % number)
    assert len(list(view_of(group).deletes)) == 200
    group.now += 30_000
    group.ask((QUEUE, Tick()))
    assert not view_of(group).deletes
    group.check()


# --- Ticks ----------------------------------------------------------------------------------------


def test_a_tick_is_due_when_it_would_change_something() -> None:
    group = make(keyed=True)
    group.ask(
        (QUEUE, Publish((NewMessage(b"x", b"k"), NewMessage(None, b"l")), ProducerNumber("p", 1)))
    )
    group.ask((QUEUE, OpenCursor("lake", StartPoint.BEGINNING, True)))
    group.ask((QUEUE, Stage("s", Block.of_bodies([b"x"]))), (QUEUE, Pin(50_000)))
    lease(group, 1)
    settle(group, 1, 1)
    spans = [9_000, 30_000, 20_000, 600_000, 86_400_000, 7 * 86_400_000]
    due = []
    for span in spans:
        group.now += span
        due.append(tick_due(view_of(group), group.now))
        before = facts_of(view_of(group), group.now)
        group.ask((QUEUE, Tick()))
        assert due[-1] or facts_of(view_of(group), group.now) == before
        group.check()
    # The delete waits for the cursor, and so a tick stays due; it changes nothing.
    assert due == [False, True, True, True, True, True]
    assert not view_of(group).stages
    assert not view_of(group).producers
    assert not view_of(group).retaining


@pytest.mark.parametrize("hold", [False, True])
def test_a_tick_ends_so_much_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, *, hold: bool
) -> None:
    """All at once, it may be more than a record holds: then nothing of it would ever go."""
    monkeypatch.setattr(limits, "TICK_ENDS_MAX", 2)
    monkeypatch.setattr(limits, "TICK_DELETES_MAX", 3)
    group = make(keyed=True)
    for number in range(5):
        rows = tuple(NewMessage(None, b"%d %d" % (number, at)) for at in range(4))
        group.ask((QUEUE, Publish(rows, ProducerNumber(f"p{number}", 1))))
        group.ask((QUEUE, Stage(f"s{number}", Block.of_bodies([b"x"]))))
        group.ask((QUEUE, Pin(50_000)), (QUEUE, Publish((NewMessage(b"x"),))))
        leased = lease(group, 1)
        settle(group, leased.lease, *leased.seqs)
        group.now += 1_000
    group.now += 7 * 86_400_000
    group.hold = hold
    ticks = 0
    while group.ask((QUEUE, Tick())) == [True]:
        ticks += 1
        assert ticks < 10
    view = view_of(group)
    left = [view.pins, view.stages, view.producers, view.leases, list(view.deletes)]
    assert not any(left), left
    # 20 deletes, up to three of them at a time, and no more than of two seconds.
    assert ticks == 6
    assert group.ask((QUEUE, Tick())) == [None]
    group.fold()
    group.check()


# --- Bad input ------------------------------------------------------------------------------------


def test_no_such_shard() -> None:
    group = make()
    for command in (
        LeaseMessages(1, 1),
        Purge(),
        Tick(),
        Explain(Seq(1)),
        Stage("s", Block.of_bodies([])),
    ):
        assert isinstance(group.ask((ShardId(9), command))[0], NotFound)


def test_nothing_named_is_nothing_done() -> None:
    """No seqs, no rows, no stages: answered, and nothing is written."""
    group = make()
    publish(group, b"x")
    lease(group, 1)
    entries = len(group.log)
    assert settle(group, 1) == Outcome(BitMap64(), {})
    assert settle(group, 7) == Outcome(BitMap64(), {})
    other = Settle(LeaseId(1), BitMap64(), b"other history...")
    assert group.ask((QUEUE, other))[0] == Outcome(BitMap64(), {})
    assert group.ask((QUEUE, Publish(())))[0] == PublishResult(Seq(2), 0)
    assert group.ask((QUEUE, Publish(Block.of_bodies([]))))[0] == PublishResult(Seq(2), 0)
    assert group.ask((QUEUE, PublishStaged(())))[0] == PublishResult(Seq(2), 0)
    assert len(group.log) == entries


def test_an_empty_stage_is_published_as_nothing() -> None:
    group = make(keyed=True)
    group.ask((QUEUE, Stage("s", Block.of_bodies([]))))
    answers = group.ask((QUEUE, PublishStaged(("s",))), (QUEUE, Publish((NewMessage(b"x"),))))
    assert answers == [PublishResult(Seq(1), 0), PublishResult(Seq(1), 1)]
    assert list(lease(group, 1).seqs) == [1]
    group.check()


def test_rows_that_are_none_leave_no_trace_among_others() -> None:
    group = make()
    group.ask(
        (QUEUE, Publish(())),
        (QUEUE, Publish((NewMessage(b"a"),))),
        (QUEUE, Publish(())),
        (QUEUE, Publish(Block.of_bodies([]))),
        (QUEUE, Publish((NewMessage(b"b"),))),
    )
    rows = group.store.rows(QUEUE, BitMap64([1, 2]))
    assert [row.body for row in rows] == [b"a", b"b"]


def test_a_run_of_plain_publishes_is_decided_as_each_alone() -> None:
    commands = [
        Publish((NewMessage(b"a"), NewMessage(b"b"))),
        Publish((NewMessage(b"c"),)),
        Publish(()),
    ]
    one, other = make(), make()
    answers = one.ask(*((QUEUE, command) for command in commands))
    context = BatchContext(other.view, Millis(other.now))
    draft = context.draft(QUEUE)
    assert draft is not None
    assert publish_plain(draft, commands) == answers
    assert b"".join(draft.finish().blocks[0].encode()) == b"".join(
        one.committed()[-1].batches[0].blocks[0].encode()
    )


def test_no_queue_without_a_catalog() -> None:
    group = make()
    [answer] = group.ask((QUEUE, CreateQueue("default", "r", QueueSpec())))
    assert isinstance(answer, NotFound)


def test_a_stage_is_published_once_in_a_transaction() -> None:
    group = make()
    group.ask((QUEUE, Stage("s", Block.of_bodies([b"x"]))))
    part = (QUEUE, PublishStaged(("s",)))
    assert isinstance(group.ask((CATALOG, ApplyTransaction((part, part))))[0], Invalid)
    assert group.ask((CATALOG, ApplyTransaction((part,))))[0] == (PublishResult(Seq(1), 1),)


def test_what_is_done_under_a_forgotten_lease() -> None:
    group = make()
    for command in (
        Release(LeaseId(5), BitMap64([1]), group.history),
        Extend(LeaseId(5), BitMap64([1]), group.history, 1000),
    ):
        [answer] = group.ask((QUEUE, command))
        assert isinstance(answer, Outcome)
        assert isinstance(answer.refused[1], Gone)


def test_an_empty_lease_says_so() -> None:
    group = make()
    assert is_empty(lease(group, 1))
    publish(group, b"x")
    assert not is_empty(lease(group, 1))


def test_an_unknown_command_fails() -> None:
    """It is never answered as if it had been done."""
    group = make()
    context = BatchContext(group.view, Millis(group.now))
    with pytest.raises(AssertionError):
        decide(context, QUEUE, "purge everything")  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        decide(context, QUEUE, ApplyTransaction(((QUEUE, LeaseMessages(1, 1)),)))  # type: ignore[arg-type]
