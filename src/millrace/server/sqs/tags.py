"""The SQS actions for tags and permissions of queues."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from millrace import limits
from millrace.client.queue import configure_notes
from millrace.core.notes import NotesLimit
from millrace.errors import TooLarge
from millrace.server.auth.access import is_account
from millrace.server.auth.audit import Act
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.fault import Fault, bad_value, invalid_parameter
from millrace.server.aws.names import arn_of
from millrace.server.aws.queue_info import MODIFIED, TAG, QueueInfo
from millrace.server.sqs.attributes import (
    PERMISSION,
    POLICY,
    is_labelled,
    one_or_all,
    policy_of,
    read_policy,
)
from millrace.server.sqs.faults import over_limit
from millrace.server.sqs.queue_lookup import home_at, place_at, use_at
from millrace.server.sqs.schemas import (
    OfQueue,
    SqsAddPermissionIn,
    SqsRemovePermissionIn,
    SqsTagsOut,
    TagQueueIn,
    UntagQueueIn,
)
from millrace.server.sqs.service import SQS

_TAGS = NotesLimit(TAG, limits.SQS_TAGS_MAX)
"""Enforced where all changes of a queue are serialized, so that it holds across processes."""

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ACTIONS = frozenset(
    {
        "*",
        "SendMessage",
        "ReceiveMessage",
        "DeleteMessage",
        "ChangeMessageVisibility",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
    }
)


def see_tags(tags: Mapping[str, str]) -> None:
    """Validate the tags of a queue.

    Raises:
        Fault: a tag is invalid, or there are too many.
    """
    if len(tags) > limits.SQS_TAGS_MAX:
        raise _too_many_tags()
    for name, text in tags.items():
        is_key = 1 <= len(name) <= limits.SQS_TAG_KEY_CHARS_MAX
        is_value = len(text) <= limits.SQS_TAG_VALUE_CHARS_MAX
        if not is_key or not is_value or name.lower().startswith("aws:"):
            raise bad_value(
                name[:200],
                "Tags",
                f"A key has 1 to {limits.SQS_TAG_KEY_CHARS_MAX} characters and does not begin with "
                f"aws:, a value up to {limits.SQS_TAG_VALUE_CHARS_MAX}.",
            )


def _too_many_tags() -> Fault:
    return over_limit(f"Too many tags added for queue, up to {limits.SQS_TAGS_MAX}.")


async def _note(
    call: AwsCall[Any],
    known: QueueInfo,
    name: str,
    notes: Mapping[str, str],
    most: NotesLimit | None = None,
) -> None:
    act = Act(name, f"{known.queue.space}/{known.queue.name}")
    await call.ask.server.act(call.ask, act, lambda: configure_notes(known.queue, notes, most))
    call.aws.directory.forget(known.queue.space, known.queue.name)


async def _in_turn(
    call: AwsCall[Any], url: str, use: Callable[[QueueInfo], Awaitable[None]]
) -> None:
    """Run `use` with fresh metadata of the queue, serialized with other changes of this process."""
    space, name = place_at(call, url, "manage")
    directory = call.aws.directory
    async with directory.turn(space, name):
        directory.forget(space, name)
        await use_at(call, url, "manage", use)


@SQS.action("TagQueue", TagQueueIn)
async def tag_queue(call: AwsCall[TagQueueIn]) -> None:
    """Add tags to a queue, or change their values."""
    told = call.told
    see_tags(told.tags)
    notes = {TAG + tag: f"={text}" for tag, text in told.tags.items()}

    async def use(known: QueueInfo) -> None:
        await _note(call, known, "tag_queue", notes, _TAGS)

    try:
        await use_at(call, told.queue_url, "manage", use)
    except TooLarge as error:
        if error.limit != _TAGS.count:
            raise
        raise _too_many_tags() from error


@SQS.action("UntagQueue", UntagQueueIn)
async def untag_queue(call: AwsCall[UntagQueueIn]) -> None:
    """Remove tags from a queue."""
    told = call.told

    async def use(known: QueueInfo) -> None:
        await _note(call, known, "untag_queue", {TAG + tag: "" for tag in told.tag_keys})

    await use_at(call, told.queue_url, "manage", use)


@SQS.action("ListQueueTags", OfQueue, SqsTagsOut)
async def list_queue_tags(call: AwsCall[OfQueue]) -> SqsTagsOut:
    """List the tags of a queue."""
    _forget(call, call.told.queue_url)

    async def use(known: QueueInfo) -> SqsTagsOut:
        return SqsTagsOut(known.tags)

    return await use_at(call, call.told.queue_url, None, use)


def _forget(call: AwsCall[Any], url: str) -> None:
    """Drop the cached metadata of a queue, so that it is read again."""
    space, name = place_at(call, url, None)
    call.aws.directory.forget(space, name)


# --- Policies ------------------------------------------------------------------------------------


@SQS.action("AddPermission", SqsAddPermissionIn)
async def add_permission(call: AwsCall[SqsAddPermissionIn]) -> None:
    """Add a statement to the queue's policy, without effect: access rules alone grant rights."""
    told = call.told
    if _LABEL.fullmatch(told.label) is None:
        raise bad_value(told.label[:100], "Label", "1 to 80 letters, digits, hyphens, underscores.")
    if not told.accounts or not all(map(is_account, told.accounts)):
        raise bad_value(told.accounts[:10], "PrincipalId", "Unable to verify.")
    if len(told.actions) > limits.SQS_PERMISSION_ACTIONS_MAX:
        most = limits.SQS_PERMISSION_ACTIONS_MAX
        raise over_limit(f"{len(told.actions)} Actions were found, maximum allowed is {most}.")
    for action in told.actions or [""]:
        if action not in _ACTIONS:
            raise bad_value(
                f"SQS:{action[:80]}",
                "ActionName",
                f"Please refer to the appropriate WSDL for a list of valid actions: "
                f"{', '.join(sorted(_ACTIONS))}.",
            )
    home, name = home_at(call, told.queue_url)

    async def use(known: QueueInfo) -> None:
        note = PERMISSION + told.label
        _, statements = read_policy(known)
        if note in known.notes or any(is_labelled(one, told.label) for one in statements):
            raise bad_value(told.label, "Label", "Already exists.")
        made = {
            "Sid": told.label,
            "Effect": "Allow",
            "Principal": {
                "AWS": one_or_all([f"arn:aws:iam::{account}:root" for account in told.accounts])
            },
            "Action": one_or_all([f"SQS:{action}" for action in told.actions]),
            "Resource": arn_of("sqs", home, name),
        }
        text = msgspec.json.encode(made).decode()
        size = len(policy_of(known, home)) + len(text)
        if size > limits.SQS_POLICY_CHARS_MAX:
            raise invalid_parameter(
                f"A policy has up to {limits.SQS_POLICY_CHARS_MAX} characters, not {size}."
            )
        await _note(call, known, "add_permission", {note: text, **_now()})

    await _in_turn(call, told.queue_url, use)


@SQS.action("RemovePermission", SqsRemovePermissionIn)
async def remove_permission(call: AwsCall[SqsRemovePermissionIn]) -> None:
    """Remove a statement from the queue's policy."""
    told = call.told

    async def use(known: QueueInfo) -> None:
        note = PERMISSION + told.label
        if note in known.notes:
            await _note(call, known, "remove_permission", {note: "", **_now()})
            return
        policy, statements = read_policy(known)
        rest = [one for one in statements if not is_labelled(one, told.label)]
        if len(rest) == len(statements):
            raise bad_value(told.label[:100], "Label", "can't find label on existing policy.")
        policy["Statement"] = rest
        text = msgspec.json.encode(policy).decode() if rest else ""
        await _note(call, known, "remove_permission", {POLICY: text, **_now()})

    await _in_turn(call, told.queue_url, use)


def _now() -> dict[str, str]:
    return {MODIFIED: str(int(time.time()))}
