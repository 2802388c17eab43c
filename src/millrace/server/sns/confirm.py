"""The yes of an endpoint: to a subscription that was asked for, or to one that has ended."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from millrace.client.queue import Queue
from millrace.core.topic_cells import SubscriptionCell
from millrace.errors import Invalid, NotFound, TooLarge
from millrace.server.aws.calls import Call
from millrace.server.aws.face import AwsFace
from millrace.server.aws.names import read_arn
from millrace.server.rest.act import Act
from millrace.server.rest.route import Ask
from millrace.server.sns.ended import Ended, is_of_ended, read_ended
from millrace.server.sns.exchange import KnownTopic
from millrace.server.sns.faults import invalid, too_many_subscriptions
from millrace.server.sns.headers import ENDPOINT, PENDING, PROTOCOL, TOKEN, protocol_of
from millrace.server.sns.hidden import make_hidden
from millrace.server.sns.service import SNS
from millrace.server.sns.shapes import ConfirmCall, SubscriptionOut
from millrace.server.sns.subscription_attributes import filter_of
from millrace.server.sns.tokens import is_token
from millrace.server.sns.topic_attributes import see_large


class Confirmed(NamedTuple):
    """A subscription that is confirmed."""

    space: str
    topic: str
    name: str


async def confirm(
    ask: Ask, aws: AwsFace, token: str, at: tuple[str, str] | None = None
) -> Confirmed:
    """Have an endpoint get what its topic has; again changes nothing. `at`: the space and the name
    of the topic that it has to be.

    Raises:
        Fault: it is not a token of any subscription, or of another topic's.
    """
    ended = None
    if is_of_ended(token):
        await aws.exchange.prepare()
        ended = read_ended(token, aws.exchange.signer)
    read = (ended.space, ended.topic, ended.name) if ended is not None else read_token(token)
    if read is None or at not in (None, read[:2]):
        raise invalid("Token")
    space, topic, name = read
    try:
        known = await aws.exchange.look(space, topic)
    except (NotFound, Invalid, TooLarge) as error:
        raise invalid("Token") from error
    if ended is not None:
        return Confirmed(space, topic, await _restore(ask, aws, known, ended))
    for cell in await known.subscriptions():
        if cell.name == name and await is_token(aws.exchange, known, cell, token):
            await _let_pass(known, cell)
            return Confirmed(space, topic, name)
    raise invalid("Token")


def read_token(token: str) -> tuple[str, str, str] | None:
    """Space, topic and name of the subscription that was asked for; None: it is no such token."""
    with suppress(ValueError):
        parts = bytes.fromhex(token).decode().split("/")
        if len(parts) == 4:
            return parts[0], parts[1], parts[2]
    return None


async def _let_pass(known: KnownTopic, cell: SubscriptionCell) -> None:
    """Let what the topic has pass to an endpoint, if that was waited for."""
    notes = dict(cell.notes)
    if PENDING in notes:
        await known.topic.configure_subscription(
            cell.name, filter=filter_of(notes), notes={PENDING: "", TOKEN: ""}
        )


async def _restore(ask: Ask, aws: AwsFace, known: KnownTopic, ended: Ended) -> str:
    """Make a subscription again that has ended; returns its name."""
    if known.shard != ended.shard:
        raise invalid("Token")
    cells = await known.subscriptions()
    for cell in cells:
        if cell.name == ended.name:
            return cell.name
        notes = dict(cell.notes)
        if all(notes.get(name) == ended.notes.get(name) for name in (PROTOCOL, ENDPOINT)):
            # Someone has subscribed it anew: an endpoint is subscribed once, and has said yes.
            await _let_pass(known, cell)
            return cell.name
    see_large(known.bytes_max, [ended.notes[PROTOCOL], *map(protocol_of, cells)])
    act = Act("ConfirmSubscription", f"{ended.space}/{ended.topic}")
    await ask.server.act(ask, act, lambda: _make(aws, known, ended))
    return ended.name


async def _make(aws: AwsFace, known: KnownTopic, ended: Ended) -> None:
    notes = dict(ended.notes)

    async def subscribe(queue: Queue) -> None:
        await known.topic.subscribe(queue, filter=filter_of(notes), name=ended.name, notes=notes)

    try:
        hidden = await make_hidden(aws.exchange, known, ended.name, notes, subscribe)
    except (NotFound, Invalid) as error:
        raise invalid(f"Token Reason: {error.message}") from error
    except TooLarge as error:
        raise too_many_subscriptions(error.message) from error
    aws.deliverer.take(ended.space, hidden)


@SNS.action("ConfirmSubscription", ConfirmCall, SubscriptionOut)
async def confirm_subscription(call: Call[ConfirmCall]) -> SubscriptionOut:
    """Have an endpoint get what its topic has: its owner shows what it was told."""
    asked = call.told
    arn = read_arn(asked.topic_arn)
    if arn is None or arn.service != "sns":
        raise invalid("TopicArn")
    at = (call.aws.space(arn.home), arn.name)
    confirmed = await confirm(call.ask, call.aws, asked.token, at)
    return SubscriptionOut(f"{asked.topic_arn}:{confirmed.name}")
