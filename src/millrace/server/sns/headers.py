"""The headers and notes by which messages and subscriptions of SNS are known."""

from __future__ import annotations

from millrace.core.topic_cells import SubscriptionCell
from millrace.server.aws.known import PREFIX

TOPIC = f"{PREFIX}topic"
"""The ARN of the topic that a message was published to."""

ID = f"{PREFIX}id"
"""By which SNS knows the message."""

TIME = f"{PREFIX}time"
"""When the message was published, in milliseconds since 1970: it comes to each queue later."""

SUBJECT = f"{PREFIX}subject"
VERSION = f"{PREFIX}signature"
"""Of the signature, where it is not the first."""

ARRAYS = f"{PREFIX}arrays"
"""Of attributes that are arrays, which have a header for each element, the texts as they came."""

BODY_FOR = {"http": f"{PREFIX}body-http", "https": f"{PREFIX}body-https"}
"""What subscribers of a protocol get instead of the body."""

RAW = "raw:"
"""Before a topic's ARN, a note of a queue: what comes from there is handed out as it is."""

SUBSCRIPTION = "subscription:"
"""Before a topic's ARN, a note of a queue: the name of its subscription there."""

GUEST = "guest-"
"""Before such a note, where whoever subscribed the queue may publish to it and not manage it: of
these a queue has a bounded number, so that its owner's notes have room."""

PROTOCOL = f"{PREFIX}protocol"
ENDPOINT = f"{PREFIX}endpoint"
OWNER = f"{PREFIX}owner"
PRINCIPAL = f"{PREFIX}principal"
"""A note of a subscription: the ARN of the user who made it, as GetCallerIdentity returns it."""

TOKEN = f"{PREFIX}token"
"""A note of a subscription that an earlier version has made: by which its endpoint confirms it. No
client is told it, and it goes when it was used."""

PENDING = f"{PREFIX}pending"
"""A note of a subscription that was not confirmed: when its endpoint was asked last."""

BASE = f"{PREFIX}base"
"""A note of a subscription: where the server is, as its maker has it."""

HIDDEN = "sns."
"""Before the name of a subscription, the name of the queue of what waits to be sent to its
endpoint. No queue of SQS is called so: their names have no dots."""


def protocol_of(cell: SubscriptionCell) -> str:
    """That of a subscription; one that was not made by SNS is of a queue."""
    return dict(cell.notes).get(PROTOCOL, "sqs")


def is_endpoint(cell: SubscriptionCell) -> bool:
    """Whether a subscription is of an endpoint, with a queue that is its own."""
    is_own = cell.target.endswith(f"/{HIDDEN}{cell.name}")
    return is_own and dict(cell.notes).get(PROTOCOL) in ("http", "https")
