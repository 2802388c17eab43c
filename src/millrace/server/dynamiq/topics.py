"""Topics: what is published reaches every queue that is subscribed at that moment.

A subscription is called as its queue is. One that was made under another name, elsewhere, is ended
by the name of its queue all the same, and is not made a second time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from millrace import limits
from millrace.client.millrace import engine_of
from millrace.client.topic import Fate, Subscription, Topic, engine_and_topic
from millrace.core import check
from millrace.core.message_id import id_of
from millrace.core.model import CATALOG
from millrace.core.topic_commands import CreateTopic, TopicRef
from millrace.errors import Exists, Invalid, NotFound
from millrace.server.dynamiq.queues import Deleted
from millrace.server.dynamiq.table import ROUTES, SPACE, TOPIC, check_kind, refuse_query
from millrace.server.http.response import Response
from millrace.server.rest.route import Ask, Nothing, encode

SUBSCRIPTION = f"{TOPIC}/queues/{{subscription}}"


class TopicsOut(msgspec.Struct, frozen=True):
    """The topics that the caller may do anything with."""

    topics: list[str]


class TopicOut(msgspec.Struct, frozen=True, rename="pascal"):
    """The queues that a topic reaches."""

    queues: list[str]


@ROUTES.json("GET", "/v1/topics", "known", Nothing, TopicsOut)
async def list_topics(ask: Ask, _: Nothing) -> TopicsOut:
    """The topics, in order."""
    found = await ask.desk.millrace.topics(space=SPACE)
    return TopicsOut([name for name in found if ask.sees(name)])


@ROUTES.raw("PUT", TOPIC, "manage", status=201)
async def make_topic(ask: Ask) -> Response:
    """Make a topic."""
    refuse_query(ask)
    name = check.topic(ask.params["topic"])
    engine = engine_of(ask.desk.millrace)
    made = await engine.ask(CATALOG, CreateTopic(SPACE, name), TopicRef)
    if not made.made:
        raise Exists(f"topic {name!r} is there already", field="topic")
    return Response(201, encode(TopicOut([])))


@ROUTES.json("GET", TOPIC, "read", Nothing, TopicOut)
async def describe_topic(ask: Ask, _: Nothing) -> TopicOut:
    """The queues that are subscribed to a topic, in the order in which they were."""
    return await ask.topic(lambda topic: _out(ask, topic))


async def _out(ask: Ask, topic: Topic) -> TopicOut:
    return _names(ask, await topic.subscriptions())


def _names(ask: Ask, found: list[Subscription]) -> TopicOut:
    told = (_name(one.queue) for one in found if _is_told(ask, one.queue))
    return TopicOut(list(dict.fromkeys(told)))


def _is_told(ask: Ask, place: str) -> bool:
    """Whether a caller hears of a queue, given as space/name: of another space only of those that
    they may do something with."""
    return place.startswith(f"{SPACE}/") or ask.sees(place)


def _name(place: str) -> str:
    """What a queue is called here, by its space and name."""
    return place.removeprefix(f"{SPACE}/")


@ROUTES.json("DELETE", TOPIC, "manage", Nothing, Deleted)
async def delete_topic(ask: Ask, _: Nothing) -> Deleted:
    """End a topic at once, with what was not forwarded."""
    name = ask.params["topic"]
    if not await ask.desk.millrace.delete_topic(name, space=SPACE):
        raise NotFound(f"there is no topic {name!r}", field="topic")
    return Deleted()


# --- Subscriptions ------------------------------------------------------------------------------


@ROUTES.raw("PUT", SUBSCRIPTION, "manage")
async def subscribe(ask: Ask) -> Response:
    """Have what is published from now on forwarded to a queue, which the caller may publish to."""
    refuse_query(ask)
    name = ask.params["subscription"]
    ask.check("publish", SPACE, name)

    async def use(topic: Topic) -> TopicOut:
        queue = await ask.desk.millrace.find(name, space=SPACE)
        check_kind(queue)
        known = await topic.subscriptions()
        if any(_name(one.queue) == name for one in known):
            return _names(ask, known)
        await topic.subscribe(queue)
        return await _out(ask, topic)

    try:
        return Response(200, encode(await ask.topic(use)))
    except NotFound as error:
        found = error if error.near is None or ask.sees(error.near) else error.without_hint()
        raise Invalid(f"{found.message}; make it first", field=error.field) from error


@ROUTES.json("DELETE", SUBSCRIPTION, "manage", Nothing, TopicOut)
async def unsubscribe(ask: Ask, _: Nothing) -> TopicOut:
    """End a subscription, if there is one; what was not forwarded yet is not forwarded any more."""
    name = ask.params["subscription"]

    async def use(topic: Topic) -> TopicOut:
        for one in await topic.subscriptions():
            if _name(one.queue) == name:
                await topic.unsubscribe(one.name)
        return await _out(ask, topic)

    return await ask.topic(use)


# --- Publish ------------------------------------------------------------------------------------


@ROUTES.raw("PUT", f"{TOPIC}/message", "publish")
async def publish_to_topic(ask: Ask) -> Response:
    """Publish the body to every queue that is subscribed now; answered with its ids there.

    A queue that cannot take it yet gets it later: until then its id is empty. So is that of a queue
    whose messages these routes do not know by ids.
    """
    refuse_query(ask)
    body = bytes(ask.request.body)

    async def use(topic: Topic) -> tuple[Topic, int | None]:
        return topic, (await topic.publish(body)).seq

    topic, seq = await ask.topic(use)
    return Response(200, encode({} if seq is None else await _ids(ask, topic, seq)))


async def _ids(ask: Ask, topic: Topic, seq: int) -> dict[str, str]:
    """The ids of a message in the queues of a topic, by their names."""
    engine, shard = engine_and_topic(topic)
    targets = {one.name: one.target for one in (await engine.subscriptions(shard)).values()}

    async def in_time() -> dict[str, Fate] | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.ARRIVAL_SECONDS_MAX):
                found = await engine.arrived(shard, seq, 1)
                return {name: fates[0] for name, fates in found.items()}
        return None

    fates = await ask.until(in_time)
    if fates is None:
        return {_name(target): "" for target in targets.values() if _is_told(ask, target)}
    out: dict[str, str] = {}
    for name, fate in fates.items():
        is_there = fate not in ("filtered", "gone") and name in targets
        if is_there and _is_told(ask, targets[name]):
            out[_name(targets[name])] = await _id(ask, targets[name], fate)
    return out


async def _id(ask: Ask, target: str, fate: Fate) -> str:
    """The id of a message in a queue, by what became of it.

    Empty if it is not known, or if it is none by which these routes know the message: in a queue
    without partitions, or of another space.
    """
    space, _, name = target.partition("/")
    if isinstance(fate, str) or space != SPACE:
        return ""
    try:
        queue = await ask.desk.millrace.find(name, space=space)
    except NotFound:
        return ""
    return str(id_of(queue.shards.key, fate)) if queue.shards.key else ""
