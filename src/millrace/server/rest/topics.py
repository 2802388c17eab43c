"""Topics: what is published reaches every queue that is subscribed at that moment."""

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
from millrace.server.rest.message import Seq, message_in, seq_out
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
from millrace.server.rest.route import JSON, Ask, Nothing, decode, encode, read_query
from millrace.server.rest.settings import notes_in, notes_out
from millrace.server.rest.table import ROUTES, SPACE, TOPIC

Wait = Annotated[float, msgspec.Meta(ge=0, le=limits.LEASE_WAIT_MS_MAX / 1000)]


@ROUTES.json("GET", f"{SPACE}/topics", "known", Nothing, Names, tag="topics")
async def list_topics(ask: Ask, _: Nothing) -> Names:
    """The topics of a space."""
    found = await ask.desk.millrace.topics(space=ask.params["space"])
    return Names([name for name in found if ask.sees(name)])


class TopicAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a topic is to be like."""

    max_lag: int | None = None
    """So many messages wait for the slowest subscription at most; then publishes are refused."""
    notes: dict[str, str] | None = None
    """Small texts by their names, kept with the topic."""


class SubscriptionOut(msgspec.Struct, frozen=True):
    """What a topic forwards to a queue, and how far it has come."""

    name: str
    queue: str
    """As space/name."""
    filter: msgspec.Raw
    forwarded: int
    """Messages that are in the queue."""
    filtered: int
    """Messages that did not pass the filter."""
    lag: int
    """Messages that are still to be forwarded."""
    lag_seconds: float
    """For how long the oldest of them has waited."""
    trouble: str
    """Why the queue did not take the last ones; empty if it did."""
    notes: dict[str, str]
    dead_lettered: int = 0
    """Messages that are dead letters, because there was no queue, or they were too large for it."""
    dropped: int = 0
    """Messages that were dropped then, because there was no queue of dead letters."""


class TopicOut(msgspec.Struct, frozen=True):
    """A topic as it is now."""

    space: str
    name: str
    published: int
    lag: int
    """Messages that wait for the slowest subscription."""
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
async def make_topic(ask: Ask, told: TopicAsk) -> Response:
    """Make a topic, or see that the one that is there is like this; 201 if it was made."""
    space, name = ask.params["space"], ask.params["topic"]
    millrace = ask.desk.millrace
    was_there = False
    with suppress(NotFound):
        await millrace.find_topic(name, space=space)
        was_there = True
    with patch_hinted():
        topic = await millrace.topic(
            name, space=space, max_lag=told.max_lag, notes=notes_in(told.notes)
        )
    return Response(200 if was_there else 201, encode(_out(await topic.describe())))


@ROUTES.json("GET", TOPIC, "read", Nothing, TopicOut, tag="topics")
async def describe_topic(ask: Ask, _: Nothing) -> TopicOut:
    """A topic, its subscriptions, and how far each has come."""
    return _out(await ask.topic(lambda topic: topic.describe()))


class TopicChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed; null says nothing, nor what is left out."""

    max_lag: int | None = None
    """So many messages wait for the slowest subscription at most; then publishes are refused."""
    notes: dict[str, str] | None = None
    """Those that are named are put, one with an empty text goes, and the others stay."""


@ROUTES.json("PATCH", TOPIC, "manage", TopicChange, TopicOut, tag="topics")
async def configure_topic(ask: Ask, told: TopicChange) -> TopicOut:
    """Change how many messages may wait for the slowest subscription, or the notes."""

    async def use(topic: Topic) -> TopicOut:
        await topic.configure(max_lag=told.max_lag, notes=notes_in(told.notes))
        ask.desk.changed(topic.space, topic.name)
        return _out(await topic.describe())

    return await ask.topic(use)


@ROUTES.json("DELETE", TOPIC, "manage", Nothing, WasThere, tag="topics")
async def delete_topic(ask: Ask, _: Nothing) -> WasThere:
    """End a topic at once, with what was not forwarded."""
    space, name = ask.params["space"], ask.params["topic"]
    return WasThere(await ask.desk.millrace.delete_topic(name, space=space))


# --- Publish ------------------------------------------------------------------------------------


class TopicPublishAsk(PublishAsk, frozen=True, forbid_unknown_fields=True):
    """One message, or several under `messages`, which are published all or nothing."""

    wait: Wait = 0
    """Answer when every queue has them, or after so many seconds."""


class _TopicPublishRead(TopicPublishAsk, frozen=True, forbid_unknown_fields=True):
    """The same as it is decoded: several messages one by one, by `messages_in`."""

    messages: list[msgspec.Raw] | UnsetType = UNSET  # type: ignore[assignment]


class TopicPublishQuery(PublishQuery, frozen=True, forbid_unknown_fields=True):
    """Of messages that are not JSON: what their body does not say."""

    wait: Wait = 0


class TopicPublished(Published, frozen=True, omit_defaults=True, kw_only=True):
    """Where the messages are."""

    queues: dict[str, list[Seq]] | None = None
    """Of those who wait: for each subscription the seqs of the messages in its queue; or
    "filtered", "forwarded" (where is not known any more), "later" or "gone". Null: nobody waited,
    or not long enough."""


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
async def publish_to_topic(ask: Ask) -> Response:
    """Publish to every queue that is subscribed now; answered when nothing can lose it any more."""
    if ask.type in (JSON, "") and not ask.request.query:
        told = decode(_decoder, ask.request.body)
        rows: Rows
        if told.messages is UNSET:
            rows = [message_in(told)]
        else:
            rows = await many_in(told, told.messages)
        return await _publish(ask, rows, told, told.wait)
    query = read_query(ask, TopicPublishQuery)
    if ask.type == BYTES:
        body = bytes(ask.request.body)
        one = Message(body, query.key, dedup=query.dedup, group=query.group)
        return await _publish(ask, [one], query, query.wait)
    return await _publish(ask, await rows_in(ask, query), query, query.wait)


async def _publish(ask: Ask, rows: Rows, told: PublishAsk | PublishQuery, wait: float) -> Response:
    is_query = isinstance(told, PublishQuery)

    async def use(topic: Topic) -> tuple[Topic, Sequence[int]]:
        sent = await topic.publish_many(
            rows,
            priority=told.priority if is_query else None,
            delay=told.delay if is_query else None,
            ttl=told.ttl if is_query else None,
            producer=told.producer,
            number=told.number,
            mode=told.mode,
            after=told.after,
        )
        return topic, sent.seqs

    topic, seqs = await ask.topic(use)
    made = published(seqs, len(rows))
    queues = await _arrived(ask, topic, seqs, wait) if wait and seqs else None
    return Response(201, encode(TopicPublished(made.count, made.seq, made.seqs, queues=queues)))


async def _arrived(
    ask: Ask, topic: Topic, seqs: Sequence[int], wait: float
) -> dict[str, list[Seq]] | None:
    """What became of the messages in each queue, if that is known in time."""
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
    """What is forwarded where."""

    queue: str
    """As name or space/name. The subscription ends with it."""
    filter: dict[str, msgspec.Raw] = {}
    """Headers, and what their values may be: a text, a number, true, false or null,
    {"prefix": …}, {"suffix": …}, {"equals-ignore-case": …}, {"wildcard": "a*b"},
    {"numeric": [">=", 5, "<", 10]}, {"cidr": "10.0.0.0/8"}, {"exists": true},
    {"anything-but": […]}, or a list of these, of which one must hold. "$body" has fields of a body
    of JSON with lists of such tests, or with the fields within; of the objects in a list under
    "$or" one must pass."""
    notes: dict[str, str] | None = None
    """Small texts by their names, kept with the subscription."""


class Subscribed(msgspec.Struct, frozen=True):
    """From now on it is so."""

    made: bool
    """False: it was so already."""


@ROUTES.json(
    "PUT",
    f"{TOPIC}/subscriptions/{{subscription}}",
    "manage",
    SubscribeAsk,
    Subscribed,
    tag="topics",
)
async def subscribe(ask: Ask, told: SubscribeAsk) -> Subscribed:
    """Have what is published from now on forwarded to a queue, which the caller may publish to."""
    space, name = target_of(ask.params["space"], told.queue)
    ask.check("publish", space, name)
    filters, called = _filter_in(told.filter), ask.params["subscription"]
    queue = await ask.desk.millrace.find(name, space=space)

    async def use(topic: Topic) -> bool:
        return await topic.subscribe(queue, filter=filters, name=called, notes=notes_in(told.notes))

    return Subscribed(await ask.topic(use))


class SubscriptionChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed; null says nothing, nor what is left out."""

    filter: dict[str, msgspec.Raw] | None = None
    """What was not forwarded before passes this one, or does not; empty: everything does."""
    notes: dict[str, str] | None = None
    """Those that are named are put, one with an empty text goes, and the others stay."""


@ROUTES.json(
    "PATCH",
    f"{TOPIC}/subscriptions/{{subscription}}",
    "manage",
    SubscriptionChange,
    SubscriptionOut,
    tag="topics",
)
async def configure_subscription(ask: Ask, told: SubscriptionChange) -> SubscriptionOut:
    """Change the filter or the notes of a subscription; nothing is lost or forwarded twice."""
    filters = None if told.filter is None else _filter_in(told.filter)
    name = ask.params["subscription"]

    async def use(topic: Topic) -> SubscriptionOut:
        await topic.configure_subscription(name, filter=filters, notes=notes_in(told.notes))
        for one in await topic.subscriptions():
            if one.name == name:
                return _subscription_out(one)
        raise NotFound(f"subscription {name!r} has ended", field="name")

    return await ask.topic(use)


def _filter_in(told: dict[str, msgspec.Raw]) -> dict[str, object]:
    return {header: _test_in(test) for header, test in told.items()}


def _test_in(test: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(test)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # What is not looked into yet may be no text.
        raise Invalid(f"a test of a filter is no JSON: {error}", field="filter") from error


class Subscriptions(msgspec.Struct, frozen=True):
    """The subscriptions of a topic, oldest first."""

    subscriptions: list[SubscriptionOut]


@ROUTES.json("GET", f"{TOPIC}/subscriptions", "read", Nothing, Subscriptions, tag="topics")
async def list_subscriptions(ask: Ask, _: Nothing) -> Subscriptions:
    """The subscriptions of a topic, and how far each has come."""
    found = await ask.topic(lambda topic: topic.subscriptions())
    return Subscriptions([_subscription_out(one) for one in found])


@ROUTES.json(
    "DELETE", f"{TOPIC}/subscriptions/{{subscription}}", "manage", Nothing, WasThere, tag="topics"
)
async def unsubscribe(ask: Ask, _: Nothing) -> WasThere:
    """End a subscription; what was not forwarded yet is not forwarded any more."""
    name = ask.params["subscription"]
    return WasThere(await ask.topic(lambda topic: topic.unsubscribe(name)))
