"""Sends one message to an endpoint by HTTP."""

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
from millrace.rpc.http_connection import HttpConnection
from millrace.rpc.tls import client_context
from millrace.rpc.transport import ConnectionLost
from millrace.server.auth.authenticator import DELIVERY_MARK
from millrace.server.sns.delivery_policy import CONTENT_TYPE
from millrace.server.sns.endpoint_policy import EndpointPolicy, Unreachable

Outcome = Literal["done", "again", "never"]
"""`done`: accepted; `again`: failed, to be retried; `never`: refused for good."""

AGENT = "Amazon Simple Notification Service Agent"
"""User agent of SNS, which endpoints may check."""

_TOO_MANY = 429

_NOT_IN_LINE = re.compile(r"[^\x20-\x7e]")
_logger = logging.getLogger("millrace.server")


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
        _logger.warning("an endpoint: %s", error)
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
