"""Topics: a message reaches every queue that is subscribed when it is published."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from millrace import limits
from millrace.client.message import Message, Rows
from millrace.client.redrive import target_of
from millrace.client.topic import Subscription, Topic, TopicState, engine_and_topic
from millrace.decoding import json_decoder
from millrace.errors import Invalid, NotFound
from millrace.server.http.response import Response
from millrace.server.rest.publish import (
    BULK,
    BYTES,
    PublishAsk,
    Published,
    PublishQuery,
    many_in,
    published,
    rows_in,
)
from millrace.server.rest.queues import Names, WasThere, patch_hinted
from millrace.server.rest.route_table import ROUTES, SPACE, TOPIC
from millrace.server.rest.settings import notes_in, notes_out
from millrace.server.web.message import Seq, message_in, seq_out
from millrace.server.web.route import (
    JSON,
    Nothing,
    RequestContext,
    decode,
    encode,
    read_query,
)

Wait = Annotated[float, msgspec.Meta(ge=0, le=limits.LEASE_WAIT_MS_MAX / 1000)]


@ROUTES.json("GET", f"{SPACE}/topics", "known", Nothing, Names, tag="topics")
async def list_topics(ask: RequestContext, _: Nothing) -> Names:
    """List the topics of a space."""
    found = await ask.desk.millrace.topics(space=ask.params["space"])
    return Names([name for name in found if ask.sees(name)])


class TopicAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a topic."""

    max_lag: int | None = None
    """The maximum number of messages that the slowest subscription may lag behind; publishes beyond
    it are refused.
    """
    notes: dict[str, str] | None = None
    """Short texts by name, stored with the topic."""


class SubscriptionOut(msgspec.Struct, frozen=True):
    """A subscription of a queue to a topic, with its progress."""

    name: str
    queue: str
    """As space/name."""
    filter: msgspec.Raw
    forwarded: int
    """Number of messages that were forwarded to the queue."""
    filtered: int
    """Number of messages that the filter rejected."""
    lag: int
    """Number of messages that are still to be forwarded."""
    lag_seconds: float
    """Age of the oldest of them, in seconds."""
    trouble: str
    """The reason why the queue refused the latest messages; empty if it accepted them."""
    notes: dict[str, str]
    dead_lettered: int = 0
    """Number of messages that became dead letters, because the queue was gone or they were too
    large.
    """
    dropped: int = 0
    """Number of messages that were dropped for these reasons, because there was no dead-letter
    queue.
    """


class TopicOut(msgspec.Struct, frozen=True):
    """A topic with its present state."""

    space: str
    name: str
    published: int
    lag: int
    """Number of messages that the slowest subscription lags behind."""
    max_lag: int
    subscriptions: list[SubscriptionOut]
    notes: dict[str, str]


def _subscription_out(one: Subscription) -> SubscriptionOut:
    return SubscriptionOut(
        one.name,
        one.queue,
        msgspec.Raw(encode(one.filter)),
        one.forwarded,
        one.filtered,
        one.lag,
        one.lag_seconds,
        one.trouble,
        notes_out(one.notes),
        one.dead_lettered,
        one.dropped,
    )


def _out(state: TopicState) -> TopicOut:
    found = [_subscription_out(one) for one in state.subscriptions]
    return TopicOut(
        state.space,
        state.name,
        state.published,
        state.lag,
        state.max_lag,
        found,
        notes_out(state.notes),
    )


@ROUTES.json("PUT", TOPIC, "manage", TopicAsk, TopicOut, tag="topics", also_status=(201,))
async def make_topic(ask: RequestContext, params: TopicAsk) -> Response:
    """Create a topic, or check that the existing one has these settings; 201 if it was created."""
    space, name = ask.params["space"], ask.params["topic"]
    millrace = ask.desk.millrace
    was_there = False
    with suppress(NotFound):
        await millrace.find_topic(name, space=space)
        was_there = True
    with patch_hinted():
        topic = await millrace.topic(
            name, space=space, max_lag=params.max_lag, notes=notes_in(params.notes)
        )
    return Response(200 if was_there else 201, encode(_out(await topic.describe())))


@ROUTES.json("GET", TOPIC, "read", Nothing, TopicOut, tag="topics")
async def describe_topic(ask: RequestContext, _: Nothing) -> TopicOut:
    """Return a topic and its subscriptions with their progress."""
    return _out(await ask.topic(lambda topic: topic.describe()))


class TopicChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings to change; omitted and null settings keep their values."""

    max_lag: int | None = None
    """The maximum number of messages that the slowest subscription may lag behind; publishes beyond
    it are refused.
    """
    notes: dict[str, str] | None = None
    """Named notes are replaced, those with an empty text are removed, and others stay."""


@ROUTES.json("PATCH", TOPIC, "manage", TopicChange, TopicOut, tag="topics")
async def configure_topic(ask: RequestContext, params: TopicChange) -> TopicOut:
    """Change a topic's maximum lag or its notes."""

    async def use(topic: Topic) -> TopicOut:
        await topic.configure(max_lag=params.max_lag, notes=notes_in(params.notes))
        ask.desk.changed(topic.space, topic.name)
        return _out(await topic.describe())

    return await ask.topic(use)


@ROUTES.json("DELETE", TOPIC, "manage", Nothing, WasThere, tag="topics")
async def delete_topic(ask: RequestContext, _: Nothing) -> WasThere:
    """Delete a topic at once; messages that are not forwarded yet are lost."""
    space, name = ask.params["space"], ask.params["topic"]
    return WasThere(await ask.desk.millrace.delete_topic(name, space=space))


# --- Publish ------------------------------------------------------------------------------------


class TopicPublishAsk(PublishAsk, frozen=True, forbid_unknown_fields=True):
    """One message, or several under `messages`, which are published atomically."""

    wait: Wait = 0
    """Seconds to wait until every queue has the messages."""


class _TopicPublishRead(TopicPublishAsk, frozen=True, forbid_unknown_fields=True):
    """The request as it is decoded: `messages_in` decodes the messages one by one."""

    messages: list[msgspec.Raw] | UnsetType = UNSET  # type: ignore[assignment]


class TopicPublishQuery(PublishQuery, frozen=True, forbid_unknown_fields=True):
    """The attributes of messages whose body is not JSON."""

    wait: Wait = 0


class TopicPublished(Published, frozen=True, omit_defaults=True, kw_only=True):
    """The seqs of published messages, and their seqs in the queues."""

    queues: dict[str, list[Seq]] | None = None
    """Present if `wait` was given and sufficed: for each subscription, the seqs of the messages in
    its queue, or "filtered", "forwarded" (the seq is no longer remembered), "later" or "gone".
    """


_decoder = json_decoder(_TopicPublishRead)


@ROUTES.raw(
    "POST",
    f"{TOPIC}/messages",
    "publish",
    takes=TopicPublishAsk,
    gives=TopicPublished,
    also_takes=BULK,
    status=201,
    tag="topics",
    query=TopicPublishQuery,
)
async def publish_to_topic(ask: RequestContext) -> Response:
    """Publish to every queue subscribed now; the response is sent once messages are durable."""
    if ask.type in (JSON, "") and not ask.request.query:
        params = decode(_decoder, ask.request.body)
        rows: Rows
        if params.messages is UNSET:
            rows = [message_in(params)]
        else:
            rows = await many_in(params, params.messages)
        return await _publish(ask, rows, params, params.wait)
    query = read_query(ask, TopicPublishQuery)
    if ask.type == BYTES:
        body = bytes(ask.request.body)
        one = Message(body, query.key, dedup=query.dedup, group=query.group)
        return await _publish(ask, [one], query, query.wait)
    return await _publish(ask, await rows_in(ask, query), query, query.wait)


async def _publish(
    ask: RequestContext, rows: Rows, params: PublishAsk | PublishQuery, wait: float
) -> Response:
    is_query = isinstance(params, PublishQuery)

    async def use(topic: Topic) -> tuple[Topic, Sequence[int]]:
        sent = await topic.publish_many(
            rows,
            priority=params.priority if is_query else None,
            delay=params.delay if is_query else None,
            ttl=params.ttl if is_query else None,
            producer=params.producer,
            number=params.number,
            mode=params.mode,
            after=params.after,
        )
        return topic, sent.seqs

    topic, seqs = await ask.topic(use)
    made = published(seqs, len(rows))
    queues = await _arrived(ask, topic, seqs, wait) if wait and seqs else None
    return Response(201, encode(TopicPublished(made.count, made.seq, made.seqs, queues=queues)))


async def _arrived(
    ask: RequestContext, topic: Topic, seqs: Sequence[int], wait: float
) -> dict[str, list[Seq]] | None:
    """Return the fate of the messages in each queue, or None if it is not known in time."""
    engine, shard = engine_and_topic(topic)
    runs = [(seqs[0], len(seqs))] if isinstance(seqs, range) else [(seq, 1) for seq in seqs]

    async def use() -> dict[str, list[Seq]]:
        found: dict[str, list[Seq]] = {}
        for first, count in runs:
            for name, fates in (await engine.arrived(shard, first, count)).items():
                found.setdefault(name, []).extend(
                    fate if isinstance(fate, str) else seq_out(fate) for fate in fates
                )
        return found

    async def in_time() -> dict[str, list[Seq]] | None:
        with suppress(TimeoutError):
            return await asyncio.wait_for(use(), wait)
        return None

    return await ask.until(in_time)


# --- Subscriptions ------------------------------------------------------------------------------


class SubscribeAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The queue and filter of a subscription."""

    queue: str
    """The queue, as name or space/name. The subscription ends with it."""
    filter: dict[str, msgspec.Raw] = {}
    """Conditions on headers by name: a text, a number, true, false or null, {"prefix": …},
    {"suffix": …}, {"equals-ignore-case": …}, {"wildcard": "a*b"}, {"numeric": [">=", 5, "<", 10]},
    {"cidr": "10.0.0.0/8"}, {"exists": true}, {"anything-but": […]}, or a list of these, of which
    one must hold. "$body" has conditions on the fields of a JSON body, as lists of such tests or
    nested by field; of the objects in a list under "$or" one must match.
    """
    notes: dict[str, str] | None = None
    """Short texts by name, stored with the subscription."""


class Subscribed(msgspec.Struct, frozen=True):
    """The result of a subscription."""

    made: bool
    """False if the same subscription existed already."""


@ROUTES.json(
    "PUT",
    f"{TOPIC}/subscriptions/{{subscription}}",
    "manage",
    SubscribeAsk,
    Subscribed,
    tag="topics",
)
async def subscribe(ask: RequestContext, params: SubscribeAsk) -> Subscribed:
    """Forward messages published from now on to a queue, on which the caller needs `publish`."""
    space, name = target_of(ask.params["space"], params.queue)
    ask.check("publish", space, name)
    filters, called = _filter_in(params.filter), ask.params["subscription"]
    queue = await ask.desk.millrace.find(name, space=space)

    async def use(topic: Topic) -> bool:
        return await topic.subscribe(
            queue, filter=filters, name=called, notes=notes_in(params.notes)
        )

    return Subscribed(await ask.topic(use))


class SubscriptionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings to change; omitted and null settings keep their values."""

    filter: dict[str, msgspec.Raw] | None = None
    """The new filter, also for messages that are not forwarded yet; empty: everything matches."""
    notes: dict[str, str] | None = None
    """Named notes are replaced, those with an empty text are removed, and others stay."""


@ROUTES.json(
    "PATCH",
    f"{TOPIC}/subscriptions/{{subscription}}",
    "manage",
    SubscriptionChange,
    SubscriptionOut,
    tag="topics",
)
async def configure_subscription(
    ask: RequestContext, params: SubscriptionChange
) -> SubscriptionOut:
    """Change the filter or the notes of a subscription; nothing is lost or forwarded twice."""
    filters = None if params.filter is None else _filter_in(params.filter)
    name = ask.params["subscription"]

    async def use(topic: Topic) -> SubscriptionOut:
        await topic.configure_subscription(name, filter=filters, notes=notes_in(params.notes))
        for one in await topic.subscriptions():
            if one.name == name:
                return _subscription_out(one)
        raise NotFound(f"subscription {name!r} has ended", field="name")

    return await ask.topic(use)


def _filter_in(params: dict[str, msgspec.Raw]) -> dict[str, object]:
    return {header: _test_in(test) for header, test in params.items()}


def _test_in(test: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(test)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # The tests are raw JSON that is not validated yet, and may not even be UTF-8.
        raise Invalid(f"a test of a filter is no JSON: {error}", field="filter") from error


class Subscriptions(msgspec.Struct, frozen=True):
    """The subscriptions of a topic, oldest first."""

    subscriptions: list[SubscriptionOut]


@ROUTES.json("GET", f"{TOPIC}/subscriptions", "read", Nothing, Subscriptions, tag="topics")
async def list_subscriptions(ask: RequestContext, _: Nothing) -> Subscriptions:
    """List the subscriptions of a topic with their progress."""
    found = await ask.topic(lambda topic: topic.subscriptions())
    return Subscriptions([_subscription_out(one) for one in found])


@ROUTES.json(
    "DELETE", f"{TOPIC}/subscriptions/{{subscription}}", "manage", Nothing, WasThere, tag="topics"
)
async def unsubscribe(ask: RequestContext, _: Nothing) -> WasThere:
    """Delete a subscription; messages that are not forwarded yet are not forwarded."""
    name = ask.params["subscription"]
    return WasThere(await ask.topic(lambda topic: topic.unsubscribe(name)))
