"""Resolves queue URLs, authorizes the caller, and runs operations with cached queue metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, TypeVar

from millrace import limits
from millrace.core import validate
from millrace.errors import Invalid, NotFound, TooLarge
from millrace.server.auth.access import Verb
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.names import AccountRegion, read_url, space_of
from millrace.server.aws.queue_info import QueueInfo
from millrace.server.sqs.faults import no_queue

T = TypeVar("T")


def home_at(call: AwsCall[Any], url: str) -> tuple[AccountRegion, str]:
    """Return account and region of a queue URL, and the name of the queue.

    Raises:
        Fault: it is not the URL of a queue.
    """
    found = read_url(url)
    if found is None:
        raise no_queue()
    account, region, name = found
    home = call.caller.home
    return AccountRegion(account or home.account, region or home.region), name


def place_at(call: AwsCall[Any], url: str, verb: Verb | None) -> tuple[str, str]:
    """Return space and name of the queue at a URL, after authorization.

    `verb` is the right that is needed; None: any right, enough to read metadata.

    Raises:
        Fault: it is not the URL of a queue.
        Denied: the caller lacks the right.
    """
    found = _place_of(url, call.caller.home, call.aws.usual)
    if found is None:
        raise no_queue()
    space, name = found
    if verb is not None or not call.sees(space, name):
        call.check(verb or "watch", space, name)
    return found


@lru_cache(maxsize=limits.AWS_ADDRESSES_MAX)
def _place_of(url: str, home: AccountRegion, usual: AccountRegion) -> tuple[str, str] | None:
    """Return space and name of the queue at a URL, for a caller of this account and region.

    Return None if it is not the URL of a queue.
    """
    found = read_url(url)
    if found is None:
        return None
    account, at, name = found
    space = space_of(AccountRegion(account or home.account, at or home.region), usual)
    try:
        return validate.name(space, "space"), validate.name(name, "queue")
    except (Invalid, TooLarge):
        # No queue can have such a name.
        return None


def known_at(call: AwsCall[Any], url: str, verb: Verb) -> QueueInfo | None:
    """Return the cached metadata of the queue at a URL, if it is fresh and the queue has one shard.

    Raises:
        Fault: it is not the URL of a queue.
        Denied: the caller lacks the right.
    """
    space, name = place_at(call, url, verb)
    known = call.aws.directory.known(space, name)
    return known if known is not None and known.queue.shards.is_one else None


async def use_at(
    call: AwsCall[Any], url: str, verb: Verb | None, use: Callable[[QueueInfo], Awaitable[T]]
) -> T:
    """Run `use` with the metadata of the queue at a URL, and return its result.

    Raises:
        Fault: it is not the URL of a queue, or the queue does not exist.
        Denied: the caller lacks the right.
    """
    space, name = place_at(call, url, verb)
    try:
        return await call.aws.directory.use(space, name, use)
    except NotFound as error:
        if error.field != "queue":
            raise
        raise no_queue() from error


def url_of(call: AwsCall[Any], home: AccountRegion, name: str) -> str:
    """Return the URL of a queue, with the host of the request."""
    return f"{call.base}/{home.account}/{name}"
