"""Queues: create, describe, configure and delete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import msgspec

from millrace.client.queue import Queue
from millrace.core.answers import Holder, Holders
from millrace.core.model import Route as Way
from millrace.errors import Exists, NotFound
from millrace.server.http.response import Response
from millrace.server.rest.route_table import QUEUE, ROUTES, SPACE
from millrace.server.rest.settings import SettingsBody, settings_in, settings_out
from millrace.server.web.message import Seq, seq_out, start_in
from millrace.server.web.route import Nothing, RequestContext, encode


class Names(msgspec.Struct, frozen=True):
    """Names in order, as far as the caller has any right on them."""

    names: list[str]


@ROUTES.json("GET", "/v1/spaces", "known", Nothing, Names, tag="queues")
async def list_spaces(ask: RequestContext, _: Nothing) -> Names:
    """List the spaces that contain anything on which the caller has a right."""
    millrace = ask.desk.millrace
    found: list[str] = []
    for space in await millrace.spaces():
        names = [*await millrace.queues(space=space), *await millrace.topics(space=space)]
        if any(ask.sees(f"{space}/{name}") for name in names):
            found.append(space)
    return Names(found)


@ROUTES.json("GET", f"{SPACE}/queues", "known", Nothing, Names, tag="queues")
async def list_queues(ask: RequestContext, _: Nothing) -> Names:
    """List the queues of a space."""
    found = await ask.desk.millrace.queues(space=ask.params["space"])
    return Names([name for name in found if ask.sees(name)])


class QueueAsk(SettingsBody, frozen=True, forbid_unknown_fields=True):
    """The settings of a queue; omitted ones take their defaults, or keep their values."""

    shards: int | None = None
    """Number of shards, each with its own order. Fixed when the queue is made."""
    route: Way | None = None
    """The routing of messages to shards: by key, by group (by key without one), or in turn. Fixed
    when the queue is made.
    """
    beside: str | None = None
    """A queue of the same space whose commit group this one joins, so that transactions over both
    stay possible on a cluster. Fixed when the queue is made.
    """


class QueueOut(msgspec.Struct, frozen=True):
    """A queue with its settings."""

    space: str
    name: str
    shards: int
    route: Way
    settings: SettingsBody


class HolderOut(msgspec.Struct, frozen=True):
    """A pin, cursor or group of dead letters that keeps messages from being removed."""

    kind: Literal["pin", "cursor", "dead letters"]
    name: str
    """The cursor's name; also for a pin that a cursor reads."""
    seq: Seq
    """The pin's boundary, the cursor's position, or the first dead letter."""
    messages: int
    bytes: int
    """Approximate size of the messages that it keeps."""
    age_ms: int
    """Time since the pin was made, or since the cursor moved."""
    dropped: bool
    """True if the cursor exceeded its limit and no longer keeps messages."""


class HoldersOut(msgspec.Struct, frozen=True):
    """The extent of a queue, and what keeps messages from being removed."""

    first: Seq
    """All messages before this seq are gone, except for pins."""
    wanted: Seq
    """Without the holders, all messages before this seq would be gone."""
    held: list[HolderOut]
    in_flight: int
    """Number of messages in flight, without released ones and those whose lease has ended."""
    delayed: int
    """Number of messages with a running delay, both new and released; of very many, the next
    ones.
    """


class QueueState(QueueOut, frozen=True, kw_only=True):
    """A queue with its settings and present state."""

    stats: dict[str, int]
    """Durable counters: published = live + the sum of the counters of all ends of a message."""
    shard_stats: list[dict[str, int]]
    """The counters of each shard."""
    partitions: int
    """Present number of partitions; 0 with the delivery `messages`."""
    cursors: dict[str, int]
    """The committed position of each cursor: a seq, or the sum over the shards."""
    stages: dict[str, int]
    """The number of rows of each stage that is neither published nor dropped."""
    holders: HoldersOut


@ROUTES.json("PUT", QUEUE, "manage", QueueAsk, QueueOut, tag="queues", also_status=(201,))
async def make_queue(ask: RequestContext, params: QueueAsk) -> Response:
    """Create a queue, or check that the existing one has these settings; 201 if it was created."""
    space, name = ask.params["space"], ask.params["queue"]
    _check_letters(ask, params)
    if params.beside:
        ask.check("publish", space, params.beside)
    millrace = ask.desk.millrace
    was_there = False
    with suppress(NotFound):
        await millrace.find(name, space=space)
        was_there = True
    with patch_hinted():
        queue = await millrace.queue(
            name,
            space=space,
            shards=params.shards,
            route=params.route,
            beside=params.beside,
            **settings_in(params),
        )
    return Response(200 if was_there else 201, encode(await _out(queue)))


@contextmanager
def patch_hinted() -> Iterator[None]:
    """Rewrite the hint of `Exists` errors, so that it names the request that changes settings."""
    try:
        yield
    except Exists as error:
        way = error.message.replace("configure it to", "PATCH it to")
        raise Exists(way, field=error.field, limit=error.limit) from error


def _check_letters(ask: RequestContext, params: SettingsBody) -> None:
    """Check the right to publish to the dead-letter queue in the settings."""
    if params.dead_letter:
        ask.check("publish", ask.params["space"], params.dead_letter)


async def _out(queue: Queue) -> QueueOut:
    shards = queue.shards
    settings = settings_out(await queue.spec())
    return QueueOut(queue.space, queue.name, len(shards.ids), shards.route, settings)


@ROUTES.json("GET", QUEUE, "read", Nothing, QueueState, tag="queues")
async def describe_queue(ask: RequestContext, _: Nothing) -> QueueState:
    """Return a queue's settings and counters, and what keeps messages in it."""
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


@ROUTES.json("PATCH", QUEUE, "manage", SettingsBody, QueueOut, tag="queues")
async def configure_queue(ask: RequestContext, params: SettingsBody) -> QueueOut:
    """Change settings of a queue; settings that are not given keep their values."""
    _check_letters(ask, params)

    async def use(queue: Queue) -> QueueOut:
        await queue.configure(**settings_in(params))
        ask.desk.changed(queue.space, queue.name)
        return await _out(queue)

    return await ask.queue(use)


class WasThere(msgspec.Struct, frozen=True):
    """The result of a deletion."""

    was_there: bool
    """False if there was nothing to delete."""


@ROUTES.json("DELETE", QUEUE, "manage", Nothing, WasThere, tag="queues")
async def delete_queue(ask: RequestContext, _: Nothing) -> WasThere:
    """Delete a queue with all of its messages."""
    space, name = ask.params["space"], ask.params["queue"]
    return WasThere(await ask.desk.millrace.delete_queue(name, space=space))


class Purged(msgspec.Struct, frozen=True):
    """The end of a purge."""

    upto: Seq


@ROUTES.json("POST", f"{QUEUE}/purge", "manage", Nothing, Purged, tag="queues")
async def purge(ask: RequestContext, _: Nothing) -> Purged:
    """Remove all present messages, including leased ones."""
    return Purged(seq_out(await ask.queue(lambda queue: queue.purge())))


class RewindAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new start for workers."""

    start: int | str
    """`beginning`, `end`, the first seq to deliver, or a time in ISO 8601."""


class Rewound(msgspec.Struct, frozen=True):
    """The new first seq for workers."""

    first: Seq


@ROUTES.json("POST", f"{QUEUE}/rewind", "manage", RewindAsk, Rewound, tag="queues")
async def rewind(ask: RequestContext, params: RewindAsk) -> Rewound:
    """Rewind a log queue, so that its messages are delivered to workers again."""
    start = start_in(params.start)
    return Rewound(seq_out(await ask.queue(lambda queue: queue.rewind(start))))
