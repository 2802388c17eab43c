"""Which queue a call names, and using it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, TypeVar

from millrace import limits
from millrace.core import check
from millrace.errors import Invalid, NotFound, TooLarge
from millrace.server.access import Verb
from millrace.server.aws.calls import Call
from millrace.server.aws.known import Known
from millrace.server.aws.names import Home, read_url, space_of
from millrace.server.sqs.faults import no_queue

T = TypeVar("T")


def home_at(call: Call[Any], url: str) -> tuple[Home, str]:
    """Whose queue an address is of, and its name.

    Raises:
        Fault: it is no address of a queue.
    """
    found = read_url(url)
    if found is None:
        raise no_queue()
    account, region, name = found
    home = call.caller.home
    return Home(account or home.account, region or home.region), name


def place_at(call: Call[Any], url: str, verb: Verb | None) -> tuple[str, str]:
    """Space and name of the queue at an address, with which the caller may do this; None: anything
    at all, to see what it is like.

    Raises:
        Fault: it is no address of a queue.
        Denied: they may not.
    """
    found = _place_of(url, call.caller.home, call.aws.usual)
    if found is None:
        raise no_queue()
    space, name = found
    if verb is not None or not call.sees(space, name):
        call.check(verb or "watch", space, name)
    return found


@lru_cache(maxsize=limits.AWS_ADDRESSES_MAX)
def _place_of(url: str, home: Home, usual: Home) -> tuple[str, str] | None:
    """Return space and name of the queue at an address, for a caller of this account and region.

    None: it is no address of a queue.
    """
    found = read_url(url)
    if found is None:
        return None
    account, at, name = found
    space = space_of(Home(account or home.account, at or home.region), usual)
    try:
        return check.name(space, "space"), check.name(name, "queue")
    except (Invalid, TooLarge):
        # Nothing can have such a name.
        return None


def known_at(call: Call[Any], url: str, verb: Verb) -> Known | None:
    """The queue at an address, if it was seen a moment ago and has one shard."""
    space, name = place_at(call, url, verb)
    known = call.aws.directory.known(space, name)
    return known if known is not None and known.queue.shards.is_one else None


async def use_at(
    call: Call[Any], url: str, verb: Verb | None, use: Callable[[Known], Awaitable[T]]
) -> T:
    """What `use` comes to with the queue at an address.

    Raises:
        Fault: it is no address of a queue, or there is none.
        Denied: whoever asks may not do this.
    """
    space, name = place_at(call, url, verb)
    try:
        return await call.aws.directory.use(space, name, use)
    except NotFound as error:
        if error.field != "queue":
            raise
        raise no_queue() from error


def url_of(call: Call[Any], home: Home, name: str) -> str:
    """The address of a queue, by the host that the caller has asked at."""
    return f"{call.base}/{home.account}/{name}"
