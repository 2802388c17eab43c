"""The SNS actions that create, list, configure, tag and delete topics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millrace import limits
from millrace.client.topic import configure_notes
from millrace.core.notes import NotesLimit
from millrace.errors import Exhausted, Exists, NotFound, TooLarge
from millrace.server.auth.audit import Act, topic_made
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.queue_info import TAG
from millrace.server.aws.topic_headers import protocol_of
from millrace.server.sns.faults import (
    invalid,
    no_resource,
    too_many_tags,
    too_many_topics,
    unsupported,
)
from millrace.server.sns.resource_lookup import (
    TopicLocation,
    look,
    page_of,
    place_at,
    see,
)
from millrace.server.sns.schemas import (
    CreateTopicIn,
    ListTopicsOut,
    OfResource,
    OfTopic,
    SetTopicAttributesIn,
    SnsAddPermissionIn,
    SnsAttributesOut,
    SnsEmptyOut,
    SnsListIn,
    SnsRemovePermissionIn,
    SnsTagsOut,
    SnsTopicOut,
    Tag,
    TagIn,
    UntagIn,
)
from millrace.server.sns.state import SNS, state_of
from millrace.server.sns.subscriptions import remove_links, tell_endpoints
from millrace.server.sns.topic_attributes import (
    DELIVERY,
    FIFO,
    SIZE,
    is_so,
    notes_of,
    render_attributes,
    see_attribute,
    see_large,
    usual_policy,
)
from millrace.server.sns.topic_cache import TopicInfo

_TAGS = NotesLimit(TAG, limits.SNS_TAGS_MAX)
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.SNS_NAME_CHARS_MAX}}}")
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]+\.fifo")
_ACTIONS = (
    "Publish",
    "RemovePermission",
    "SetTopicAttributes",
    "DeleteTopic",
    "ListSubscriptionsByTopic",
    "GetTopicAttributes",
    "AddPermission",
    "Subscribe",
)


# --- Made, listed, ended -------------------------------------------------------------------------


@SNS.action("CreateTopic", CreateTopicIn, SnsTopicOut)
async def create_topic(call: AwsCall[CreateTopicIn]) -> SnsTopicOut:
    """Create a topic, or verify that the existing one has the same attributes and tags."""
    asked = call.told
    attributes = dict(asked.attributes)
    if asked.data_protection_policy:
        raise unsupported("A DataProtectionPolicy")
    is_fifo = attributes.pop(FIFO, "false").lower()
    if is_fifo not in ("true", "false"):
        raise invalid("Attributes Reason: FifoTopic: Invalid value. Must be true or false.")
    _see_name(asked.name, is_fifo=is_fifo == "true")
    for name, value in attributes.items():
        see_attribute(name, value, is_fifo=is_fifo == "true")
    tags = _tags_in(asked.tags)
    home = call.caller.home
    place = TopicLocation(call.aws.space(home), asked.name, home)
    see(call, "manage", place.space, place.name, place.arn)
    exchange = state_of(call.aws).topics
    try:
        known = await exchange.look(place.space, place.name)
    except NotFound:
        await exchange.prepare()
        notes = {name: text for name, text in {**notes_of(attributes), **tags}.items() if text}

        async def make() -> None:
            millrace = exchange.desk.millrace
            await millrace.topic(place.name, space=place.space, notes=notes)

        made = topic_made(place.space, place.name)
        act = Act("CreateTopic", f"{place.space}/{place.name}", makes=made)
        try:
            await call.ask.server.act(call.ask, act, make)
        except Exists:
            # A concurrent request has created it.
            known = await exchange.look(place.space, place.name)
            _see_same(known, place, attributes, asked.tags)
        except (Exhausted, TooLarge) as error:
            if error.field not in ("topics", "name"):
                raise
            # The user's quota, or the limit of topics of the server, is reached.
            raise too_many_topics(error.message) from error
    else:
        _see_same(known, place, attributes, asked.tags)
    return SnsTopicOut(place.arn)


def _see_name(name: str, *, is_fifo: bool) -> None:
    if is_fifo and not name.endswith(".fifo"):
        raise invalid("Topic Name")
    if is_fifo:
        if _FIFO_NAME.fullmatch(name) is None or len(name) > limits.SNS_NAME_CHARS_MAX:
            raise invalid(
                "Fifo Topic names must end with .fifo and must be made up of only uppercase and "
                "lowercase ASCII letters, numbers, underscores, and hyphens, and must be between "
                f"1 and {limits.SNS_NAME_CHARS_MAX} characters long."
            )
    elif _NAME.fullmatch(name) is None:
        raise invalid("Topic Name")


def _see_same(
    known: TopicInfo, place: TopicLocation, attributes: Mapping[str, str], tags: Sequence[Tag]
) -> None:
    if not all(is_so(known, place, name, value) for name, value in attributes.items()):
        raise invalid("Attributes Reason: Topic already exists with different attributes")
    there = known.tags
    if any(there.get(tag.key) != tag.value for tag in tags):
        raise invalid("Tags Reason: Topic already exists with different tags")


@SNS.action("DeleteTopic", OfTopic)
async def delete_topic(call: AwsCall[OfTopic]) -> None:
    """Delete a topic and its subscriptions; if it does not exist, do nothing."""
    place = place_at(call, call.told.topic_arn, "manage")
    exchange = state_of(call.aws).topics
    try:
        known = await exchange.look(place.space, place.name)
    except NotFound:
        return
    cells = await known.cells()

    async def end() -> None:
        await known.topic.delete()

    act = Act(
        "DeleteTopic", f"{place.space}/{place.name}", ends=topic_made(place.space, place.name)
    )
    await call.ask.server.act(call.ask, act, end)
    exchange.forget(place.space, place.name)
    for cell in cells:
        await remove_links(call, place.arn, cell)


@SNS.action("ListTopics", SnsListIn, ListTopicsOut)
async def list_topics(call: AwsCall[SnsListIn]) -> ListTopicsOut:
    """List the topics of the caller's account and region, 100 per page."""
    home = call.caller.home
    space = call.aws.space(home)
    names = await state_of(call.aws).topics.desk.millrace.topics(space=space)
    seen = [name for name in names if call.sees(space, name)]
    some, after = page_of(seen, call.told.next_token)
    return ListTopicsOut(
        [SnsTopicOut(TopicLocation(space, name, home).arn) for name in some], after
    )


# --- Attributes ----------------------------------------------------------------------------------


@SNS.action("GetTopicAttributes", OfTopic, SnsAttributesOut)
async def get_topic_attributes(call: AwsCall[OfTopic]) -> SnsAttributesOut:
    """Return all attributes of a topic."""
    place = place_at(call, call.told.topic_arn, "read")
    return SnsAttributesOut(await render_attributes(await look(call, place), place))


@SNS.action("SetTopicAttributes", SetTopicAttributesIn)
async def set_topic_attributes(call: AwsCall[SetTopicAttributesIn]) -> None:
    """Change one attribute of a topic."""
    asked = call.told
    place = place_at(call, asked.topic_arn, "manage")
    known = await look(call, place)
    see_attribute(asked.attribute_name, asked.attribute_value, is_fifo=known.is_fifo)
    if asked.attribute_name == SIZE:
        cells = await known.subscriptions()
        see_large(int(asked.attribute_value or 0), [protocol_of(cell) for cell in cells])
    await _keep(call, place, known, notes_of({asked.attribute_name: asked.attribute_value}))
    if asked.attribute_name == DELIVERY:
        await tell_endpoints(call, place)


async def _keep(
    call: AwsCall[Any],
    place: TopicLocation,
    known: TopicInfo,
    notes: Mapping[str, str],
    most: NotesLimit | None = None,
) -> None:
    async def keep() -> None:
        await configure_notes(known.topic, notes, most)

    act = Act(call.action.name, f"{place.space}/{place.name}")
    await call.ask.server.act(call.ask, act, keep)
    state_of(call.aws).topics.forget(place.space, place.name)


# --- Tags ----------------------------------------------------------------------------------------


def _tags_in(tags: Sequence[Tag]) -> dict[str, str]:
    """Validate tags and return the notes that store them.

    Raises:
        Fault: a tag is invalid or repeated, or there are too many.
    """
    if len({tag.key for tag in tags}) < len(tags):
        raise invalid("Duplicated keys are not allowed.")
    if len(tags) > limits.SNS_TAGS_MAX:
        raise too_many_tags()
    for tag in tags:
        if not 1 <= len(tag.key) <= limits.SNS_TAG_KEY_CHARS_MAX:
            raise invalid("TagKey")
        if tag.key.lower().startswith("aws:"):
            raise invalid("TagKey Reason: a key does not begin with aws:")
        if len(tag.value) > limits.SNS_TAG_VALUE_CHARS_MAX:
            raise invalid("TagValue")
    # The `=` keeps an empty tag: a note with an empty text would be removed.
    return {f"{TAG}{tag.key}": f"={tag.value}" for tag in tags}


@SNS.action("TagResource", TagIn, SnsEmptyOut)
async def tag_resource(call: AwsCall[TagIn]) -> SnsEmptyOut:
    """Add tags to a topic, or change their values."""
    place = place_at(call, call.told.resource_arn, "manage", "ResourceArn")
    notes = _tags_in(call.told.tags)
    known = await look(call, place, no_resource())
    try:
        await _keep(call, place, known, notes, _TAGS)
    except TooLarge as error:
        if error.limit != _TAGS.count:
            raise
        raise too_many_tags() from error
    return SnsEmptyOut()


@SNS.action("UntagResource", UntagIn, SnsEmptyOut)
async def untag_resource(call: AwsCall[UntagIn]) -> SnsEmptyOut:
    """Remove tags from a topic."""
    place = place_at(call, call.told.resource_arn, "manage", "ResourceArn")
    known = await look(call, place, no_resource())
    gone = {f"{TAG}{key}": "" for key in call.told.tag_keys if key in known.tags}
    if gone:
        await _keep(call, place, known, gone)
    return SnsEmptyOut()


@SNS.action("ListTagsForResource", OfResource, SnsTagsOut)
async def list_tags_for_resource(call: AwsCall[OfResource]) -> SnsTagsOut:
    """List the tags of a topic."""
    place = place_at(call, call.told.resource_arn, "read", "ResourceArn")
    known = await look(call, place, no_resource())
    return SnsTagsOut([Tag(key, value) for key, value in known.tags.items()])


# --- Permissions ---------------------------------------------------------------------------------


def _policy(known: TopicInfo, place: TopicLocation) -> tuple[dict[str, Any], list[Any]]:
    text = known.note("Policy") or usual_policy(place.arn, place.home.account)
    policy = msgspec.json.decode(text)
    statements = policy.get("Statement")
    listed = statements if isinstance(statements, list) else [statements] if statements else []
    return policy, listed


@SNS.action("AddPermission", SnsAddPermissionIn)
async def add_permission(call: AwsCall[SnsAddPermissionIn]) -> None:
    """Add a statement to the policy of a topic.

    The policy is stored and returned, but has no effect: access rules alone grant rights.
    """
    asked = call.told
    place = place_at(call, asked.topic_arn, "manage")
    known = await look(call, place)
    if not asked.label or not asked.accounts or not asked.actions:
        raise invalid("Label, AWSAccountId and ActionName Reason: no value for required parameter")
    if any(action not in _ACTIONS for action in asked.actions):
        raise invalid("Policy statement action out of service scope!")
    policy, statements = _policy(known, place)
    if any(isinstance(one, dict) and one.get("Sid") == asked.label for one in statements):
        raise invalid("Statement already exists")
    owners = [f"arn:aws:iam::{account}:root" for account in asked.accounts]
    actions = [f"SNS:{action}" for action in asked.actions]
    statements.append(
        {
            "Sid": asked.label,
            "Effect": "Allow",
            "Principal": {"AWS": owners[0] if len(owners) == 1 else owners},
            "Action": actions[0] if len(actions) == 1 else actions,
            "Resource": place.arn,
        }
    )
    policy["Statement"] = statements
    text = msgspec.json.encode(policy).decode()
    see_attribute("Policy", text, is_fifo=known.is_fifo)
    await _keep(call, place, known, notes_of({"Policy": text}))


@SNS.action("RemovePermission", SnsRemovePermissionIn)
async def remove_permission(call: AwsCall[SnsRemovePermissionIn]) -> None:
    """Remove a statement from the policy of a topic."""
    asked = call.told
    place = place_at(call, asked.topic_arn, "manage")
    known = await look(call, place)
    policy, statements = _policy(known, place)
    left = [
        one for one in statements if not (isinstance(one, dict) and one.get("Sid") == asked.label)
    ]
    if len(left) == len(statements):
        raise invalid("Label Reason: there is no statement of this label")
    policy["Statement"] = left
    await _keep(call, place, known, notes_of({"Policy": msgspec.json.encode(policy).decode()}))
