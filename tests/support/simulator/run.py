"""A run: lives of one engine on one machine, among clients, until the steps are used up.

Each life opens the shipped node over the simulated disk, compares everything it serves with the
ledger, lets the clients loose, and ends: by a crash, by a failure, or by being closed. After the
last one the machine is left in peace; the clients finish, the queues are drained, and the checkers
look at the whole history.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from dataclasses import dataclass

from millrace import limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.errors import Fatal, Full, InUse, MillraceError
from millrace.node import LOCAL, Node, Ports
from tests.support.checkers.all import check
from tests.support.checkers.history import History
from tests.support.simulator.bit_flips import flip_bits
from tests.support.simulator.event_loop import Halted, SimLoop, Stuck
from tests.support.simulator.machine import (
    Fault,
    Machine,
    Plan,
    draw_plan,
)
from tests.support.simulator.quiescence import make_peace
from tests.support.simulator.workload import (
    AGING,
    BOUNDED,
    DESK,
    MORTAL,
    ORDERED,
    SLICED,
    TAPE,
    TIDE,
    TURNED,
    WEIRS,
    Client,
    Over,
    Session,
    World,
)
from tests.support.simulator.workload_consumers import Consumer
from tests.support.simulator.workload_deleters import Deleter
from tests.support.simulator.workload_followers import Follower, Pinner
from tests.support.simulator.workload_ids import Retrier, Sender
from tests.support.simulator.workload_owners import Owner, Turner
from tests.support.simulator.workload_publishers import Publisher
from tests.support.simulator.workload_shards import make_shard_clients
from tests.support.simulator.workload_spoilers import Spoiler
from tests.support.simulator.workload_topics import Subscriber, TopicPublisher
from tests.support.simulator.workload_workers import Worker

LIVES_MAX = 60
"""Lives of one run: a machine that crashes in every recovery gets no further."""

FLIPS = 4
"""Bits that are turned over, each in a copy of its own, after an engine has ended."""

LIFE_SECONDS_MAX = 60.0
"""Virtual time after which an engine is closed and opened again, if nothing happened to it."""


@dataclass(frozen=True, slots=True)
class Report:
    """Findings of a run."""

    seed: int
    violations: list[str]
    events: int
    crashes: int
    calls: int
    step: int
    digest: str
    lines: list[str]


class Run:
    """One run of the simulator; everything in it follows from the seed."""

    def __init__(
        self, seed: int, steps: int, clients: Callable[[World], list[Client]] | None = None
    ) -> None:
        """`clients`: who takes part, instead of everybody."""
        self.seed = seed
        self.plan: Plan = draw_plan(seed)
        self.history = History()
        self.machine = Machine(seed, self.plan, self.history)
        self.world = World(seed, self.history, self.machine.clock, steps)
        self.clients = (clients or make_clients)(self.world)
        if clients is None and self.plan.has(Fault.UNREADABLE):
            self.clients.append(Spoiler("spoiler", self.world))
        self.events = 0
        self._segments_max = 0
        self._full_lives = 0
        """Lives in a row that began on a full disk."""
        self._is_peace = False
        self.violations: list[str] = []
        self._chance = random.Random(f"{seed}/run")
        self._flips = random.Random(f"{seed}/flips")

    def play(self) -> Report:
        """Run it, and return the findings."""
        gc.collect()
        # Buffers are given back when the collector finds them; it must not choose the moment. What
        # was there before the run is not looked at again and again.
        gc.disable()
        gc.freeze()
        try:
            self._play()
        finally:
            gc.unfreeze()
            gc.enable()
        return Report(
            self.seed,
            self.violations,
            self.events,
            self.machine.crashes,
            len(self.history.calls),
            self.history.step,
            self.history.digest(),
            self.history.lines,
        )

    def _play(self) -> None:
        faults = ", ".join(sorted(fault.value for fault in self.plan.faults))
        self.history.say(f"seed {self.seed}: {faults or 'no faults'}; {self.plan.settings}")
        for _ in range(LIVES_MAX):
            if self.world.steps_left <= 0 or self.violations:
                break
            self._life(is_calm=False)
        # With other settings than before, a full disk may have to be given room before it opens.
        for _ in range(2):
            if not self.violations and not self._is_peace:
                self._life(is_calm=True)
        if not self.violations:
            self.violations += check(self.history)

    def _life(self, *, is_calm: bool) -> None:
        loop = SimLoop(self.machine.clock)
        try:
            loop.run(self._live(loop, is_calm=is_calm))
        except Halted:
            self.history.say("the process is gone")
        except Stuck as error:
            self._blame(f"liveness: nothing will ever happen again {error}")
        except MillraceError as error:
            self._blame_failure(error, is_calm=is_calm)
        self.events += loop.events
        self.violations += [f"unhandled: {failure}" for failure in loop.failures]
        self.violations += self.machine.ledger.violations + self.world.violations
        how = self.machine.end()
        loop.bury()
        self.history.engine_ended()
        self.history.say(f"the engine {how}")
        self.history.trace(f"bytes {self.machine.ledger.sum}")
        if self.plan.has(Fault.FLIP) and not self.machine.has_failed:
            self.violations += flip_bits(self.machine, self._flips, FLIPS)
        gc.collect()

    def _blame_failure(self, error: MillraceError, *, is_calm: bool) -> None:
        """The engine could not be opened, or failed while it was being checked."""
        self.history.say(f"failed: {type(error).__name__}: {error}")
        if isinstance(error, Full) and self.machine.is_full and self._may_be_refused():
            # Somebody has to make room.
            self.machine.empty_disk()
        elif is_calm or not self.machine.has_failed:
            self._blame(f"opening failed: {type(error).__name__}: {error}")

    def _may_be_refused(self) -> bool:
        """L8: True if a full disk may refuse an open, as each open takes a segment.

        Other settings may need more room. Otherwise one segment is reserved for it: live rows
        keep their segments, so that a second open may find none.
        """
        return self.plan.has(Fault.SETTINGS) or self._full_lives > 1

    def _blame(self, violation: str) -> None:
        self.violations.append(violation)

    # --- A life --------------------------------------------------------------------------------

    async def _live(self, loop: SimLoop, *, is_calm: bool) -> None:
        ports = self.machine.begin(loop, is_calm=is_calm)
        self._full_lives = self._full_lives + 1 if self.machine.is_full else 0
        self._segments_max = max(self._segments_max, self.machine.settings.log_segments_max) + 1
        node = await Node.open(ports, self.machine.settings)
        self.history.say(f"opened: entry {node.store.applied(LOCAL)}")
        self.violations += self.machine.ledger.compare(node.store)
        await self._intrude(ports)
        millrace = Millrace(EmbeddedEngine(node))
        session = Session(millrace, self.world)
        if self.violations:
            return
        if is_calm:
            self.machine.empty_disk()
            await make_peace(self, node, session)
            self._is_peace = True
        else:
            await self._let_loose(node, session)
        self.history.say("closing")
        try:
            await millrace.close()
        except Fatal as error:
            self.history.say(f"closing failed: {type(error).__name__}: {error}")
            if not self.machine.has_failed:
                self._blame(f"closing failed: {type(error).__name__}: {error}")

    async def _intrude(self, ports: Ports) -> None:
        """A second process must not get in."""
        try:
            await Node.open(ports, self.machine.settings)
        except InUse:
            return
        self._blame("a folder that is in use was opened a second time")

    async def _let_loose(self, node: Node, session: Session) -> None:
        """Let the clients act freely until this life ends."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        session.on_failure = over.set
        timer = loop.call_later(self._chance.uniform(0.5, LIFE_SECONDS_MAX), over.set)
        weather = loop.create_task(self._weather(node))
        tasks = [loop.create_task(self._guard(client, session, over)) for client in self.clients]
        await over.wait()
        timer.cancel()
        session.is_ending = True
        if session.failed is not None and not self.machine.has_failed:
            self._blame(f"the engine failed by itself: {session.failed!r}")
        if session.failed is None and self._chance.random() < 0.5:
            # Closed under its clients: calls that were not accepted are refused.
            await session.millrace.close()
        for task in tasks:
            await task
        weather.cancel()

    async def _guard(self, client: Client, session: Session, over: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        work = loop.create_task(client.live(session))
        while not work.done():
            await asyncio.wait([work], timeout=0.5)
            if self.world.steps_left <= 0:
                over.set()
        work.result()

    async def _weather(self, node: Node) -> None:
        """Inject faults into the machine."""
        machine, chance = self.machine, self._chance
        while True:
            await asyncio.sleep(chance.expovariate(1 / 1.0))
            self._check_bounds(node)
            if self.plan.has(Fault.CLOCK) and chance.random() < 0.4:
                delta = chance.choice([-86_400_000, -60_000, -500, 500, 5_000, 60_000, 3_700_000])
                machine.clock.jump(delta)
                self.history.say(f"the clock jumps by {delta} ms")
            if self.plan.has(Fault.FULL_DISK) and chance.random() < 0.4:
                spare = chance.choice([0, 100_000, 1_000_000])
                machine.fill_disk(spare)
                self.history.say(f"the disk is full but for {spare} bytes")
                await asyncio.sleep(chance.expovariate(1 / 2.0))
                machine.empty_disk()
                self.history.say("the disk has room again")

    def _check_bounds(self, node: Node) -> None:
        """I11: the log has as many segments as it may, and one for each open that found none."""
        segments, most = len(node.log.segments()), self._segments_max
        if segments > most:
            self._blame(f"I11: the log has {segments} segments in use, and may have {most}")
        held = node.log.statistics().held_bytes
        if held > limits.HELD_BYTES_MAX:
            self._blame(f"I11: {held} bytes of segments are held")


def make_clients(world: World) -> list[Client]:
    """The clients of a run."""
    chance = world.chance("clients")
    clients: list[Client] = []
    for number, queue in enumerate(["plain", "keyed", "log", "table", "churn", "keyed"]):
        clients.append(Publisher(f"p{number}", world, queue))
    for number, queue in enumerate(["plain", "keyed", "plain", "log", "churn"]):
        target = chance.choice(["keyed", "log", "table"])
        clients.append(Worker(f"w{number}", world, queue, target))
    # Two at some queues, who read the same snapshots.
    for number, queue in enumerate(["plain", "keyed", "table", "churn", "plain", "table"]):
        retain = chance.random() < 0.5
        clients.append(Follower(f"f{number}", world, queue, retain=retain))
    clients.append(Pinner("r0", world, chance.choice(["plain", "keyed", "table"])))
    clients.append(Owner("owner", world))
    for number, queue in enumerate(["fragile", chance.choice(["fragile", "fickle"]), "reel"], 6):
        clients.append(Publisher(f"p{number}", world, queue))
        clients.append(Worker(f"w{number}", world, queue, chance.choice(["plain", "log"])))
    turned = chance.choice(TURNED)
    clients.append(Publisher("p9", world, turned))
    clients += [
        Worker(name, world, turned, chance.choice(["plain", turned])) for name in ("w9", "w10")
    ]
    ordered = chance.choice(ORDERED)
    clients.append(Publisher("p11", world, ordered))
    clients += [
        Worker(name, world, ordered, chance.choice(["plain", ordered])) for name in ("w11", "w12")
    ]
    for number, queue in enumerate([chance.choice(MORTAL), TAPE], 13):
        clients.append(Publisher(f"p{number}", world, queue))
        clients.append(Worker(f"w{number}", world, queue, chance.choice(["plain", queue])))
    clients += [Sender("i0", world), Retrier("i1", world)]
    clients.append(Publisher("p10", world, DESK))
    clients += [Consumer("c0", world), Consumer("c1", world)]
    clients += [TopicPublisher("t0", world), TopicPublisher("t1", world)]
    clients.append(Subscriber("s0", world))
    sliced = chance.choice(SLICED)
    clients += make_sliced(world, sliced, 20)
    clients.append(Turner("turner", world))
    pairs = [*chance.sample(BOUNDED, 2), chance.choice(AGING), chance.choice(WEIRS), TIDE]
    for number, queue in enumerate(pairs, 22):
        clients += make_pair(world, queue, number)
    return clients + make_shard_clients(world)


def make_sliced(world: World, queue: str, number: int) -> list[Client]:
    """The clients of a queue that is served by partitions."""
    names = (f"w{number}", f"w{number + 1}")
    workers: list[Client] = [Worker(name, world, queue, "plain") for name in names]
    return [Publisher(f"p{number}", world, queue), Deleter(f"d{number}", world, queue), *workers]


def make_pair(world: World, queue: str, number: int) -> list[Client]:
    """Somebody who publishes, and somebody who works."""
    target = world.chance(f"target{number}").choice(["plain", queue])
    worker = Worker(f"w{number}", world, queue, target)
    return [Publisher(f"p{number}", world, queue), worker]


def make_sliced_clients(world: World) -> list[Client]:
    """Clients of partitions alone: what a run has of them at all is little."""
    found = [make_sliced(world, queue, 10 * at) for at, queue in enumerate(SLICED, 1)]
    return [client for clients in [*found, _make_takers(world)] for client in clients]


def make_bounded_clients(world: World) -> list[Client]:
    """Return clients of queues with a maximum length, alone."""
    found = [make_pair(world, queue, at) for at, queue in enumerate(BOUNDED, 1)]
    return [client for clients in [*found, _make_takers(world)] for client in clients]


def make_weir_clients(world: World) -> list[Client]:
    """Return clients of queues with a limit of messages in flight, alone."""
    found = [make_pair(world, queue, 10 * at) for at, queue in enumerate(WEIRS, 1)]
    others: list[Client] = [Worker(f"{queue}1", world, queue, "plain") for queue in WEIRS]
    return [client for clients in [*found, others, _make_takers(world)] for client in clients]


def make_tide_clients(world: World) -> list[Client]:
    """Clients of a queue that becomes fair, alone."""
    others: list[Client] = [Turner("turner", world), Worker("tide1", world, TIDE, "plain")]
    return [*make_pair(world, TIDE, 1), *others, *_make_takers(world)]


def make_aging_clients(world: World) -> list[Client]:
    """Clients of logs that end their oldest messages, alone."""
    found = [make_pair(world, queue, at) for at, queue in enumerate(AGING, 1)]
    return [client for clients in [*found, _make_takers(world)] for client in clients]


def _make_takers(world: World) -> list[Client]:
    """Return clients that work on messages which others pass on."""
    return [Worker(f"{queue}0", world, queue, "log") for queue in ("plain", "keyed")]


__all__ = ["Over", "Report", "Run"]
