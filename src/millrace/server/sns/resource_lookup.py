"""Resolves ARNs of topics and subscriptions, authorizes the caller, and cuts lists into pages."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from millrace import limits
from millrace.core.cells import SubscriptionCell
from millrace.errors import NotFound
from millrace.server.auth.access import Verb
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.fault import Fault
from millrace.server.aws.names import AccountRegion, arn_of, read_arn
from millrace.server.sns.faults import invalid, no_subscription, no_topic, no_value, not_authorized
from millrace.server.sns.state import state_of
from millrace.server.sns.topic_cache import TopicInfo

T = TypeVar("T")


class TopicLocation(NamedTuple):
    """The location of a topic."""

    space: str
    name: str
    home: AccountRegion

    @property
    def arn(self) -> str:
        """The ARN of the topic."""
        return arn_of("sns", self.home, self.name)


def see(call: AwsCall[Any], verb: Verb, space: str, name: str, arn: str) -> None:
    """Authorize the caller for an operation on a resource.

    Raises:
        Fault: the caller lacks the right.
    """
    if not call.may_act(verb, space, name):
        raise not_authorized(call.caller.principal.name, call.action.name, verb, arn)


def place_at(
    call: AwsCall[Any], arn: str, verb: Verb, parameter: str = "TopicArn"
) -> TopicLocation:
    """Return the location of the topic of an ARN, after authorization.

    Raises:
        Fault: it is not the ARN of a topic of this region, or the caller lacks the right.
    """
    found = read_arn(arn)
    if found is None:
        count = len(arn.split(":"))
        if count < 6:
            raise invalid(f"{parameter} Reason: An ARN must have at least 6 elements, not {count}")
        raise invalid(parameter)
    if found.service != "sns" or found.home.region != call.caller.home.region or ":" in found.name:
        raise invalid(parameter)
    place = TopicLocation(call.aws.space(found.home), found.name, found.home)
    see(call, verb, place.space, place.name, arn)
    return place


async def use_topic(
    call: AwsCall[Any], place: TopicLocation, use: Callable[[TopicInfo], Awaitable[T]]
) -> T:
    """Run `use` with the cached metadata of a topic, and return its result.

    Raises:
        Fault: the topic does not exist.
    """
    try:
        return await state_of(call.aws).topics.use(place.space, place.name, use)
    except NotFound as error:
        if error.field != "topic":
            raise
        raise no_topic() from error


async def look(call: AwsCall[Any], place: TopicLocation, fault: Fault | None = None) -> TopicInfo:
    """Return the current metadata of a topic.

    Raises:
        Fault: the topic does not exist; `fault`, if one is given.
    """
    try:
        return await state_of(call.aws).topics.look(place.space, place.name)
    except NotFound as error:
        raise fault or no_topic() from error


class LocatedSubscription(NamedTuple):
    """A subscription with its topic."""

    place: TopicLocation
    known: TopicInfo
    cell: SubscriptionCell

    @property
    def arn(self) -> str:
        """The ARN of the subscription."""
        return f"{self.place.arn}:{self.cell.name}"

    @property
    def notes(self) -> dict[str, str]:
        """The notes of the subscription, by name."""
        return dict(self.cell.notes)


def subscription_at(call: AwsCall[Any], arn: str | None, verb: Verb) -> tuple[TopicLocation, str]:
    """Return the location of a subscription's topic and the subscription's name, after
    authorization.

    Raises:
        Fault: the ARN is missing or invalid, or the caller lacks the right.
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


async def find(call: AwsCall[Any], arn: str | None, verb: Verb) -> LocatedSubscription:
    """Look up the subscription of an ARN.

    Raises:
        Fault: the ARN is invalid, the subscription does not exist, or the caller lacks the right.
    """
    place, name = subscription_at(call, arn, verb)
    known = await look(call, place, no_subscription())
    for cell in await known.subscriptions():
        if cell.name == name:
            return LocatedSubscription(place, known, cell)
    raise no_subscription()


# --- Pagination of SNS lists ---------------------------------------------------------------------


def page_of(names: Sequence[str], token: str) -> tuple[list[str], str | None]:
    """Return a page of sorted names after the token's, and the token of the next page if there is
    one.

    Raises:
        Fault: the token is invalid.
    """
    ordered = sorted(names)
    begin = bisect_right(ordered, _last(token)) if token else 0
    some = ordered[begin : begin + limits.SNS_LIST_MAX]
    if begin + len(some) >= len(ordered):
        return some, None
    return some, urlsafe_b64encode(some[-1].encode()).decode()


def _last(token: str) -> str:
    try:
        return b64decode(token.encode("ascii"), b"-_", validate=True).decode()
    except ValueError as error:
        raise invalid("NextToken") from error
