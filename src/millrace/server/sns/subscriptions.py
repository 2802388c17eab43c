"""The SNS actions that create, list, configure and delete subscriptions.

A subscription of a queue is a subscription of the core, from the topic to the queue. It is durable:
it may be created before its queue, and outlives a queue that is deleted. A subscription of an HTTP
endpoint leads to a hidden queue of its own, from which `EndpointDelivery` sends; until the endpoint
confirms it, its filter matches nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from millrace import limits
from millrace.client.queue import Queue, configure_notes
from millrace.client.settings import QueueSettings
from millrace.client.topic import configure_durably, subscribe_durably
from millrace.core import validate
from millrace.core.cells import SubscriptionCell
from millrace.core.notes import NotesLimit
from millrace.core.topic_commands import ConfigureSubscription, Subscribe
from millrace.core.topics import filters
from millrace.errors import Exhausted, Invalid, NotFound, TooLarge
from millrace.server.auth.audit import Act, subscription_made
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.envelope_delivery import share_raw
from millrace.server.aws.names import arn_of, home_of, read_arn
from millrace.server.aws.queue_info import PREFIX
from millrace.server.aws.topic_headers import (
    BASE,
    ENDPOINT,
    GUEST,
    OWNER,
    PENDING,
    PRINCIPAL,
    PROTOCOL,
    RAW,
    SUBSCRIPTION,
    is_endpoint,
    protocol_of,
)
from millrace.server.clock import now_ms
from millrace.server.sns.endpoint import hidden_settings, make_hidden, see_endpoint, see_reach
from millrace.server.sns.faults import (
    invalid,
    no_subscription,
    no_topic,
    not_authorized,
    too_many_subscriptions,
)
from millrace.server.sns.filter_policy import NOTHING
from millrace.server.sns.resource_lookup import (
    LocatedSubscription,
    TopicLocation,
    find,
    look,
    page_of,
    place_at,
    subscription_at,
)
from millrace.server.sns.schemas import (
    ListByTopicIn,
    OfSubscription,
    SetSubscriptionAttributesIn,
    SnsAttributesOut,
    SnsListIn,
    SnsSubscriptionOut,
    SubscribeIn,
    SubscriptionsOut,
    SubscriptionSummary,
)
from millrace.server.sns.state import SNS, state_of
from millrace.server.sns.subscription_attributes import (
    DEFAULTS,
    DELIVERY,
    POLICY,
    RAW_DELIVERY,
    REDRIVE,
    filter_of,
    letters_of,
    queue_notes_of,
    render_attributes,
    see_attribute,
)
from millrace.server.sns.topic_attributes import see_json, see_large
from millrace.server.sns.topic_cache import TopicInfo

_PENDING = "PendingConfirmation"
_IN_SUBSCRIBE = "Attributes Reason: "


# --- Subscribe -----------------------------------------------------------------------------------


@SNS.action("Subscribe", SubscribeIn, SnsSubscriptionOut)
async def subscribe(call: AwsCall[SubscribeIn]) -> SnsSubscriptionOut:
    """Subscribe a queue or an endpoint to the messages published from now on."""
    asked = call.told
    place = place_at(call, asked.topic_arn, "manage")
    known = await look(call, place)
    see_endpoint(asked, place)
    await see_reach(call)
    for name, value in asked.attributes.items():
        see_attribute(name, value, place.arn, asked.endpoint, _IN_SUBSCRIBE)
    notes = _notes_in(asked.attributes)
    await _see_letters(call, notes, _IN_SUBSCRIBE)
    filter = filter_of(notes, _IN_SUBSCRIBE)
    if not filter:
        notes.pop(PREFIX + POLICY, None)
    cells = await known.subscriptions()
    for cell in cells:
        found = LocatedSubscription(place, known, cell)
        if _endpoint(call, found) == (asked.protocol, asked.endpoint):
            return await _again(call, found, notes)
    see_large(known.bytes_max, [asked.protocol, *map(protocol_of, cells)])
    notes |= {
        PROTOCOL: asked.protocol,
        ENDPOINT: asked.endpoint,
        OWNER: call.caller.home.account,
        PRINCIPAL: f"arn:aws:iam::{call.caller.home.account}:user/{call.caller.principal.name}",
        BASE: call.base,
    }
    name = str(uuid4())
    if asked.protocol == "sqs":
        await _to_queue(call, known, place, name, filter, notes)
        return SnsSubscriptionOut(f"{place.arn}:{name}")
    await _to_endpoint(call, known, place, name, notes)
    arn = f"{place.arn}:{name}" if asked.return_subscription_arn else "pending confirmation"
    return SnsSubscriptionOut(arn)


async def _see_letters(call: AwsCall[Any], notes: dict[str, str], before: str = "") -> None:
    """Verify that the dead-letter queue of a subscription exists and that the caller may publish to
    it.

    Raises:
        Fault: the queue does not exist, or the caller lacks the right.
    """
    policy = notes.get(PREFIX + REDRIVE, "")
    arn = read_arn(str(see_json(REDRIVE, policy).get("deadLetterTargetArn"))) if policy else None
    if arn is None:
        return
    space = call.aws.space(arn.home)
    if not call.may("publish", space, arn.name):
        raise not_authorized(call.caller.principal.name, call.action.name, "publish", policy)
    try:
        await state_of(call.aws).topics.desk.millrace.find(arn.name, space=space)
    except (NotFound, Invalid, TooLarge) as error:
        raise invalid(f"{before}RedrivePolicy: deadLetterTargetArn does not exist") from error


def _notes_in(attributes: dict[str, str]) -> dict[str, str]:
    notes = {PREFIX + name: value for name, value in attributes.items() if value}
    raw = notes.get(PREFIX + RAW_DELIVERY)
    if raw is not None:
        notes[PREFIX + RAW_DELIVERY] = raw.lower()
    return notes


def _endpoint(call: AwsCall[Any], found: LocatedSubscription) -> tuple[str, str]:
    """Return protocol and endpoint of a subscription; derived for one that another API created."""
    notes = found.notes
    if ENDPOINT in notes:
        return notes[PROTOCOL], notes[ENDPOINT]
    space, _, name = found.cell.target.partition("/")
    home = home_of(space, call.aws.usual)
    return "sqs", name if home is None else arn_of("sqs", home, name)


async def _again(
    call: AwsCall[SubscribeIn], found: LocatedSubscription, notes: dict[str, str]
) -> SnsSubscriptionOut:
    """Return the response to a repeated Subscribe of the same endpoint.

    A pending subscription is asked for confirmation again.

    Raises:
        Fault: the attributes differ from those of the subscription.
    """
    there = found.notes
    if any(there.get(name, DEFAULTS.get(name)) != value for name, value in notes.items()):
        raise invalid("Attributes Reason: Subscription already exists with different attributes")
    if PENDING in there:
        with suppress(NotFound):
            await found.known.topic.configure_subscription(
                found.cell.name, notes={PENDING: str(now_ms())}
            )
        state_of(call.aws).delivery.ask_endpoint(found.place.space, found.place.name, found.cell)
        if not call.told.return_subscription_arn:
            return SnsSubscriptionOut("pending confirmation")
    return SnsSubscriptionOut(found.arn)


async def _to_queue(
    call: AwsCall[SubscribeIn],
    known: TopicInfo,
    place: TopicLocation,
    name: str,
    filter: dict[str, object],
    notes: dict[str, str],
) -> None:
    arn = read_arn(call.told.endpoint)
    assert arn is not None
    space = call.aws.space(arn.home)
    if not call.may("publish", space, arn.name):
        who = call.caller.principal.name
        raise not_authorized(who, "Subscribe", "publish", call.told.endpoint)
    is_raw = notes.get(PREFIX + RAW_DELIVERY) == "true"
    if call.may("manage", space, arn.name):
        await _durably(call, known, place, name, filter, notes, (space, arn.name))
    else:
        await _as_guest(call, known, place, name, filter, notes, (space, arn.name))
    call.aws.directory.forget(space, arn.name)
    if is_raw:
        await share_raw(call, space, arn.name)


async def _durably(
    call: AwsCall[SubscribeIn],
    known: TopicInfo,
    place: TopicLocation,
    name: str,
    filter: dict[str, object],
    notes: dict[str, str],
    target: tuple[str, str],
) -> None:
    """Subscribe a queue that the caller may manage.

    The queue need not exist, and the subscription outlives it.
    """
    links = queue_notes_of(place.arn, name, notes)
    space, queue = target
    try:
        validate.name(queue, "queue")
    except (Invalid, TooLarge) as error:
        raise invalid(f"Endpoint Reason: {error.message}") from error
    try:
        command = Subscribe(
            name,
            space,
            queue,
            filters.text(filter),
            validate.notes(notes),
            durable=True,
            dead_letter=letters_of(notes, call.aws.usual),
            queue_notes=validate.notes(links),
        )
    except (Invalid, TooLarge) as error:
        raise invalid(f"Attributes Reason: {error.message}") from error

    async def subscribe() -> None:
        try:
            await subscribe_durably(known.topic, command)
        except NotFound as error:
            raise no_topic() from error

    async def link(queue: Queue) -> None:
        await queue.configure(notes=links)

    await _make(call, known, name, subscribe)
    with suppress(NotFound):
        # A queue that is created later gets these notes from the subscription.
        await state_of(call.aws).topics.desk.queue(*target, link)


async def _as_guest(
    call: AwsCall[SubscribeIn],
    known: TopicInfo,
    place: TopicLocation,
    name: str,
    filter: dict[str, object],
    notes: dict[str, str],
    target: tuple[str, str],
) -> None:
    """Subscribe a queue that the caller may publish to but not manage.

    A queue has a bounded number of such guest subscriptions, and they end with it: a new queue of
    the same name has only those of its managers.
    """
    links = queue_notes_of(place.arn, name, notes, GUEST)
    most = NotesLimit(f"{GUEST}{SUBSCRIPTION}", limits.SNS_GUEST_SUBSCRIPTIONS_MAX)

    async def make(queue: Queue) -> None:
        try:
            await configure_notes(queue, links, most)
        except TooLarge as error:
            raise too_many_subscriptions(
                f"the queue has {most.count} subscriptions of users who may not manage it"
            ) from error

        async def subscribe() -> None:
            await known.topic.subscribe(queue, filter=filter, name=name, notes=notes)

        try:
            await _make(call, known, name, subscribe)
        except BaseException:
            await queue.configure(notes=dict.fromkeys(links, ""))
            raise

    try:
        await state_of(call.aws).topics.desk.queue(*target, make)
    except NotFound as error:
        if error.field != "queue":
            raise no_topic() from error
        raise invalid(f"Endpoint Reason: there is no queue {call.told.endpoint}") from error


async def _to_endpoint(
    call: AwsCall[SubscribeIn],
    known: TopicInfo,
    place: TopicLocation,
    name: str,
    notes: dict[str, str],
) -> None:
    notes |= {PENDING: str(now_ms())}

    async def make(queue: Queue) -> None:
        async def subscribe() -> None:
            await known.topic.subscribe(queue, filter=NOTHING, name=name, notes=notes)

        await _make(call, known, name, subscribe)

    hidden = await make_hidden(state_of(call.aws).topics, known, name, notes, make)
    state_of(call.aws).delivery.take(place.space, hidden)
    for cell in await known.subscriptions():
        if cell.name == name:
            state_of(call.aws).delivery.ask_endpoint(place.space, place.name, cell)


async def _make(
    call: AwsCall[Any], known: TopicInfo, name: str, make: Callable[[], Awaitable[None]]
) -> None:
    """Create a subscription of this name, with audit entry and quota."""
    place = (known.topic.space, known.topic.name)
    cells = await known.subscriptions()
    is_there = any(cell.name == name for cell in cells)
    made = None if is_there else subscription_made(*place, name)
    act = Act(call.action.name, "/".join(place), makes=made)
    try:
        await call.ask.server.act(call.ask, act, make)
    except Exhausted as error:
        if error.field == "subscriptions":
            raise too_many_subscriptions(error.message) from error
        raise
    except (Invalid, TooLarge) as error:
        if isinstance(error, TooLarge) and error.field in ("name", "queue"):
            # The topic or the queue has reached its limit of subscriptions.
            raise too_many_subscriptions(error.message) from error
        raise invalid(f"Attributes Reason: {error.message}") from error


# --- End, list -----------------------------------------------------------------------------------


@SNS.action("Unsubscribe", OfSubscription)
async def unsubscribe(call: AwsCall[OfSubscription]) -> None:
    """Delete a subscription; if it does not exist, do nothing."""
    place, name = subscription_at(call, call.told.subscription_arn, "manage")
    try:
        known = await state_of(call.aws).topics.look(place.space, place.name)
    except NotFound:
        return
    cells = {cell.name: cell for cell in await known.subscriptions()}
    if name not in cells:
        return

    async def end() -> None:
        await known.topic.unsubscribe(name)

    ends = subscription_made(place.space, place.name, name)
    act = Act("Unsubscribe", f"{place.space}/{place.name}", ends=ends)
    await call.ask.server.act(call.ask, act, end)
    await remove_links(call, place.arn, cells[name])
    if is_endpoint(cells[name]) and PENDING not in dict(cells[name].notes):
        state_of(call.aws).delivery.tell_ended(known, cells[name])


def _listed(
    call: AwsCall[Any], place: TopicLocation, known: TopicInfo, cell: SubscriptionCell
) -> SubscriptionSummary:
    found = LocatedSubscription(place, known, cell)
    protocol, endpoint = _endpoint(call, found)
    return SubscriptionSummary(
        _PENDING if PENDING in found.notes else found.arn,
        found.notes.get(OWNER, place.home.account),
        protocol,
        endpoint,
        place.arn,
    )


@SNS.action("ListSubscriptionsByTopic", ListByTopicIn, SubscriptionsOut)
async def list_subscriptions_by_topic(call: AwsCall[ListByTopicIn]) -> SubscriptionsOut:
    """List the subscriptions of a topic, 100 per page."""
    place = place_at(call, call.told.topic_arn, "read")
    known = await look(call, place)
    cells = {cell.name: cell for cell in await known.subscriptions()}
    names, after = page_of(list(cells), call.told.next_token)
    return SubscriptionsOut([_listed(call, place, known, cells[name]) for name in names], after)


@SNS.action("ListSubscriptions", SnsListIn, SubscriptionsOut)
async def list_subscriptions(call: AwsCall[SnsListIn]) -> SubscriptionsOut:
    """List the subscriptions of the caller's account and region, 100 per page."""
    home = call.caller.home
    space = call.aws.space(home)
    found: dict[str, SubscriptionSummary] = {}
    for topic in await state_of(call.aws).topics.desk.millrace.topics(space=space):
        place = TopicLocation(space, topic, home)
        if not call.may("read", space, topic):
            continue
        try:
            known = await state_of(call.aws).topics.look(space, topic)
            cells = await known.subscriptions()
        except NotFound:
            # The topic was deleted since it was listed.
            continue
        for cell in cells:
            found[f"{topic}:{cell.name}"] = _listed(call, place, known, cell)
    names, after = page_of(list(found), call.told.next_token)
    return SubscriptionsOut([found[name] for name in names], after)


# --- Attributes ----------------------------------------------------------------------------------


@SNS.action("GetSubscriptionAttributes", OfSubscription, SnsAttributesOut)
async def get_subscription_attributes(call: AwsCall[OfSubscription]) -> SnsAttributesOut:
    """Return all attributes of a subscription."""
    found = await find(call, call.told.subscription_arn, "read")
    protocol, endpoint = _endpoint(call, found)
    return SnsAttributesOut(
        {**render_attributes(found), "Protocol": protocol, "Endpoint": endpoint}
    )


@SNS.action("SetSubscriptionAttributes", SetSubscriptionAttributesIn)
async def set_subscription_attributes(call: AwsCall[SetSubscriptionAttributesIn]) -> None:
    """Change one attribute of a subscription."""
    asked = call.told
    found = await find(call, asked.subscription_arn, "manage")
    name, value = asked.attribute_name, asked.attribute_value
    see_attribute(name, value, found.place.arn, _endpoint(call, found)[1])
    if name == RAW_DELIVERY:
        value = value.lower()
    notes = {**found.notes, PREFIX + name: value}
    if name == REDRIVE:
        await _see_letters(call, notes)
    filter = filter_of(notes)
    if name == POLICY and not filter:
        # An empty policy removes the filter, and AWS then omits the attribute.
        value = ""
    is_pending = PENDING in notes

    is_queue = found.cell.durable
    links: dict[str, str] = {}
    if is_queue and name == RAW_DELIVERY:
        links[f"{RAW}{found.place.arn}"] = "1" if value == "true" else ""

    async def change() -> None:
        await configure_durably(
            found.known.topic,
            ConfigureSubscription(
                found.cell.name,
                filters.text(NOTHING if is_pending else filter),
                validate.notes({PREFIX + name: value}),
                dead_letter=letters_of(notes, call.aws.usual) if is_queue else None,
                queue_notes=validate.notes(links),
            ),
        )

    act = Act("SetSubscriptionAttributes", f"{found.place.space}/{found.place.name}")
    try:
        await call.ask.server.act(call.ask, act, change)
    except NotFound as error:
        raise no_subscription() from error
    except (Invalid, TooLarge) as error:
        raise invalid(f"{name}: {error.message}") from error
    await _tell_queue(call, found, name, notes)


async def _tell_queue(
    call: AwsCall[Any], found: LocatedSubscription, changed: str, notes: dict[str, str]
) -> None:
    """Update the queue of a subscription after a change that concerns it.

    Changes of redrive and delivery policy become settings of an endpoint's hidden queue; raw
    delivery is a note of the subscribed queue.
    """
    space, _, name = found.cell.target.partition("/")
    is_hidden = is_endpoint(found.cell)
    settings: QueueSettings
    if is_hidden and changed in (REDRIVE, DELIVERY):
        settings = hidden_settings(notes, found.known)
    elif changed == RAW_DELIVERY and not is_hidden:
        is_raw = notes[PREFIX + RAW_DELIVERY] == "true"
        try:
            links = (await call.aws.directory.look(space, name)).notes
        except NotFound:
            # The next queue of this name gets the note from the durable subscription.
            return
        guest = GUEST if f"{GUEST}{SUBSCRIPTION}{found.place.arn}" in links else ""
        settings = {"notes": {f"{guest}{RAW}{found.place.arn}": "1" if is_raw else ""}}
    else:
        return

    await _configure(call, space, name, settings, is_durable=found.cell.durable)
    if not is_hidden:
        await share_raw(call, space, name)


async def _configure(
    call: AwsCall[Any], space: str, name: str, settings: QueueSettings, *, is_durable: bool = False
) -> None:
    async def configure(queue: Queue) -> None:
        await queue.configure(**settings)

    try:
        await state_of(call.aws).topics.desk.queue(space, name, configure)
    except NotFound as error:
        if is_durable:
            return
        raise no_subscription() from error
    call.aws.directory.forget(space, name)


async def tell_endpoints(call: AwsCall[Any], place: TopicLocation) -> None:
    """Update the hidden queues of a topic's endpoints after a change of its delivery policy."""
    known = await look(call, place)
    for cell in await known.subscriptions():
        space, _, name = cell.target.partition("/")
        if is_endpoint(cell):
            settings = hidden_settings(dict(cell.notes), known)
            await _configure(call, space, name, settings)


# --- Cleanup after a subscription has ended ------------------------------------------------------


async def remove_links(call: AwsCall[Any], topic: str, cell: SubscriptionCell) -> None:
    """Remove a subscription's notes from its queue, or delete the hidden queue of an endpoint."""
    space, _, name = cell.target.partition("/")
    desk = state_of(call.aws).topics.desk
    if is_endpoint(cell):
        await desk.millrace.delete_queue(name, space=space)
        return

    async def forget(queue: Queue) -> None:
        names = [f"{guest}{kind}{topic}" for guest in ("", GUEST) for kind in (RAW, SUBSCRIPTION)]
        await queue.configure(notes=dict.fromkeys(names, ""))

    with suppress(NotFound):
        await desk.queue(space, name, forget)
    call.aws.directory.forget(space, name)
