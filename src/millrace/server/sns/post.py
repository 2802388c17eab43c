"""Sending one message to an endpoint by HTTP."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from functools import cache
from typing import Literal
from urllib.parse import quote, urlsplit

import msgspec

from millrace import limits
from millrace.client.http_connection import HttpConnection
from millrace.client.line import Lost
from millrace.client.tls import client_context
from millrace.server.guard import DELIVERY_MARK
from millrace.server.sns.delivery_policy import CONTENT_TYPE
from millrace.server.sns.reach import Reach, Unreachable

Outcome = Literal["done", "again", "never"]
"""The endpoint has it; it may take it later; it will never take it."""

AGENT = "Amazon Simple Notification Service Agent"
"""As which SNS speaks; endpoints may look at it."""

_TOO_MANY = 429

_NOT_IN_LINE = re.compile(r"[^\x20-\x7e]")
_logger = logging.getLogger("millrace.server")


class Sending(msgspec.Struct, frozen=True):
    """A message on its way to an endpoint."""

    endpoint: str
    body: str
    kind: str
    """Notification, SubscriptionConfirmation or UnsubscribeConfirmation."""
    id: str
    topic: str
    subscription: str = ""
    """Its ARN; empty: it is not confirmed."""
    is_raw: bool = False
    content_type: str = CONTENT_TYPE


@cache
def _context() -> ssl.SSLContext:
    """To read the authorities that are trusted takes a while."""
    return client_context()


async def post(sending: Sending, reach: Reach) -> Outcome:
    """Send a message, if it may be sent there; returns what the endpoint made of it."""
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
    except (Lost, OSError, UnicodeError):
        return "again"
    except Unreachable as error:
        # Its name may have another address later, and the server other settings.
        _logger.warning("an endpoint: %s", error)
        return "again"
    if 200 <= head.status < 300:
        return "done"
    # What the endpoint refuses it refuses for good; only it may be in trouble, or have too much.
    return "again" if head.status >= 500 or head.status == _TOO_MANY else "never"


def _head(sending: Sending, length: int) -> bytes:
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
    # Some of it was published by others: whatever it is, no line ends before its end.
    return "\r\n".join(_NOT_IN_LINE.sub("", line) for line in lines).encode("ascii")
