"""Wraps messages of a topic in the SNS envelope when they are received from a queue.

Rule: the envelope is made of the message's headers and the notes of its queue; no topic is read.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from millrace.core.model import Headers
from millrace.core.publishing.life_headers import SEQ_ROOM, TOPIC_SEQ
from millrace.errors import NotFound
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.message_attributes import AttributeValue
from millrace.server.aws.topic_envelope import EnvelopeContext, Notification, notification
from millrace.server.aws.topic_headers import (
    GUEST,
    ID,
    RAW,
    SUBJECT,
    SUBSCRIPTION,
    TIME,
    TOPIC,
    VERSION,
)

_SEQUENCE_BASE = 10**19
"""SequenceNumbers of FIFO topics have twenty digits."""


def topic_of(headers: Headers) -> str | None:
    """Return the ARN of the topic that a message came from, or None if it was sent to its queue."""
    for name, value in headers:
        if name == TOPIC:
            return value.decode(errors="replace")
    return None


def is_raw(notes: Mapping[str, str], topic: str) -> bool:
    """Return whether a queue with these notes gets messages of the topic by raw delivery."""
    return f"{RAW}{topic}" in notes or f"{GUEST}{RAW}{topic}" in notes


def sequence_of(seq: int) -> str:
    """Return the SequenceNumber of the message that has this seq in its topic."""
    return str(_SEQUENCE_BASE + seq)


def envelope_of(
    body: bytes,
    headers: Headers,
    attributes: Mapping[str, AttributeValue],
    time_ms: int,
    subscription: str,
    around: EnvelopeContext,
    sequence: str | None = None,
) -> str:
    """Return a message of a topic as the JSON of SNS.

    `attributes` are the message attributes in the headers, `subscription` is the ARN of the
    subscription. `time_ms` is the time of arrival in the queue, used if the headers have no publish
    time. `sequence` is the SequenceNumber for messages without one of their topic, which were
    published by an earlier version.
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
    """Return the ARN of the topic's subscription by a queue with these notes."""
    name = notes.get(f"{SUBSCRIPTION}{topic}") or notes.get(f"{GUEST}{SUBSCRIPTION}{topic}", "")
    return f"{topic}:{name}"


def _attribute(value: AttributeValue) -> tuple[str, str]:
    if value.binary_value is not None:
        return value.data_type, b64encode(value.binary_value).decode()
    return value.data_type, value.string_value or ""


# --- Copies raw message delivery to dead-letter queues -------------------------------------------
#
# Messages that a queue gets raw stay raw as dead letters: the dead-letter queue has the same
# notes, unless it is subscribed to the topic itself.


async def share_raw(call: AwsCall[Any], space: str, name: str) -> None:
    """Copy the raw-delivery notes of a queue to its dead-letter queue."""
    directory = call.aws.directory
    with suppress(NotFound):
        known = await directory.look(space, name)
        at, _, letters = known.spec.dead_letter.partition("/")
        if not letters:
            return
        dead = await directory.look(at, letters)
        changed: dict[str, str] = {}
        for guest in ("", GUEST):
            before = f"{guest}{SUBSCRIPTION}"
            topics = [note.removeprefix(before) for note in known.notes if note.startswith(before)]
            changed |= {
                f"{guest}{RAW}{topic}": known.notes.get(f"{guest}{RAW}{topic}", "")
                for topic in topics
                if f"{SUBSCRIPTION}{topic}" not in dead.notes
                and f"{GUEST}{SUBSCRIPTION}{topic}" not in dead.notes
                and dead.notes.get(f"{guest}{RAW}{topic}", "")
                != known.notes.get(f"{guest}{RAW}{topic}", "")
            }
        if changed:
            await dead.queue.configure(notes=changed)
            directory.forget(at, letters)
