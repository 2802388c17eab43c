"""Tags of queues, and what policies allow."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from millrace import limits
from millrace.client.queue import configure_notes
from millrace.core.notes import Most
from millrace.errors import TooLarge
from millrace.server.aws.calls import Call
from millrace.server.aws.fault import Fault, bad_value, invalid_parameter
from millrace.server.aws.known import MODIFIED, TAG, Known
from millrace.server.aws.names import arn_of, is_account
from millrace.server.rest.act import Act
from millrace.server.sqs.faults import over_limit
from millrace.server.sqs.place import home_at, place_at, use_at
from millrace.server.sqs.policy import (
    PERMISSION,
    POLICY,
    is_labelled,
    one_or_all,
    policy_of,
    read_policy,
)
from millrace.server.sqs.service import SQS
from millrace.server.sqs.shapes import (
    AddPermissionIn,
    OfQueue,
    RemovePermissionIn,
    TagQueueIn,
    TagsOut,
    UntagQueueIn,
)

_TAGS = Most(TAG, limits.SQS_TAGS_MAX)
"""Judged where all changes of a queue are in turn, whichever process asks for them."""

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
    """See that a queue can have these tags.

    Raises:
        Fault: it cannot.
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
    call: Call[Any], known: Known, name: str, notes: Mapping[str, str], most: Most | None = None
) -> None:
    act = Act(name, f"{known.queue.space}/{known.queue.name}")
    await call.ask.server.act(call.ask, act, lambda: configure_notes(known.queue, notes, most))
    call.aws.directory.forget(known.queue.space, known.queue.name)


async def _in_turn(call: Call[Any], url: str, use: Callable[[Known], Awaitable[None]]) -> None:
    """Use the queue at an address as it is now, while nobody else does so."""
    space, name = place_at(call, url, "manage")
    directory = call.aws.directory
    async with directory.turn(space, name):
        directory.forget(space, name)
        await use_at(call, url, "manage", use)


@SQS.action("TagQueue", TagQueueIn)
async def tag_queue(call: Call[TagQueueIn]) -> None:
    """Give a queue tags, or other values of those that it has."""
    told = call.told
    see_tags(told.tags)
    notes = {TAG + tag: f"={text}" for tag, text in told.tags.items()}

    async def use(known: Known) -> None:
        await _note(call, known, "tag_queue", notes, _TAGS)

    try:
        await use_at(call, told.queue_url, "manage", use)
    except TooLarge as error:
        if error.limit != _TAGS.count:
            raise
        raise _too_many_tags() from error


@SQS.action("UntagQueue", UntagQueueIn)
async def untag_queue(call: Call[UntagQueueIn]) -> None:
    """Take tags off."""
    told = call.told

    async def use(known: Known) -> None:
        await _note(call, known, "untag_queue", {TAG + tag: "" for tag in told.tag_keys})

    await use_at(call, told.queue_url, "manage", use)


@SQS.action("ListQueueTags", OfQueue, TagsOut)
async def list_queue_tags(call: Call[OfQueue]) -> TagsOut:
    """The tags of a queue."""
    _forget(call, call.told.queue_url)

    async def use(known: Known) -> TagsOut:
        return TagsOut(known.tags)

    return await use_at(call, call.told.queue_url, None, use)


def _forget(call: Call[Any], url: str) -> None:
    """Have a queue looked at as it is now."""
    space, name = place_at(call, url, None)
    call.aws.directory.forget(space, name)


# --- Policies ------------------------------------------------------------------------------------


@SQS.action("AddPermission", AddPermissionIn)
async def add_permission(call: Call[AddPermissionIn]) -> None:
    """Write a statement into the queue's policy; what callers may do is told by their rules."""
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

    async def use(known: Known) -> None:
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


@SQS.action("RemovePermission", RemovePermissionIn)
async def remove_permission(call: Call[RemovePermissionIn]) -> None:
    """Take a statement out of the queue's policy."""
    told = call.told

    async def use(known: Known) -> None:
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
