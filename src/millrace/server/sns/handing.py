"""Handing out what came from a topic.

Rule: what is around a message is made here, from its headers and from the notes of the queue that
it is handed out from; no topic is looked at.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

from millrace.core.carry import SEQ_ROOM, TOPIC_SEQ
from millrace.core.model import Headers
from millrace.server.sns.envelope import Around, Notification, notification
from millrace.server.sns.headers import GUEST, ID, RAW, SUBJECT, SUBSCRIPTION, TIME, TOPIC, VERSION
from millrace.server.sqs.shapes import AttributeValue

_SEQUENCE_BASE = 10**19
"""Numbers of FIFO topics have twenty digits."""


def topic_of(headers: Headers) -> str | None:
    """The ARN of the topic that a message came from; None: it was sent to its queue."""
    for name, value in headers:
        if name == TOPIC:
            return value.decode(errors="replace")
    return None


def is_raw(notes: Mapping[str, str], topic: str) -> bool:
    """Whether a queue with these notes hands out what comes from the topic as it is."""
    return f"{RAW}{topic}" in notes or f"{GUEST}{RAW}{topic}" in notes


def sequence_of(seq: int) -> str:
    """Return the SequenceNumber of the message that has this seq in its topic."""
    return str(_SEQUENCE_BASE + seq)


def handed(
    body: bytes,
    headers: Headers,
    attributes: Mapping[str, AttributeValue],
    time_ms: int,
    subscription: str,
    around: Around,
    sequence: str | None = None,
) -> str:
    """The JSON in which a message of a topic is handed out.

    `attributes` are those that the headers are; `subscription` the ARN of whose it is; `time_ms`
    when it came to its queue, which counts where the headers do not say when it was published.
    `sequence` is the SequenceNumber of a message without that of its topic, which messages have
    that were published by an earlier version.
    """
    own = dict(headers)
    seq = own.get(TOPIC_SEQ, b"")
    if sequence is not None and seq.isdigit() and len(seq) == len(SEQ_ROOM) and seq != SEQ_ROOM:
        sequence = sequence_of(int(seq))
    subject = own.get(SUBJECT)
    published = own.get(TIME, b"")
    return notification(
        Notification(
            own.get(ID, b"").decode(errors="replace"),
            own.get(TOPIC, b"").decode(errors="replace"),
            body.decode(errors="replace"),
            int(published) if published.isdigit() and len(published) < 15 else time_ms,
            None if subject is None else subject.decode(errors="replace"),
            {name: _attribute(value) for name, value in attributes.items()},
            sequence,
            own.get(VERSION, b"1").decode(errors="replace"),
        ),
        around,
        subscription,
    )


def subscription_of(notes: Mapping[str, str], topic: str) -> str:
    """The ARN of the subscription by which a queue with these notes gets what the topic has."""
    name = notes.get(f"{SUBSCRIPTION}{topic}") or notes.get(f"{GUEST}{SUBSCRIPTION}{topic}", "")
    return f"{topic}:{name}"


def _attribute(value: AttributeValue) -> tuple[str, str]:
    if value.binary_value is not None:
        return value.data_type, b64encode(value.binary_value).decode()
    return value.data_type, value.string_value or ""
