"""Headers of SNS messages, and notes of SNS subscriptions and their queues."""

from __future__ import annotations

from millrace.core.cells import SubscriptionCell
from millrace.server.aws.queue_info import PREFIX

TOPIC = f"{PREFIX}topic"
"""The ARN of the topic that a message was published to."""

ID = f"{PREFIX}id"
"""The SNS message id."""

TIME = f"{PREFIX}time"
"""Time of publishing in milliseconds since 1970; each queue gets the message later."""

SUBJECT = f"{PREFIX}subject"
VERSION = f"{PREFIX}signature"
"""The signature version, if it is not 1."""

ARRAYS = f"{PREFIX}arrays"
"""The original texts of array attributes, which are stored as one header for each element."""

BODY_FOR = {"http": f"{PREFIX}body-http", "https": f"{PREFIX}body-https"}
"""The texts for subscribers of a protocol, if they differ from the body."""

RAW = "raw:"
"""With a topic's ARN, a note of a queue: messages of the topic are delivered raw."""

SUBSCRIPTION = "subscription:"
"""With a topic's ARN, a note of a queue: the name of its subscription to the topic."""

GUEST = "guest-"
"""Prefix of such a note if the subscriber may publish to the queue but not manage it. A queue has a
bounded number of these, so that notes of its owner have room.
"""

PROTOCOL = f"{PREFIX}protocol"
ENDPOINT = f"{PREFIX}endpoint"
OWNER = f"{PREFIX}owner"
PRINCIPAL = f"{PREFIX}principal"
"""A note of a subscription: the ARN of the user who created it, as GetCallerIdentity returns it."""

TOKEN = f"{PREFIX}token"
"""A note of a subscription of an earlier version: its confirmation token, which no client can read
and which is removed after use.
"""

PENDING = f"{PREFIX}pending"
"""A note of a pending subscription: the time of the last confirmation request."""

BASE = f"{PREFIX}base"
"""A note of a subscription: the base URL of the server when it was created."""

HIDDEN = "sns."
"""With the name of a subscription, the name of the hidden queue of its endpoint. No queue of SQS
has such a name: they contain no dots.
"""


def protocol_of(cell: SubscriptionCell) -> str:
    """Return the protocol of a subscription; `sqs` if another API created it."""
    return dict(cell.notes).get(PROTOCOL, "sqs")


def is_endpoint(cell: SubscriptionCell) -> bool:
    """Return whether a subscription belongs to an HTTP endpoint with a hidden queue of its own."""
    is_own = cell.target.endswith(f"/{HIDDEN}{cell.name}")
    return is_own and dict(cell.notes).get(PROTOCOL) in ("http", "https")
