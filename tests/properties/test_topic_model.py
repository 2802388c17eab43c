"""Topics against a naive model.

Whatever is decided together, delayed, lost or taken over, each queue has the rows that were
published while it was subscribed and pass the filter, once and in order. Rows for a durable
subscription without a queue are dead letters once, or counted as dropped once; so are rows that are
too large for the queue.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.core.catalog import queue_key
from millrace.core.commands import (
    Command,
    Configure,
    CreateQueue,
    DeleteQueue,
    ProducerNumber,
    Publish,
    SpecPart,
)
from millrace.core.format.block import Block
from millrace.core.model import CATALOG, NewMessage, ShardId
from millrace.core.state.fold import Reader
from millrace.core.topic_commands import (
    ConfigureSubscription,
    CreateTopic,
    DeleteTopic,
    Forward,
    Subscribe,
    Unsubscribe,
)
from millrace.core.topics import filters
from millrace.errors import MillraceError
from tests.support.models.commit_group import Group, Result
from tests.support.transcript.topics import pack

QUEUES = ["a", "b", "keyed"]
NAMES = ["x", "y", "z"]
FILTERS = ["", filters.text({"kind": "even"})]
MAX_LAG = 12
LARGE = 20
"""Bytes of a message, its headers counted, beyond which a queue may be given none; also those of
the body of each message that has more."""


@dataclass
class Sub:
    """A subscription: its queue (one of several of that name), and its filter."""

    queue: str
    life: int
    filter: str
    passed: int
    note: str = ""
    durable: bool = False
    letters: str = ""
    dead_lettered: int = 0
    dropped: int = 0


@dataclass
class State:
    """The expected state, in lists and dictionaries."""

    rows: list[tuple[bytes, bool]] = field(default_factory=list)
    """Everything that was published in this life of the topic, and whether it is even."""
    subs: dict[str, Sub] = field(default_factory=dict)
    queues: dict[str, list[bytes]] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    bounded: set[str] = field(default_factory=set)
    """The queues that durable subscriptions give no large message."""
    links: dict[str, set[str]] = field(default_factory=dict)
    """Queue → the durable subscriptions that it was connected to at its creation."""
    numbers: int = 0


class TopicMachine(RuleBasedStateMachine):
    """The core, compared with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group()
        self.state = State()
        self.states: list[State] = [State()]
        """The model after each entry, committed or not; the first one has founded the catalog."""
        self.bodies = 0
        self.histories = 0

    @initialize()
    def make(self) -> None:
        self.ask(CATALOG, CreateTopic("default", "t", MAX_LAG))
        self.note()
        for name in QUEUES:
            self.make_queue(name)

    # --- Asking --------------------------------------------------------------------------------

    def ask(self, shard: ShardId, *commands: Command) -> Result:
        """Commands that are decided together; returns the first answer."""
        before = len(self.group.log) + len(self.group.pending)
        answer, *_ = self.group.ask(*((shard, command) for command in commands))
        self.has_entry = len(self.group.log) + len(self.group.pending) > before
        return answer

    def note(self) -> None:
        """The model has changed with the last entry, if there was one."""
        if self.has_entry:
            self.states.append(copy.deepcopy(self.state))

    def topic(self) -> ShardId:
        catalog = self.group.view(CATALOG)
        assert catalog is not None
        cell = catalog.topics.get(queue_key("default", "t"))
        return ShardId(cell.shard) if cell is not None else ShardId(999)

    def shard(self, name: str) -> ShardId:
        catalog = self.group.view(CATALOG)
        assert catalog is not None
        return ShardId(catalog.queues[queue_key("default", name)].shards[0])

    # --- Rules ---------------------------------------------------------------------------------

    @rule(name=st.sampled_from(QUEUES))
    def make_queue(self, name: str) -> None:
        is_new = name not in self.state.queues
        answer = self.ask(CATALOG, CreateQueue("default", name, SpecPart(keyed=name == "keyed")))
        assert not isinstance(answer, MillraceError)
        if is_new:
            self.state.bounded.discard(name)
        if is_new:
            self.state.queues[name] = []
            self.state.lives[name] = self.state.lives.get(name, 0) + 1
            self.state.links[name] = {
                key for key, sub in self.state.subs.items() if sub.durable and sub.queue == name
            }
        self.note()

    @rule(name=st.sampled_from(QUEUES), is_bounded=st.booleans())
    def bound_queue(self, name: str, *, is_bounded: bool) -> None:
        if name not in self.state.queues:
            return
        spec = SpecPart(message_bytes_max=LARGE if is_bounded else 0)
        assert not isinstance(self.ask(self.shard(name), Configure(spec)), MillraceError)
        self.state.bounded.discard(name)
        if is_bounded:
            self.state.bounded.add(name)
        self.note()

    @rule(name=st.sampled_from(QUEUES))
    def delete_queue(self, name: str) -> None:
        answer = self.ask(CATALOG, DeleteQueue("default", name))
        assert answer is (name in self.state.queues)
        self.state.queues.pop(name, None)
        subs = self.state.subs.items()
        ended = [key for key, sub in subs if sub.queue == name and not sub.durable]
        for key in ended:
            del self.state.subs[key]
        self.note()

    @rule(
        name=st.sampled_from(NAMES),
        queue=st.sampled_from(QUEUES),
        text=st.sampled_from(FILTERS),
        durable=st.booleans(),
        letters=st.sampled_from(["", *QUEUES]),
    )
    def subscribe(self, *, name: str, queue: str, text: str, durable: bool, letters: str) -> None:
        dead = f"default/{letters}" if durable and letters else ""
        links = ((name, "1"),) if durable else ()
        command = Subscribe(name, "default", queue, text, (), durable, dead, links)
        answer = self.ask(self.topic(), command)
        known = self.state.subs.get(name)
        if queue not in self.state.queues and not durable:
            assert type(answer).__name__ == "NotFound"
        elif known is None:
            assert not isinstance(answer, MillraceError)
            life, passed = self.state.lives.get(queue, 0), len(self.state.rows)
            self.state.subs[name] = Sub(
                queue, life, text, passed, durable=durable, letters=letters if dead else ""
            )
        elif (known.queue, known.filter) != (queue, text):
            assert type(answer).__name__ == "Exists"
        self.note()

    @rule(
        name=st.sampled_from(NAMES),
        text=st.sampled_from([None, *FILTERS]),
        note=st.sampled_from(["", "a", "b"]),
    )
    def configure_subscription(self, name: str, text: str | None, note: str) -> None:
        command = ConfigureSubscription(name, text, (("note", note),))
        answer = self.ask(self.topic(), command)
        known = self.state.subs.get(name)
        if known is None:
            assert type(answer).__name__ == "NotFound"
        else:
            assert not isinstance(answer, MillraceError)
            known.filter, known.note = known.filter if text is None else text, note
        self.note()

    @rule(name=st.sampled_from(NAMES))
    def unsubscribe(self, name: str) -> None:
        answer = self.ask(self.topic(), Unsubscribe(name))
        assert answer is (self.state.subs.pop(name, None) is not None)
        self.note()

    @rule(count=st.integers(1, 4), as_block=st.booleans(), numbered=st.booleans())
    def publish(self, *, count: int, as_block: bool, numbered: bool) -> None:
        rows: list[tuple[bytes, bool]] = []
        for _ in range(count):
            self.bodies += 1
            body = b"%d" % self.bodies
            rows.append((body.zfill(LARGE) if self.bodies % 3 == 0 else body, self.bodies % 2 == 0))
        messages = [
            NewMessage(body, None, (("kind", b"even" if even else b"odd"),)) for body, even in rows
        ]
        number = ProducerNumber("p", self.state.numbers + 1) if numbered else None
        given = Block.of_messages(messages) if as_block else tuple(messages)
        lag = len(self.state.rows) - min(
            (sub.passed for sub in self.state.subs.values()), default=len(self.state.rows)
        )
        answer = self.ask(self.topic(), Publish(given, number))
        if lag >= MAX_LAG:
            assert type(answer).__name__ == "Full"
        else:
            assert not isinstance(answer, MillraceError)
            self.state.rows += rows
            self.state.numbers += numbered
        self.note()

    @rule(data=st.data(), again=st.booleans(), other=st.booleans())
    def forward(self, data: st.DataObject, *, again: bool, other: bool) -> None:
        """Forward parcels of folded rows for some subscriptions; some were forwarded before, or
        were packed by a filter that was changed since."""
        shard = self.topic()
        view, meta = self.group.view(shard), self.group.store.meta(shard)
        if view is None or meta is None:
            return
        parcels = []
        done: list[str] = []
        queues: set[str] = set()
        for number, cell in view.subscriptions.items():
            after = max(0, cell.passed - 1) if again else cell.passed
            if after >= meta.last_seq or not data.draw(st.booleans()):
                continue
            upto = data.draw(st.integers(after + 1, meta.last_seq))
            packed = next(text for text in FILTERS if (text == cell.filter) is not other)
            parcels.append(pack(self.group, shard, number, packed, after, upto))
            sub = self.state.subs[cell.name]
            targets = {name for name, rows in self._ways(sub, upto) if name and rows}
            if self._target(sub):
                targets.add(self._target(sub))
            if after == cell.passed and not targets & queues and not other:
                queues |= targets
                done.append(cell.name)
                self._pass(sub, upto)
        self.ask(shard, Forward(tuple(parcels)))
        assert self.has_entry or not done
        self.note()

    def _pass(self, sub: Sub, upto: int) -> None:
        for target, rows in self._ways(sub, upto):
            if target:
                self.state.queues[target] += rows
            if target != sub.queue:
                sub.dead_lettered += len(rows) if target else 0
                sub.dropped += 0 if target else len(rows)
        sub.passed = upto

    def _ways(self, sub: Sub, upto: int) -> list[tuple[str, list[bytes]]]:
        """Return the destinations and their rows, with rows too large for the queue last; empty:
        none."""
        rows = self.state.rows[sub.passed : upto]
        wanted = [body for body, even in rows if even or not sub.filter]
        target = self._target(sub)
        if not sub.durable or target != sub.queue or target not in self.state.bounded:
            return [(target, wanted)]
        small = [body for body in wanted if len(body) < LARGE]
        is_apart = sub.letters != sub.queue and sub.letters in self.state.queues
        large = [body for body in wanted if len(body) >= LARGE]
        return [(target, small), (sub.letters if is_apart else "", large)]

    def _target(self, sub: Sub) -> str:
        """Return the queue of a subscription; empty: there is none."""
        return next((name for name in (sub.queue, sub.letters) if name in self.state.queues), "")

    @rule()
    def delete_topic(self) -> None:
        if self.bodies % 5:
            # Now and then.
            return
        new = CreateTopic("default", "t", MAX_LAG)
        assert self.ask(CATALOG, DeleteTopic("default", "t"), new) is True
        self.state.rows, self.state.subs, self.state.numbers = [], {}, 0
        self.note()

    # --- What happens to the group ---------------------------------------------------------------

    @rule()
    def hold(self) -> None:
        self.group.hold = True

    @rule()
    def fold(self) -> None:
        self.group.fold()
        self.group.hold = False

    @rule()
    def crash(self) -> None:
        del self.states[len(self.states) - len(self.group.pending) :]
        self.group.crash()
        self.group.hold = False
        self.state = copy.deepcopy(self.states[-1])

    @rule(lost=st.integers(0, 4))
    def take_over(self, lost: int) -> None:
        """Another history goes on, without the last entries."""
        kept = max(len(self.group.log) - lost, FIRST_ENTRIES)
        self.histories += 1
        self.group.take_over(f"H{self.histories}", kept)
        self.group.hold = False
        del self.states[kept:]
        self.state = copy.deepcopy(self.states[-1])

    @invariant()
    def same(self) -> None:
        if self.group.pending or len(self.states) < FIRST_ENTRIES:
            return
        self.group.check()
        for name, wanted in self.state.queues.items():
            assert self._bodies(self.shard(name)) == wanted, name
        view = self.group.view(self.topic())
        assert view is not None
        found = {
            cell.name: (
                cell.filter,
                dict(cell.notes).get("note", ""),
                cell.dead_lettered,
                cell.dropped,
                cell.is_unbound,
            )
            for cell in view.subscriptions.values()
        }
        assert found == {
            name: (
                sub.filter,
                sub.note,
                sub.dead_lettered,
                sub.dropped,
                sub.queue not in self.state.queues,
            )
            for name, sub in self.state.subs.items()
        }
        catalog = self.group.view(CATALOG)
        assert catalog is not None
        waiting = [
            f"default/{sub.queue}"
            for sub in self.state.subs.values()
            if sub.queue not in self.state.queues
        ]
        awaited = [name for name, cells in catalog.awaited.items() for _ in cells]
        assert sorted(awaited) == sorted(waiting)
        for name in self.state.queues:
            queue = self.group.view(self.shard(name))
            assert queue is not None
            assert set(dict(queue.spec.notes)) == self.state.links[name]
        passed = [sub.passed for sub in self.state.subs.values()]
        floor = min(passed, default=len(self.state.rows))
        left = [body for body, _ in self.state.rows[floor:]]
        assert self._bodies(self.topic()) == left, "the topic keeps what is wanted, and no more"

    def _bodies(self, shard: ShardId) -> list[bytes | None]:
        meta = self.group.store.meta(shard)
        assert meta is not None
        return [
            body
            for batch in self.group.store.scan(shard, 0, meta.last_seq, Reader())
            for body in batch.column("value").to_pylist()
        ]


FIRST_ENTRIES = 5
"""Found, the topic and its queues: no takeover loses them."""

TestTopics = TopicMachine.TestCase
TestTopics.settings = settings(
    max_examples=int(os.environ.get("EXAMPLES", "60")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
