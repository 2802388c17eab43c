"""The SQS actions that create, find, configure, list, purge and delete queues."""

from __future__ import annotations

import secrets
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

from millrace import limits
from millrace.client.queue import configure_notes, purge_with_ids
from millrace.client.settings import QueueSettings
from millrace.errors import Exists, NotFound
from millrace.server.auth.access import is_account
from millrace.server.auth.audit import Act, queue_made
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.envelope_delivery import share_raw
from millrace.server.aws.fault import bad_value, invalid_parameter
from millrace.server.aws.names import AccountRegion, arn_of, read_arn
from millrace.server.aws.queue_info import (
    CREATED,
    MODIFIED,
    PREFIX,
    PURGED,
    SALT,
    TAG,
    QueueInfo,
)
from millrace.server.aws.topic_headers import HIDDEN
from millrace.server.clock import now_ms
from millrace.server.sqs import attributes
from millrace.server.sqs.attributes import (
    ALL,
    SETTABLE,
    MessageCounts,
    ParsedAttributes,
    without_permissions,
)
from millrace.server.sqs.faults import (
    deleted_lately,
    no_queue,
    purged_lately,
    queue_exists,
    unknown_attribute,
)
from millrace.server.sqs.queue_lookup import (
    home_at,
    place_at,
    url_of,
    use_at,
)
from millrace.server.sqs.schemas import (
    CreateQueueIn,
    GetAttributesIn,
    GetQueueUrlIn,
    ListQueuesIn,
    ListQueuesOut,
    ListSourcesIn,
    ListSourcesOut,
    OfQueue,
    QueueUrlOut,
    SetAttributesIn,
    SqsAttributesOut,
)
from millrace.server.sqs.service import SQS
from millrace.server.sqs.tags import see_tags


@SQS.action("CreateQueue", CreateQueueIn, QueueUrlOut)
async def create_queue(call: AwsCall[CreateQueueIn]) -> QueueUrlOut:
    """Create a queue, or verify that the existing one has the same attributes."""
    told, home = call.told, call.caller.home
    name = told.queue_name
    is_fifo = told.attributes.get("FifoQueue", "").lower() == "true"
    attributes.check_name(name, is_fifo=is_fifo)
    space = call.aws.space(home)
    call.check("manage", space, name)
    tags = {**told.tags, **told.more_tags}
    see_tags(tags)
    bounds = call.aws.directory.bounds
    found = attributes.parse_attributes(
        told.attributes, call.aws.space, bounds, is_fifo=is_fifo, is_new=True
    ).of(space, name)
    await _see_letters(call, found, space, arn_of("sqs", home, name), is_fifo=is_fifo)
    try:
        known = await call.aws.directory.look(space, name)
    except NotFound:
        if call.aws.directory.was_deleted(space, name):
            raise deleted_lately(bounds.cooldown_seconds) from None
        act = Act("create_queue", f"{space}/{name}", makes=queue_made(space, name))
        await call.ask.server.act(
            call.ask, act, lambda: _make(call, space, name, found, tags, is_fifo=is_fifo)
        )
    else:
        _see_same(known, told.attributes, home)
    return QueueUrlOut(url_of(call, home, name))


async def _make(
    call: AwsCall[CreateQueueIn],
    space: str,
    name: str,
    found: ParsedAttributes,
    tags: dict[str, str],
    *,
    is_fifo: bool,
) -> None:
    now = str(int(time.time()))
    notes = {
        **{note: text for note, text in found.notes.items() if text},
        **{TAG + tag: f"={text}" for tag, text in tags.items()},
        CREATED: now,
        MODIFIED: now,
        SALT: secrets.token_hex(16),
    }
    settings: QueueSettings = {
        **attributes.default_settings(call.aws.directory.bounds, is_fifo=is_fifo),
        **found.settings,
        "notes": notes,
    }
    try:
        await call.ask.desk.millrace.queue(name, space=space, **settings)
    except Exists:
        # A concurrent request has created it.
        known = await call.aws.directory.look(space, name)
        _see_same(known, call.told.attributes, call.caller.home)
    call.aws.directory.forget(space, name)


async def _see_letters(
    call: AwsCall[Any], found: ParsedAttributes, space: str, source: str, *, is_fifo: bool
) -> None:
    """Validate the dead-letter queue of a redrive policy.

    Raises:
        Fault: it does not exist, has another account, region or kind, or does not accept dead
            letters of this queue.
        Denied: the caller may not publish to it.
    """
    if found.letters is None:
        return
    at, name = found.letters
    policy = found.notes[f"{PREFIX}RedrivePolicy"][:300]
    if at != space:
        raise bad_value(
            policy, "RedrivePolicy", "Dead-letter target must be of the same account and region."
        )
    if name.endswith(".fifo") != is_fifo:
        kind = "FIFO" if is_fifo else "standard"
        raise bad_value(
            policy, "RedrivePolicy", f"Dead-letter queue of a {kind} queue must be a {kind} queue."
        )
    # Checked before the lookup: only callers with the right learn whether the queue exists.
    call.check("publish", at, name)
    try:
        letters = await call.aws.directory.look(at, name)
    except NotFound as error:
        raise bad_value(policy, "RedrivePolicy", "Dead letter target does not exist.") from error
    if not attributes.accepts_dead_letters(letters, source):
        raise bad_value(
            policy,
            "RedrivePolicy",
            "The dead-letter queue does not allow this source queue (RedriveAllowPolicy).",
        )


def _see_same(known: QueueInfo, given: dict[str, str], home: AccountRegion) -> None:
    """Verify that an existing queue has the requested attributes.

    Raises:
        Fault: an attribute differs.
    """
    told = attributes.render_attributes(known, home, MessageCounts(0, 0, 0))
    # Rendered only for queues with a key; for the others the default is compared.
    told.setdefault("KmsDataKeyReusePeriodSeconds", attributes.KEY_SECONDS)
    for name, text in given.items():
        is_flag = text.lower() in ("true", "false")
        is_same = told.get(name, "") == (text.lower() if is_flag else text)
        if name == "RedrivePolicy" and not is_same:
            is_same = attributes.read_redrive(text) == attributes.read_redrive(told.get(name, ""))
        if not is_same:
            raise queue_exists(name)


@SQS.action("GetQueueUrl", GetQueueUrlIn, QueueUrlOut)
async def get_queue_url(call: AwsCall[GetQueueUrlIn]) -> QueueUrlOut:
    """Return the URL of a queue by its name."""
    told, home = call.told, call.caller.home
    if told.owner:
        if not is_account(told.owner):
            raise bad_value(told.owner[:100], "QueueOwnerAWSAccountId", "It has twelve digits.")
        home = AccountRegion(told.owner, home.region)
    space = call.aws.space(home)
    if not call.sees(space, told.queue_name):
        raise no_queue()
    try:
        await call.ask.desk.millrace.find(told.queue_name, space=space)
    except NotFound as error:
        raise no_queue() from error
    return QueueUrlOut(url_of(call, home, told.queue_name))


@SQS.action("ListQueues", ListQueuesIn, ListQueuesOut)
async def list_queues(call: AwsCall[ListQueuesIn]) -> ListQueuesOut:
    """List the queues that the caller has any right to."""
    told, home = call.told, call.caller.home
    space = call.aws.space(home)
    names = [
        name
        for name in await call.ask.desk.millrace.queues(space=space)
        if name.startswith(told.queue_name_prefix)
        and not name.startswith(HIDDEN)
        and call.sees(space, name)
    ]
    page, token = page_of(names, told.next_token, told.max_results)
    return ListQueuesOut([url_of(call, home, name) for name in page], token)


def page_of(names: Sequence[str], token: str, most: int | None) -> tuple[list[str], str | None]:
    """Return a page of sorted names, and the token of the next page if there is one.

    Raises:
        Fault: the token is invalid, or the page size is out of range.
    """
    if most is not None and not 1 <= most <= limits.SQS_LIST_MAX:
        raise bad_value(most, "MaxResults", f"MaxResults must be 1 to {limits.SQS_LIST_MAX}.")
    after = ""
    if token:
        try:
            after = b64decode(token.encode(), b"-_", validate=True).decode()
        except ValueError as error:
            raise invalid_parameter("Invalid or expired next token.") from error
    rest = [name for name in names if name > after]
    page = rest[: most or limits.SQS_LIST_MAX]
    is_more = most is not None and len(rest) > len(page)
    return page, urlsafe_b64encode(page[-1].encode()).decode() if is_more else None


@SQS.action("GetQueueAttributes", GetAttributesIn, SqsAttributesOut)
async def get_queue_attributes(call: AwsCall[GetAttributesIn]) -> SqsAttributesOut:
    """Return the requested attributes of a queue, the counts of its messages included."""
    names = call.told.attribute_names
    for name in names:
        if name not in ALL and name != "All":
            raise unknown_attribute(name)
    home, _ = home_at(call, call.told.queue_url)

    async def use(known: QueueInfo) -> dict[str, str]:
        holders = await known.queue.holders()
        live = (await known.queue.stats())["live"]
        # The two figures were read one after the other and may not agree.
        held = min(holders.held_by_workers, live)
        delayed = min(holders.delayed, live - held)
        return attributes.render_attributes(
            known, home, MessageCounts(live - held - delayed, held, delayed)
        )

    space, name = place_at(call, call.told.queue_url, None)
    call.aws.directory.forget(space, name)
    found = await use_at(call, call.told.queue_url, None, use)
    if "All" in names:
        return SqsAttributesOut(found)
    return SqsAttributesOut({name: found[name] for name in names if name in found})


@SQS.action("SetQueueAttributes", SetAttributesIn)
async def set_queue_attributes(call: AwsCall[SetAttributesIn]) -> None:
    """Change attributes of a queue."""
    told = call.told
    space, name = place_at(call, told.queue_url, "manage")
    home, _ = home_at(call, told.queue_url)
    for attribute in told.attributes:
        if attribute not in SETTABLE:
            raise unknown_attribute(attribute)

    async def use(known: QueueInfo) -> None:
        found = attributes.parse_attributes(
            told.attributes,
            call.aws.space,
            known.bounds,
            is_fifo=known.is_fifo,
            is_new=False,
            has=known.notes,
        ).of(space, name)
        await _see_letters(call, found, space, arn_of("sqs", home, name), is_fifo=known.is_fifo)
        notes = {**found.notes, MODIFIED: str(int(time.time()))}
        if "Policy" in told.attributes:
            notes |= without_permissions(known)
        settings: QueueSettings = {**found.settings, "notes": notes}
        act = Act("set_queue_attributes", f"{space}/{name}")
        await call.ask.server.act(call.ask, act, lambda: known.queue.configure(**settings))

    await use_at(call, told.queue_url, "manage", use)
    call.aws.directory.forget(space, name)
    if "RedrivePolicy" in told.attributes:
        await share_raw(call, space, name)


@SQS.action("DeleteQueue", OfQueue)
async def delete_queue(call: AwsCall[OfQueue]) -> None:
    """Delete a queue with all its messages."""
    space, name = place_at(call, call.told.queue_url, "manage")
    act = Act("delete_queue", f"{space}/{name}", ends=queue_made(space, name))
    was_there = await call.ask.server.act(
        call.ask, act, lambda: call.ask.desk.millrace.delete_queue(name, space=space)
    )
    call.aws.directory.forget(space, name)
    if not was_there:
        raise no_queue()
    call.aws.directory.note_deleted(space, name)


@SQS.action("PurgeQueue", OfQueue)
async def purge_queue(call: AwsCall[OfQueue]) -> None:
    """Remove all present messages of a queue."""
    space, name = place_at(call, call.told.queue_url, "manage")
    directory = call.aws.directory
    seconds = directory.bounds.cooldown_seconds

    async def use(known: QueueInfo) -> None:
        if seconds:
            if known.was_purged(now_ms() - seconds * 1000):
                raise purged_lately(name, seconds)
            await configure_notes(known.queue, {PURGED: str(now_ms())})
        act = Act("purge_queue", f"{space}/{name}")
        await call.ask.server.act(call.ask, act, lambda: purge_with_ids(known.queue))

    if not seconds:
        await use_at(call, call.told.queue_url, "manage", use)
        return
    # Other processes may have purged the queue: its notes are read again.
    async with directory.turn(space, name):
        directory.forget(space, name)
        await use_at(call, call.told.queue_url, "manage", use)
        directory.forget(space, name)


@SQS.action("ListDeadLetterSourceQueues", ListSourcesIn, ListSourcesOut)
async def list_dead_letter_source_queues(call: AwsCall[ListSourcesIn]) -> ListSourcesOut:
    """List the queues whose dead letters go to this queue."""
    told = call.told
    home, _ = home_at(call, told.queue_url)

    async def use(known: QueueInfo) -> list[str]:
        names = await sources_of(call, known.queue.space, known.queue.name)
        if attributes.redrives_itself(known, home):
            names = sorted([*names, known.queue.name])
        return names

    names = await use_at(call, told.queue_url, None, use)
    page, token = page_of(names, told.next_token, told.max_results)
    return ListSourcesOut([url_of(call, home, name) for name in page], token)


async def sources_of(call: AwsCall[Any], space: str, letters: str) -> list[str]:
    """Return the sorted names of the queues whose dead-letter queue this is and that the caller may
    see.
    """
    found: list[str] = []
    millrace = call.ask.desk.millrace
    for name in await millrace.queues(space=space):
        try:
            spec = await (await millrace.find(name, space=space)).spec()
        except NotFound:
            continue
        if spec.dead_letter == f"{space}/{letters}" and call.sees(space, name):
            found.append(name)
    return found


def place_of_arn(call: AwsCall[Any], arn: str) -> tuple[str, str] | None:
    """Return space and name of the queue of an ARN, or None if it is not the ARN of a queue."""
    found = read_arn(arn)
    if found is None or found.service != "sqs":
        return None
    return call.aws.space(found.home), found.name
