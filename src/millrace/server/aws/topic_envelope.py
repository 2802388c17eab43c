"""The JSON envelope of SNS messages: notifications and confirmation requests, with signatures.

Messages are stored as published. The envelope is added on delivery, by SQS receives and by the
delivery to endpoints. So nothing is stored twice, and a subscription can switch to raw delivery
while messages wait.

Rule: the functions are pure: the same input gives the same envelope.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec

SUBSCRIBED = "SubscriptionConfirmation"
UNSUBSCRIBED = "UnsubscribeConfirmation"
"""Types of the messages that ask an endpoint to confirm a subscription, and notify it of the end.
"""

Sign = Callable[[str, str], str]
"""Signs a text by a signature version, "1" or "2"; returns Base64."""


class Notification(msgspec.Struct, frozen=True):
    """A message of a topic."""

    id: str
    topic: str
    """ARN of the topic."""
    message: str
    time_ms: int
    subject: str | None = None
    attributes: Mapping[str, tuple[str, str]] = {}
    """Type and value by name; binary values are in Base64."""
    sequence: str | None = None
    """SequenceNumber of a message of a FIFO topic."""
    version: str = "1"
    """The signature version."""


class EnvelopeContext(msgspec.Struct, frozen=True):
    """Signer and URLs of the server for envelopes."""

    sign: Sign
    base: str
    """Base URL, as http://HOST:PORT."""
    certificate: str
    """The path of the certificate."""


def notification(note: Notification, around: EnvelopeContext, subscription: str) -> str:
    """Return the JSON of a message for the subscription of this ARN."""
    time = time_of(note.time_ms)
    signed = {
        "Message": note.message,
        "MessageId": note.id,
        "Subject": note.subject,
        "Timestamp": time,
        "TopicArn": note.topic,
        "Type": "Notification",
    }
    # As in SNS, messages of FIFO topics are not signed.
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
    around: EnvelopeContext,
    version: str = "1",
    *,
    ended: str = "",
) -> str:
    """Return the JSON that asks an endpoint to confirm a subscription.

    If `ended` is the ARN of its subscription, it notifies the endpoint that the subscription ended
    and asks whether to restore it.
    """
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


def _signature(
    signed: Mapping[str, str | None], version: str, around: EnvelopeContext
) -> dict[str, object]:
    text = "".join(
        f"{name}\n{value}\n" for name, value in sorted(signed.items()) if value is not None
    )
    return {
        "SignatureVersion": version,
        "Signature": around.sign(text, version),
        "SigningCertURL": f"{around.base}{around.certificate}",
    }


def written(fields: Mapping[str, object]) -> str:
    """Return JSON in the layout of SNS: one line for each field with a value."""
    lines = [
        f'  "{name}" : {msgspec.json.encode(value).decode()}'
        for name, value in fields.items()
        if value is not None
    ]
    return "{\n" + ",\n".join(lines) + "\n}"


def unsubscribe_url(base: str, subscription: str) -> str:
    """Return the unsubscribe link of a subscription."""
    return f"{base}/?Action=Unsubscribe&SubscriptionArn={quote(subscription, safe=':')}"


def time_of(time_ms: int) -> str:
    """Return a time in the format of SNS."""
    at = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"
