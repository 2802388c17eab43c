"""Delivery of topic messages to subscribed HTTP endpoints.

Every endpoint has a hidden queue, to which the topic forwards. `EndpointDelivery` leases messages
from it, posts them, and settles each that the endpoint has accepted.

Rule 1: a message is settled only after the endpoint accepted it; after a crash an accepted message
may be sent again.
Rule 2: the delivery policy of the subscription determines number and times of retries; then the
message becomes a dead letter by the settings of the queue.
Rule 3: several processes may deliver from the same queues. Each process serves the queues that
existed when it started and those subscribed through it; when it stops, the others continue.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Coroutine
from functools import cache
from typing import Literal, NamedTuple
from urllib.parse import quote, urlsplit
from uuid import uuid4

import msgspec

from millrace import limits
from millrace.client.lease import Lease
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.core.cells import SubscriptionCell
from millrace.errors import Fatal, Gone, MillraceError, NotFound, Stale
from millrace.rpc.http_connection import HttpConnection
from millrace.rpc.tls import client_context
from millrace.rpc.transport import ConnectionLost
from millrace.server.auth.authenticator import DELIVERY_MARK
from millrace.server.aws.envelope_delivery import envelope_of
from millrace.server.aws.message_attributes import attributes_out
from millrace.server.aws.names import AccountRegion, arn_of, home_of
from millrace.server.aws.queue_info import PREFIX
from millrace.server.aws.topic_envelope import SUBSCRIBED, UNSUBSCRIBED, confirmation
from millrace.server.aws.topic_headers import (
    BASE,
    BODY_FOR,
    ENDPOINT,
    HIDDEN,
    ID,
    PENDING,
    PROTOCOL,
)
from millrace.server.clock import now_ms
from millrace.server.sns.delivery_policy import CONTENT_TYPE, DeliveryPolicy, RetryPolicy
from millrace.server.sns.endpoint_policy import EndpointPolicy, Unreachable
from millrace.server.sns.subscription_attributes import RAW_DELIVERY, delivery
from millrace.server.sns.subscription_tokens import EndedSubscription, token_of, token_of_cell
from millrace.server.sns.topic_cache import TopicCache, TopicInfo

CONFIRM_PATH = "/_aws/sns/confirm"
"""Path of the URL by which an endpoint confirms a subscription."""

_logger = logging.getLogger("millrace.server")


class _Line(NamedTuple):
    """The current state of an endpoint's subscription."""

    arn: str
    notes: dict[str, str]
    how: DeliveryPolicy


class EndpointDelivery:
    """Sends the messages in endpoints' queues, and asks endpoints for confirmation."""

    def __init__(self, exchange: TopicCache, usual: AccountRegion, reach: EndpointPolicy) -> None:
        """`usual`: the account and region whose space is `default`."""
        self.reach = reach
        self._exchange = exchange
        self._usual = usual
        self._lines: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Resume the deliveries of existing subscriptions."""
        millrace = self._millrace
        for space in await millrace.spaces():
            for name in await millrace.queues(space=space):
                if name.startswith(HIDDEN):
                    self.take(space, name)

    @property
    def _millrace(self) -> Millrace:
        return self._exchange.desk.millrace

    def take(self, space: str, name: str) -> None:
        """Start a task that delivers the messages of this queue."""
        at = (space, name)
        if at in self._lines:
            # The queue was deleted and created again before its task noticed.
            self._lines[at].cancel()
        task = asyncio.get_running_loop().create_task(self._deliver(space, name))
        self._lines[at] = task
        task.add_done_callback(lambda done: self._ended(at, done))

    def _ended(self, at: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._lines.get(at) is task:
            del self._lines[at]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.error("what waits for an endpoint in %s/%s", *at, exc_info=error)

    def ask_endpoint(self, space: str, topic: str, cell: SubscriptionCell) -> None:
        """Ask the endpoint of a subscription for confirmation, in the background."""
        self._begin(self._ask(space, topic, cell))

    def tell_ended(self, known: TopicInfo, cell: SubscriptionCell) -> None:
        """Notify the endpoint of a subscription that it has ended and how to restore it, in the
        background.
        """
        self._begin(self._tell_ended(known, cell))

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _logger.error("an endpoint could not be asked or told", exc_info=error)

    async def stop(self) -> None:
        """Cancel all deliveries; the next process sends messages that are not settled again."""
        tasks = [*self._lines.values(), *self._asking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- Messages -------------------------------------------------------------------------------

    async def _deliver(self, space: str, name: str) -> None:
        """Deliver until the subscription has ended; then delete the queue."""
        while True:
            try:
                queue = await self._millrace.find(name, space=space)
                topic = dict((await queue.spec()).notes).get(f"{PREFIX}topic", "")
                if not topic:
                    # A user's own queue whose name begins like those of endpoints.
                    return
                await self._follow(queue, topic, await self._line(queue, topic))
            except NotFound as error:
                if error.field != "queue":
                    # The subscription was deleted by another API, or by a process that crashed
                    # before it deleted the queue.
                    await self._millrace.delete_queue(name, space=space)
                return
            except Fatal:
                return
            except MillraceError as error:
                _logger.warning("what waits for an endpoint in %s/%s: %s", space, name, error)
                await asyncio.sleep(limits.SNS_TROUBLE_SECONDS)

    async def _follow(self, queue: Queue, topic: str, line: _Line) -> None:
        while True:
            leases = await queue.lease(
                limits.SNS_POST_AT_ONCE_MAX,
                seconds=limits.SNS_POST_LEASE_SECONDS,
                wait=limits.SNS_POST_WAIT_SECONDS,
            )
            if leases or PENDING in line.notes:
                # The subscription may have expired unconfirmed, or its attributes have changed.
                line = await self._line(queue, topic)
            if leases and PENDING in line.notes:
                # Another API changed the filter that matches nothing: the messages wait for the
                # confirmation.
                for one in leases:
                    await one.release(delay=limits.SNS_POST_WAIT_SECONDS)
            elif leases:
                await asyncio.gather(*(self._send(line, one) for one in leases))

    async def _line(self, queue: Queue, topic: str) -> _Line:
        known = await self._exchange.look(queue.space, topic)
        wanted = queue.name.removeprefix(HIDDEN)
        home = home_of(queue.space, self._usual) or self._usual
        for cell in await known.subscriptions():
            if cell.name == wanted:
                notes = dict(cell.notes)
                return _Line(
                    f"{arn_of('sns', home, topic)}:{wanted}", notes, delivery(notes, known)
                )
        raise NotFound("the subscription has ended", field="subscription")

    async def _send(self, line: _Line, lease: Lease) -> None:
        notes, arn = line.notes, line.arn
        own = dict(lease.headers)
        other = own.get(BODY_FOR[notes[PROTOCOL]])
        body = lease.body if other is None else other
        is_raw = notes.get(PREFIX + RAW_DELIVERY) == "true"
        text = body.decode(errors="replace")
        if not is_raw:
            attributes = attributes_out(lease.headers)
            around = self._exchange.around(notes[BASE])
            text = envelope_of(body, lease.headers, attributes, lease.time_ms, arn, around)
        outcome = await post(
            EndpointPost(
                notes[ENDPOINT],
                text,
                "Notification",
                own.get(ID, b"").decode(errors="replace"),
                arn.rpartition(":")[0],
                arn,
                is_raw,
                line.how.content_type,
            ),
            self.reach,
        )
        try:
            if outcome == "done":
                await lease.settle()
            elif outcome == "never":
                await lease.discard()
            else:
                delay = line.how.retries.seconds(lease.failures + 1)
                await lease.release(failed=True, delay=delay)
        except (Stale, Gone):
            # Sending took longer than the lease: the present holder sends the message again.
            return

    # --- Confirmation ---------------------------------------------------------------------------

    async def _ask(self, space: str, topic: str, cell: SubscriptionCell) -> None:
        """Send the confirmation request, retried by the delivery policy; after that the endpoint
        has to be subscribed again.
        """
        notes = dict(cell.notes)
        home = home_of(space, self._usual) or self._usual
        arn, id = arn_of("sns", home, topic), str(uuid4())
        known = await self._exchange.look(space, topic)
        token = await token_of_cell(self._exchange, known, cell)
        version = known.told(arn).version
        around = self._exchange.around(notes[BASE])
        url = _confirm_url(notes[BASE], arn, token)
        text = confirmation(id, arn, token, url, now_ms(), around, version)
        retries = delivery(notes, known).retries
        sending = EndpointPost(notes[ENDPOINT], text, SUBSCRIBED, id, arn)
        for failures in range(1, retries.num_retries + 2):
            if await post(sending, self.reach) != "again":
                return
            if not await self._is_pending(space, topic, cell):
                return
            await asyncio.sleep(retries.seconds(failures))

    async def _tell_ended(self, known: TopicInfo, cell: SubscriptionCell) -> None:
        """Notify an endpoint that its subscription has ended.

        Retries follow the default policy, not that of the ended subscription: an endpoint that does
        not respond is not kept in memory for long.
        """
        notes, space, topic = dict(cell.notes), known.topic.space, known.topic.name
        home = home_of(space, self._usual) or self._usual
        arn, id = arn_of("sns", home, topic), str(uuid4())
        await self._exchange.prepare()
        ended = EndedSubscription(space, topic, known.shard, cell.name, now_ms(), notes)
        token = token_of(ended, self._exchange.signer)
        around, version = self._exchange.around(notes[BASE]), known.told(arn).version
        url, its = _confirm_url(notes[BASE], arn, token), f"{arn}:{cell.name}"
        text = confirmation(id, arn, token, url, now_ms(), around, version, ended=its)
        retries = RetryPolicy()
        sending = EndpointPost(notes[ENDPOINT], text, UNSUBSCRIBED, id, arn, its)
        for failures in range(1, retries.num_retries + 2):
            if await post(sending, self.reach) != "again":
                return
            await asyncio.sleep(retries.seconds(failures))

    async def _is_pending(self, space: str, topic: str, cell: SubscriptionCell) -> bool:
        try:
            known = await self._exchange.look(space, topic)
        except NotFound:
            return False
        cells = await known.subscriptions()
        return any(one.name == cell.name and PENDING in dict(one.notes) for one in cells)


def _confirm_url(base: str, topic: str, token: str) -> str:
    """Return the URL that confirms a subscription with a token."""
    return f"{base}{CONFIRM_PATH}?Action=ConfirmSubscription&TopicArn={topic}&Token={token}"


# --- Sends one message to an endpoint by HTTP ----------------------------------------------------

Outcome = Literal["done", "again", "never"]
"""`done`: accepted; `again`: failed, to be retried; `never`: refused for good."""

AGENT = "Amazon Simple Notification Service Agent"
"""User agent of SNS, which endpoints may check."""

_TOO_MANY = 429

_NOT_IN_LINE = re.compile(r"[^\x20-\x7e]")
_post_logger = logging.getLogger("millrace.server")


class EndpointPost(msgspec.Struct, frozen=True):
    """A message to send to an endpoint."""

    endpoint: str
    body: str
    kind: str
    """Notification, SubscriptionConfirmation or UnsubscribeConfirmation."""
    id: str
    topic: str
    subscription: str = ""
    """ARN of the subscription; empty if it is not confirmed."""
    is_raw: bool = False
    content_type: str = CONTENT_TYPE


@cache
def _context() -> ssl.SSLContext:
    """Return the TLS context, cached because loading the trusted certificates is slow."""
    return client_context()


async def post(sending: EndpointPost, reach: EndpointPolicy) -> Outcome:
    """Send a message if the endpoint policy allows it; return the outcome."""
    url = urlsplit(sending.endpoint)
    try:
        tls = _context() if url.scheme == "https" else None
        async with asyncio.timeout(limits.SNS_POST_SECONDS_MAX):
            port = url.port or (443 if tls is not None else 80)
            address = await reach.address(url.hostname or "", port)
            connection = await HttpConnection.make(url, tls, address)
            try:
                body = sending.body.encode()
                head = await connection.ask(_head(sending, len(body)), [body])
            finally:
                connection.close()
    except (ConnectionLost, OSError, UnicodeError):
        return "again"
    except Unreachable as error:
        # Retried: the name may get another address, or the server other settings.
        _post_logger.warning("an endpoint: %s", error)
        return "again"
    if 200 <= head.status < 300:
        return "done"
    # Errors of the client side are permanent; those of the server side and throttling are retried.
    return "again" if head.status >= 500 or head.status == _TOO_MANY else "never"


def _head(sending: EndpointPost, length: int) -> bytes:
    url = urlsplit(sending.endpoint)
    path = quote(url.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if url.query:
        path += f"?{url.query}"
    host = url.netloc.rpartition("@")[2]
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {host}",
        f"content-type: {sending.content_type}",
        f"content-length: {length}",
        f"user-agent: {AGENT}",
        f"{DELIVERY_MARK}: 1",
        f"x-amz-sns-message-type: {sending.kind}",
        f"x-amz-sns-message-id: {sending.id}",
        f"x-amz-sns-topic-arn: {sending.topic}",
    ]
    if sending.subscription:
        lines.append(f"x-amz-sns-subscription-arn: {sending.subscription}")
    if sending.is_raw:
        lines.append("x-amz-sns-rawdelivery: true")
    lines += ["connection: close", "", ""]
    # Values may contain characters of users: line breaks must not end a header early.
    return "\r\n".join(_NOT_IN_LINE.sub("", line) for line in lines).encode("ascii")
