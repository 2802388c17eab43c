"""Which topic or subscription a call names, and using it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from millrace.core.topic_cells import SubscriptionCell
from millrace.errors import NotFound
from millrace.server.access import Verb
from millrace.server.aws.calls import Call
from millrace.server.aws.fault import Fault
from millrace.server.aws.names import Home, arn_of, read_arn
from millrace.server.sns.exchange import KnownTopic
from millrace.server.sns.faults import (
    invalid,
    no_subscription,
    no_topic,
    no_value,
    not_authorized,
)

T = TypeVar("T")


class Place(NamedTuple):
    """Where a topic is."""

    space: str
    name: str
    home: Home

    @property
    def arn(self) -> str:
        """As clients know it."""
        return arn_of("sns", self.home, self.name)


def see(call: Call[Any], verb: Verb, space: str, name: str, arn: str) -> None:
    """See that whoever asks may do this.

    Raises:
        Fault: they may not.
    """
    if not call.may_act(verb, space, name):
        raise not_authorized(call.caller.principal.name, call.action.name, verb, arn)


def place_at(call: Call[Any], arn: str, verb: Verb, parameter: str = "TopicArn") -> Place:
    """The place of the topic that an ARN names, with which the caller may do this.

    Raises:
        Fault: it is no ARN of a topic, or of another region; or they may not.
    """
    found = read_arn(arn)
    if found is None:
        count = len(arn.split(":"))
        if count < 6:
            raise invalid(f"{parameter} Reason: An ARN must have at least 6 elements, not {count}")
        raise invalid(parameter)
    if found.service != "sns" or found.home.region != call.caller.home.region or ":" in found.name:
        raise invalid(parameter)
    place = Place(call.aws.space(found.home), found.name, found.home)
    see(call, verb, place.space, place.name, arn)
    return place


async def use_topic(call: Call[Any], place: Place, use: Callable[[KnownTopic], Awaitable[T]]) -> T:
    """What `use` comes to with the topic.

    Raises:
        Fault: there is none.
    """
    try:
        return await call.aws.exchange.use(place.space, place.name, use)
    except NotFound as error:
        if error.field != "topic":
            raise
        raise no_topic() from error


async def look(call: Call[Any], place: Place, fault: Fault | None = None) -> KnownTopic:
    """The topic as it is now.

    Raises:
        Fault: there is none.
    """
    try:
        return await call.aws.exchange.look(place.space, place.name)
    except NotFound as error:
        raise fault or no_topic() from error


class Found(NamedTuple):
    """A subscription, and where it is."""

    place: Place
    known: KnownTopic
    cell: SubscriptionCell

    @property
    def arn(self) -> str:
        """As clients know it."""
        return f"{self.place.arn}:{self.cell.name}"

    @property
    def notes(self) -> dict[str, str]:
        """What is kept with it."""
        return dict(self.cell.notes)


def subscription_at(call: Call[Any], arn: str | None, verb: Verb) -> tuple[Place, str]:
    """The place of a subscription's topic, and its name there.

    Raises:
        Fault: it is missing or no ARN of a subscription; or the caller may not do this.
    """
    if arn is None:
        raise no_value("SubscriptionArn")
    parts = arn.split(":")
    if len(parts) < 6:
        raise invalid(
            f"SubscriptionArn Reason: An ARN must have at least 6 elements, not {len(parts)}"
        )
    if len(parts) != 7 or not parts[6]:
        raise invalid("SubscriptionId")
    return place_at(call, ":".join(parts[:6]), verb, "SubscriptionArn"), parts[6]


async def find(call: Call[Any], arn: str | None, verb: Verb) -> Found:
    """The subscription that an ARN names.

    Raises:
        Fault: it is no ARN, or there is none; or the caller may not do this.
    """
    place, name = subscription_at(call, arn, verb)
    known = await look(call, place, no_subscription())
    for cell in await known.subscriptions():
        if cell.name == name:
            return Found(place, known, cell)
    raise no_subscription()
