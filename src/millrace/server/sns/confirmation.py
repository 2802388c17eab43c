"""Confirmation of subscriptions by their endpoints, restoring of ended ones, unsigned routes."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from millrace.client.queue import Queue
from millrace.core.cells import SubscriptionCell
from millrace.errors import Invalid, NotFound, TooLarge
from millrace.server.auth.audit import Act
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.api_protocol import NAMESPACES, XML, AwsApi, request_id
from millrace.server.aws.names import arn_of, home_of, read_arn
from millrace.server.aws.query_protocol import text_of
from millrace.server.aws.topic_headers import ENDPOINT, PENDING, PROTOCOL, TOKEN, protocol_of
from millrace.server.http.response import Response
from millrace.server.sns.endpoint import make_hidden
from millrace.server.sns.endpoint_delivery import CONFIRM_PATH
from millrace.server.sns.faults import invalid, too_many_subscriptions
from millrace.server.sns.schemas import ConfirmCall, SnsSubscriptionOut
from millrace.server.sns.signing import CERTIFICATE_PATH
from millrace.server.sns.state import SNS, state_of
from millrace.server.sns.subscription_attributes import filter_of
from millrace.server.sns.subscription_tokens import (
    EndedSubscription,
    is_of_ended,
    is_token,
    read_ended,
)
from millrace.server.sns.topic_attributes import see_large
from millrace.server.sns.topic_cache import TopicInfo
from millrace.server.web.route import RequestContext, Routes


class ConfirmedSubscription(NamedTuple):
    """A subscription that was confirmed."""

    space: str
    topic: str
    name: str


async def confirm(
    ask: RequestContext, aws: AwsApi, token: str, at: tuple[str, str] | None = None
) -> ConfirmedSubscription:
    """Confirm the subscription of a token, or restore it if it has ended; idempotent.

    `at`: the space and name that its topic must have.

    Raises:
        Fault: the token is invalid, or belongs to another topic.
    """
    ended = None
    if is_of_ended(token):
        await state_of(aws).topics.prepare()
        ended = read_ended(token, state_of(aws).topics.signer)
    read = (ended.space, ended.topic, ended.name) if ended is not None else read_token(token)
    if read is None or at not in (None, read[:2]):
        raise invalid("Token")
    space, topic, name = read
    try:
        known = await state_of(aws).topics.look(space, topic)
    except (NotFound, Invalid, TooLarge) as error:
        raise invalid("Token") from error
    if ended is not None:
        return ConfirmedSubscription(space, topic, await _restore(ask, aws, known, ended))
    for cell in await known.subscriptions():
        if cell.name == name and await is_token(state_of(aws).topics, known, cell, token):
            await _let_pass(known, cell)
            return ConfirmedSubscription(space, topic, name)
    raise invalid("Token")


def read_token(token: str) -> tuple[str, str, str] | None:
    """Return space, topic and name of the subscription in a token, or None if it is malformed."""
    with suppress(ValueError):
        parts = bytes.fromhex(token).decode().split("/")
        if len(parts) == 4:
            return parts[0], parts[1], parts[2]
    return None


async def _let_pass(known: TopicInfo, cell: SubscriptionCell) -> None:
    """Replace the filter that matches nothing by that of the subscription, if it is pending."""
    notes = dict(cell.notes)
    if PENDING in notes:
        await known.topic.configure_subscription(
            cell.name, filter=filter_of(notes), notes={PENDING: "", TOKEN: ""}
        )


async def _restore(
    ask: RequestContext, aws: AwsApi, known: TopicInfo, ended: EndedSubscription
) -> str:
    """Create a subscription again that has ended, and return its name."""
    if known.shard != ended.shard:
        raise invalid("Token")
    cells = await known.subscriptions()
    for cell in cells:
        if cell.name == ended.name:
            return cell.name
        notes = dict(cell.notes)
        if all(notes.get(name) == ended.notes.get(name) for name in (PROTOCOL, ENDPOINT)):
            # The endpoint was subscribed again: the token confirms that subscription, as an
            # endpoint has one per topic.
            await _let_pass(known, cell)
            return cell.name
    see_large(known.bytes_max, [ended.notes[PROTOCOL], *map(protocol_of, cells)])
    act = Act("ConfirmSubscription", f"{ended.space}/{ended.topic}")
    await ask.server.act(ask, act, lambda: _make(aws, known, ended))
    return ended.name


async def _make(aws: AwsApi, known: TopicInfo, ended: EndedSubscription) -> None:
    notes = dict(ended.notes)

    async def subscribe(queue: Queue) -> None:
        await known.topic.subscribe(queue, filter=filter_of(notes), name=ended.name, notes=notes)

    try:
        hidden = await make_hidden(state_of(aws).topics, known, ended.name, notes, subscribe)
    except (NotFound, Invalid) as error:
        raise invalid(f"Token Reason: {error.message}") from error
    except TooLarge as error:
        raise too_many_subscriptions(error.message) from error
    state_of(aws).delivery.take(ended.space, hidden)


@SNS.action("ConfirmSubscription", ConfirmCall, SnsSubscriptionOut)
async def confirm_subscription(call: AwsCall[ConfirmCall]) -> SnsSubscriptionOut:
    """Confirm a subscription with the token that its endpoint received."""
    asked = call.told
    arn = read_arn(asked.topic_arn)
    if arn is None or arn.service != "sns":
        raise invalid("TopicArn")
    at = (call.aws.space(arn.home), arn.name)
    confirmed = await confirm(call.ask, call.aws, asked.token, at)
    return SnsSubscriptionOut(f"{asked.topic_arn}:{confirmed.name}")


# --- The unsigned HTTP routes of SNS: signing certificate and subscription confirmation ----------

ROUTES = Routes("aws")


def _face(ask: RequestContext) -> AwsApi:
    face = ask.server.face("aws")
    assert isinstance(face, AwsApi)
    return face


@ROUTES.raw("GET", CONFIRM_PATH, "public")
async def confirm_endpoint(ask: RequestContext) -> Response:
    """Confirm a subscription with the token in the query."""
    face = _face(ask)
    space, topic, name = await confirm(ask, face, ask.query().get("Token", ""))
    home = home_of(space, face.usual) or face.usual
    arn = text_of(f"{arn_of('sns', home, topic)}:{name}")
    text = (
        f'<ConfirmSubscriptionResponse xmlns="{NAMESPACES["sns"]}"><ConfirmSubscriptionResult>'
        f"<SubscriptionArn>{arn}</SubscriptionArn></ConfirmSubscriptionResult><ResponseMetadata>"
        f"<RequestId>{request_id()}</RequestId></ResponseMetadata></ConfirmSubscriptionResponse>"
    )
    return Response(200, text.encode(), type=XML)


@ROUTES.raw("GET", f"{CERTIFICATE_PATH}{{file}}", "public")
async def certificate(ask: RequestContext) -> Response:
    """Return the certificate that verifies the signatures of messages."""
    exchange = state_of(_face(ask)).topics
    # Callers are anonymous here: no key is created for them.
    signer = await exchange.prepare() if exchange.has_key else None
    if signer is None or ask.params["file"] != signer.name:
        raise NotFound("there is no such certificate", field="path")
    return Response(200, signer.certificate.encode(), type="application/x-pem-file")
