"""Topics: a message reaches every queue that is subscribed when it is published.

A subscription has its queue's name. One that another API made under a different name is also
deleted by the name of its queue, and is not made a second time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from millrace import limits
from millrace.client.millrace import engine_of
from millrace.client.topic import Fate, Subscription, Topic, engine_and_topic
from millrace.core import validate
from millrace.core.format.message_id import id_of
from millrace.core.model import CATALOG
from millrace.core.topic_commands import CreateTopic, TopicRef
from millrace.errors import Exists, Invalid, NotFound
from millrace.server.dynamiq.queues import DeleteConfirmation
from millrace.server.dynamiq.route_table import (
    ROUTES,
    SPACE,
    TOPIC,
    check_kind,
    refuse_query,
)
from millrace.server.http.response import Response
from millrace.server.web.route import Nothing, RequestContext, encode

SUBSCRIPTION = f"{TOPIC}/queues/{{subscription}}"


class TopicsOut(msgspec.Struct, frozen=True):
    """The topics on which the caller has any right."""

    topics: list[str]


class DynamiqTopic(msgspec.Struct, frozen=True, rename="pascal"):
    """The queues that are subscribed to a topic."""

    queues: list[str]


@ROUTES.json("GET", "/v1/topics", "known", Nothing, TopicsOut)
async def list_topics(ask: RequestContext, _: Nothing) -> TopicsOut:
    """List the topics by name."""
    found = await ask.desk.millrace.topics(space=SPACE)
    return TopicsOut([name for name in found if ask.sees(name)])


@ROUTES.raw("PUT", TOPIC, "manage", status=201)
async def make_topic(ask: RequestContext) -> Response:
    """Create a topic."""
    refuse_query(ask)
    name = validate.topic(ask.params["topic"])
    engine = engine_of(ask.desk.millrace)
    made = await engine.ask(CATALOG, CreateTopic(SPACE, name), TopicRef)
    if not made.made:
        raise Exists(f"topic {name!r} is there already", field="topic")
    return Response(201, encode(DynamiqTopic([])))


@ROUTES.json("GET", TOPIC, "read", Nothing, DynamiqTopic)
async def describe_topic(ask: RequestContext, _: Nothing) -> DynamiqTopic:
    """List the queues that are subscribed to a topic, in the order of their subscription."""
    return await ask.topic(lambda topic: _out(ask, topic))


async def _out(ask: RequestContext, topic: Topic) -> DynamiqTopic:
    return _names(ask, await topic.subscriptions())


def _names(ask: RequestContext, found: list[Subscription]) -> DynamiqTopic:
    names = (_name(one.queue) for one in found if _is_told(ask, one.queue))
    return DynamiqTopic(list(dict.fromkeys(names)))


def _is_told(ask: RequestContext, place: str) -> bool:
    """Return True if the caller may see a queue, given as space/name: in another space only if the
    caller has any right on it.
    """
    return place.startswith(f"{SPACE}/") or ask.sees(place)


def _name(place: str) -> str:
    """Return a queue's name in this API from its space and name."""
    return place.removeprefix(f"{SPACE}/")


@ROUTES.json("DELETE", TOPIC, "manage", Nothing, DeleteConfirmation)
async def delete_topic(ask: RequestContext, _: Nothing) -> DeleteConfirmation:
    """Delete a topic at once; messages that are not forwarded yet are lost."""
    name = ask.params["topic"]
    if not await ask.desk.millrace.delete_topic(name, space=SPACE):
        raise NotFound(f"there is no topic {name!r}", field="topic")
    return DeleteConfirmation()


# --- Subscriptions ------------------------------------------------------------------------------


@ROUTES.raw("PUT", SUBSCRIPTION, "manage")
async def subscribe(ask: RequestContext) -> Response:
    """Forward messages published from now on to a queue, on which the caller needs `publish`."""
    refuse_query(ask)
    name = ask.params["subscription"]
    ask.check("publish", SPACE, name)

    async def use(topic: Topic) -> DynamiqTopic:
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


@ROUTES.json("DELETE", SUBSCRIPTION, "manage", Nothing, DynamiqTopic)
async def unsubscribe(ask: RequestContext, _: Nothing) -> DynamiqTopic:
    """Delete a subscription if it exists; messages that are not forwarded yet are not forwarded."""
    name = ask.params["subscription"]

    async def use(topic: Topic) -> DynamiqTopic:
        for one in await topic.subscriptions():
            if _name(one.queue) == name:
                await topic.unsubscribe(one.name)
        return await _out(ask, topic)

    return await ask.topic(use)


# --- Publish ------------------------------------------------------------------------------------


@ROUTES.raw("PUT", f"{TOPIC}/message", "publish")
async def publish_to_topic(ask: RequestContext) -> Response:
    """Publish the body to every queue subscribed now; the response has its id in each queue.

    The id is empty for a queue that cannot take the message yet and gets it later, and for a queue
    whose messages have no ids in this API.
    """
    refuse_query(ask)
    body = bytes(ask.request.body)

    async def use(topic: Topic) -> tuple[Topic, int | None]:
        return topic, (await topic.publish(body)).seq

    topic, seq = await ask.topic(use)
    return Response(200, encode({} if seq is None else await _ids(ask, topic, seq)))


async def _ids(ask: RequestContext, topic: Topic, seq: int) -> dict[str, str]:
    """Return the ids of a topic's message by queue."""
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


async def _id(ask: RequestContext, target: str, fate: Fate) -> str:
    """Return the id of a message in a queue from its fate there.

    Empty if it is not known yet, or if this API has no id for the message: the queue has no
    partitions or is in another space.
    """
    space, _, name = target.partition("/")
    if isinstance(fate, str) or space != SPACE:
        return ""
    try:
        queue = await ask.desk.millrace.find(name, space=space)
    except NotFound:
        return ""
    return str(id_of(queue.shards.key, fate)) if queue.shards.key else ""
