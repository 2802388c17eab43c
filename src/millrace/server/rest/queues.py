"""Queues: making, describing, changing and ending them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import msgspec

from millrace.client.queue import Queue
from millrace.core.holder import Holder, Holders
from millrace.core.place import Route as Way
from millrace.errors import Exists, NotFound
from millrace.server.http.response import Response
from millrace.server.rest.message import Seq, seq_out, start_in
from millrace.server.rest.route import Ask, Nothing, encode
from millrace.server.rest.settings import Settings, settings_in, settings_out
from millrace.server.rest.table import QUEUE, ROUTES, SPACE


class Names(msgspec.Struct, frozen=True):
    """Names, in order: of those that the caller may do anything with."""

    names: list[str]


@ROUTES.json("GET", "/v1/spaces", "known", Nothing, Names, tag="queues")
async def list_spaces(ask: Ask, _: Nothing) -> Names:
    """The spaces in which there is anything that the caller may do something with."""
    millrace = ask.desk.millrace
    found: list[str] = []
    for space in await millrace.spaces():
        names = [*await millrace.queues(space=space), *await millrace.topics(space=space)]
        if any(ask.sees(f"{space}/{name}") for name in names):
            found.append(space)
    return Names(found)


@ROUTES.json("GET", f"{SPACE}/queues", "known", Nothing, Names, tag="queues")
async def list_queues(ask: Ask, _: Nothing) -> Names:
    """The queues of a space."""
    found = await ask.desk.millrace.queues(space=ask.params["space"])
    return Names([name for name in found if ask.sees(name)])


class QueueAsk(Settings, frozen=True, forbid_unknown_fields=True):
    """What a queue is to be like; what is left out is as usual, or as it is."""

    shards: int | None = None
    """How many parts it has that are ordered each on its own. Fixed when the queue is made."""
    route: Way | None = None
    """Which of them a message goes to: by its key, by its group (else its key), or in turns."""


class QueueOut(msgspec.Struct, frozen=True):
    """A queue, and its settings."""

    space: str
    name: str
    shards: int
    route: Way
    settings: Settings


class HolderOut(msgspec.Struct, frozen=True):
    """Somebody for whom messages stay that would have gone otherwise."""

    kind: Literal["pin", "cursor", "dead letters"]
    name: str
    """Of the cursor; of a pin that is read by one, too."""
    seq: Seq
    """The pin's boundary, where the cursor stands, or the first of the dead letters."""
    messages: int
    bytes: int
    """About how many they have."""
    age_ms: int
    """Since the pin was made, or since the cursor moved."""
    dropped: bool
    """The cursor held back too much, and holds nothing any more."""


class HoldersOut(msgspec.Struct, frozen=True):
    """What is there of a queue, and who keeps messages from going."""

    first: Seq
    """No message before this one is left but for pins."""
    wanted: Seq
    """Without those who hold messages back, none before this one would be left."""
    held: list[HolderOut]
    in_flight: int
    """Messages that workers hold; not those that were given back or whose lease is over."""
    delayed: int
    """Messages whose delay is not over, never handed out or given back; of very many, the next."""


class QueueState(QueueOut, frozen=True, kw_only=True):
    """A queue as it is now."""

    stats: dict[str, int]
    """Durable counters: published = live + the sum of all the ways a message can end."""
    shard_stats: list[dict[str, int]]
    """The same, of each shard."""
    partitions: int
    """How many there are now; 0 if the delivery is by messages."""
    cursors: dict[str, int]
    """What each cursor has committed: a seq, or the sum over shards."""
    stages: dict[str, int]
    """The rows of each stage that was neither published nor dropped."""
    holders: HoldersOut


@ROUTES.json("PUT", QUEUE, "manage", QueueAsk, QueueOut, tag="queues", also_status=(201,))
async def make_queue(ask: Ask, told: QueueAsk) -> Response:
    """Make a queue, or see that the one that is there is like this; 201 if it was made."""
    space, name = ask.params["space"], ask.params["queue"]
    _check_letters(ask, told)
    millrace = ask.desk.millrace
    was_there = False
    with suppress(NotFound):
        await millrace.find(name, space=space)
        was_there = True
    with patch_hinted():
        queue = await millrace.queue(
            name, space=space, shards=told.shards, route=told.route, **settings_in(told)
        )
    return Response(200 if was_there else 201, encode(await _out(queue)))


@contextmanager
def patch_hinted() -> Iterator[None]:
    """Of what is there with other settings, say how they are changed by requests."""
    try:
        yield
    except Exists as error:
        way = error.message.replace("configure it to", "PATCH it to")
        raise Exists(way, field=error.field, limit=error.limit) from error


def _check_letters(ask: Ask, told: Settings) -> None:
    """Whoever has dead letters sent to a queue publishes there."""
    if told.dead_letter:
        ask.check("publish", ask.params["space"], told.dead_letter)


async def _out(queue: Queue) -> QueueOut:
    shards = queue.shards
    settings = settings_out(await queue.spec())
    return QueueOut(queue.space, queue.name, len(shards.ids), shards.route, settings)


@ROUTES.json("GET", QUEUE, "read", Nothing, QueueState, tag="queues")
async def describe_queue(ask: Ask, _: Nothing) -> QueueState:
    """A queue's settings and counters, and who keeps messages in it."""
    return await ask.queue(_state)


async def _state(queue: Queue) -> QueueState:
    shards = queue.shards
    return QueueState(
        queue.space,
        queue.name,
        len(shards.ids),
        shards.route,
        settings_out(await queue.spec()),
        stats=await queue.stats(),
        shard_stats=await queue.shard_stats(),
        partitions=await queue.partitions(),
        cursors=await queue.cursors(),
        stages=await queue.stages(),
        holders=_holders_out(await queue.holders()),
    )


def _holders_out(found: Holders) -> HoldersOut:
    return HoldersOut(
        seq_out(found.first),
        seq_out(found.wanted),
        [_holder_out(one) for one in found.held],
        found.in_flight,
        found.held_by_workers - found.in_flight + found.delayed,
    )


def _holder_out(one: Holder) -> HolderOut:
    seq = seq_out(one.seq)
    return HolderOut(one.kind, one.name, seq, one.rows, one.bytes, one.age_ms, one.dropped)


@ROUTES.json("PATCH", QUEUE, "manage", Settings, QueueOut, tag="queues")
async def configure_queue(ask: Ask, told: Settings) -> QueueOut:
    """Change settings of a queue; the others stay as they are."""
    _check_letters(ask, told)

    async def use(queue: Queue) -> QueueOut:
        await queue.configure(**settings_in(told))
        ask.desk.changed(queue.space, queue.name)
        return await _out(queue)

    return await ask.queue(use)


class WasThere(msgspec.Struct, frozen=True):
    """What was to go is gone."""

    was_there: bool
    """False: it was not there before, either."""


@ROUTES.json("DELETE", QUEUE, "manage", Nothing, WasThere, tag="queues")
async def delete_queue(ask: Ask, _: Nothing) -> WasThere:
    """End a queue with all that it holds."""
    space, name = ask.params["space"], ask.params["queue"]
    return WasThere(await ask.desk.millrace.delete_queue(name, space=space))


class Purged(msgspec.Struct, frozen=True):
    """How far messages went."""

    upto: Seq


@ROUTES.json("POST", f"{QUEUE}/purge", "manage", Nothing, Purged, tag="queues")
async def purge(ask: Ask, _: Nothing) -> Purged:
    """End every message that is there now, leased ones too."""
    return Purged(seq_out(await ask.queue(lambda queue: queue.purge())))


class RewindAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where workers begin again."""

    start: int | str
    """beginning, end, the first seq that they get, or a time as ISO 8601 writes it."""


class Rewound(msgspec.Struct, frozen=True):
    """Where they do."""

    first: Seq


@ROUTES.json("POST", f"{QUEUE}/rewind", "manage", RewindAsk, Rewound, tag="queues")
async def rewind(ask: Ask, told: RewindAsk) -> Rewound:
    """Have workers work a log queue again."""
    start = start_in(told.start)
    return Rewound(seq_out(await ask.queue(lambda queue: queue.rewind(start))))
