"""What subscribers are handed: a message of a topic within the JSON that SNS puts around it.

A message is stored as it was published. What is around it is made when it is handed out, by the
SQS face to whoever receives it, and by the deliverer to endpoints. So nothing is stored twice, and
a subscription may change to raw delivery while messages wait.

Rule: this reads nothing but what it is given; the same is written for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

SUBSCRIBED = "SubscriptionConfirmation"
UNSUBSCRIBED = "UnsubscribeConfirmation"
"""What endpoints are asked when their subscription begins, and told when it has ended."""

Sign = Callable[[str, str], str]
"""The signature of a text, in Base64, by a version of signatures: "1" or "2"."""


class Notification(msgspec.Struct, frozen=True):
    """A message of a topic."""

    id: str
    topic: str
    """Its ARN."""
    message: str
    time_ms: int
    subject: str | None = None
    attributes: Mapping[str, tuple[str, str]] = {}
    """Type and value by name; of binary ones the value is Base64."""
    sequence: str | None = None
    """Of FIFO topics: where it stands."""
    version: str = "1"
    """Of its signature."""


class Around(msgspec.Struct, frozen=True):
    """What the server adds: who signs, and where its addresses begin."""

    sign: Sign
    base: str
    """As http://HOST:PORT."""
    certificate: str
    """The path of the certificate."""


def notification(note: Notification, around: Around, subscription: str) -> str:
    """The JSON of a message, for the subscription of this ARN."""
    time = time_of(note.time_ms)
    signed = {
        "Message": note.message,
        "MessageId": note.id,
        "Subject": note.subject,
        "Timestamp": time,
        "TopicArn": note.topic,
        "Type": "Notification",
    }
    # What FIFO topics have is not signed, as with SNS.
    is_signed = not note.topic.endswith(".fifo")
    fields: dict[str, object] = {
        "Type": "Notification",
        "MessageId": note.id,
        "SequenceNumber": note.sequence,
        "TopicArn": note.topic,
        "Subject": note.subject,
        "Message": note.message,
        "Timestamp": time,
        **(_signature(signed, note.version, around) if is_signed else {}),
        "UnsubscribeURL": unsubscribe_url(around.base, subscription),
    }
    if note.attributes:
        fields["MessageAttributes"] = {
            name: {"Type": kind, "Value": value}
            for name, (kind, value) in sorted(note.attributes.items())
        }
    return written(fields)


def confirmation(
    id: str,
    topic: str,
    token: str,
    url: str,
    time_ms: int,
    around: Around,
    version: str = "1",
    *,
    ended: str = "",
) -> str:
    """The JSON by which an endpoint is asked whether it wants what a topic has; or, where `ended`
    is the ARN of its subscription, told that it ended, and asked whether it wants it back."""
    kind = UNSUBSCRIBED if ended else SUBSCRIBED
    message = (
        f"You have chosen to deactivate subscription {ended}.\nTo cancel this operation and "
        "restore the subscription, visit the SubscribeURL included in this message."
        if ended
        else f"You have chosen to subscribe to the topic {topic}.\n"
        "To confirm the subscription, visit the SubscribeURL included in this message."
    )
    time = time_of(time_ms)
    signed = {
        "Message": message,
        "MessageId": id,
        "SubscribeURL": url,
        "Timestamp": time,
        "Token": token,
        "TopicArn": topic,
        "Type": kind,
    }
    return written(
        {
            "Type": kind,
            "MessageId": id,
            "Token": token,
            "TopicArn": topic,
            "Message": message,
            "SubscribeURL": url,
            "Timestamp": time,
            **_signature(signed, version, around),
        }
    )


def _signature(signed: Mapping[str, str | None], version: str, around: Around) -> dict[str, object]:
    text = "".join(
        f"{name}\n{value}\n" for name, value in sorted(signed.items()) if value is not None
    )
    return {
        "SignatureVersion": version,
        "Signature": around.sign(text, version),
        "SigningCertURL": f"{around.base}{around.certificate}",
    }


def written(fields: Mapping[str, object]) -> str:
    """JSON as SNS writes it: a line for each field that says something."""
    lines = [
        f'  "{name}" : {msgspec.json.encode(value).decode()}'
        for name, value in fields.items()
        if value is not None
    ]
    return "{\n" + ",\n".join(lines) + "\n}"


def unsubscribe_url(base: str, subscription: str) -> str:
    """Where a subscription is ended."""
    return f"{base}/?Action=Unsubscribe&SubscriptionArn={quote(subscription, safe=':')}"


def time_of(time_ms: int) -> str:
    """A time as SNS writes it."""
    at = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"
