"""The bodies of Dynamiq's routes: what is read, and what is answered.

Rule 1: ids are texts of decimal digits. A text that is none is the id of no message.
Rule 2: a body that is UTF-8 is answered as a text. What is not is answered as Dynamiq did it, with
another character for each byte that does not fit, and beside it as it is, in base64.
"""

from __future__ import annotations

from base64 import b64encode

import msgspec

from millrace import limits
from millrace.client.settings import QueueSettings
from millrace.core import bounds, check
from millrace.core.message_id import IDS
from millrace.core.spec import QueueSpec
from millrace.decoding import json_decoder
from millrace.errors import Invalid
from millrace.server.dynamiq.table import QUEUE
from millrace.server.http.response import Response
from millrace.server.rest.route import decode, encode

TEXT = "text/plain; charset=utf-8"
MESSAGES = f"{QUEUE}/messages/{{messages}}"

TEXT_ERRORS = frozenset({("GET", QUEUE), ("GET", MESSAGES)})
"""Routes whose errors are texts in JSON; those of all others are objects."""

VISIBILITY_MS = 30_000
"""For how long a batch locks its partition, unless the queue says otherwise; as in Dynamiq."""

VISIBILITY_NOTE = "dynamiq.visibility_timeout_ms"
"""The note of a queue that says for how long a batch is locked."""

COMPRESSION = "zstd"
"""How messages are compressed, where they are."""


def error_out(text: str, *, is_text: bool) -> bytes:
    """Why something was not done."""
    return encode(text if is_text else {"error": text})


def text_out(text: str) -> Response:
    """An answer that is no JSON."""
    return Response(200, text.encode(), type=TEXT)


# --- Messages -----------------------------------------------------------------------------------


class MessageOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message."""

    id: str
    body: str
    body_base64: str | None = None
    """The body as it is, where that is no text."""


def message_out(id_: int | str, body: bytes) -> MessageOut:
    """A message, by its id."""
    try:
        return MessageOut(str(id_), body.decode())
    except UnicodeDecodeError:
        exact = b64encode(body).decode()
        return MessageOut(str(id_), body.decode(errors="replace"), exact)


def id_in(text: str) -> int | None:
    """An id; None if it is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(IDS))):
        return None
    number = int(text)
    return number if number < IDS else None


def ids_in(text: str) -> list[int]:
    """The ids among what stands between commas."""
    found = [id_in(one.strip()) for one in text.split(",")]
    return [one for one in found if one is not None]


def batch_in(text: str) -> int:
    """How many messages are wanted at most.

    Raises:
        Invalid: it is no number from 1 on.
    """
    wanted = id_in(text)
    if not wanted:
        raise Invalid(
            f"the size of a batch is {text[:40]!r}, not a whole number from 1 on", field="messages"
        )
    return min(wanted, limits.LEASE_MESSAGES_MAX)


# --- Settings -----------------------------------------------------------------------------------


class SettingsIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be changed; null says nothing, nor what is left out."""

    visibility_timeout: float | None = None
    min_partitions: int | None = None
    max_partitions: int | None = None
    max_partition_age: float | None = None
    compressed_messages: bool | None = None


_settings = json_decoder(SettingsIn)


def settings_in(body: bytes | bytearray | memoryview) -> SettingsIn:
    """What a body says; an empty one says nothing.

    Raises:
        Invalid: it is no such JSON; the error names the field.
    """
    return decode(_settings, body or b"{}")


def settings_of(told: SettingsIn, spec: QueueSpec) -> QueueSettings:
    """The same as settings of a queue that has those of `spec` now.

    Raises:
        Invalid, TooLarge: one of them, by the name that it was sent under.
    """
    found: QueueSettings = {}
    if told.visibility_timeout is not None:
        if told.visibility_timeout <= 0:
            raise Invalid(
                f"visibility_timeout is {told.visibility_timeout:g}, not a number of seconds above "
                "0: a batch is always locked",
                field="visibility_timeout",
            )
        locked_ms = check.millis(told.visibility_timeout, "visibility_timeout", limits.LEASE_MS_MAX)
        found["notes"] = {VISIBILITY_NOTE: str(locked_ms)}
    least, most = spec.partitions_min, spec.partitions_max
    if told.min_partitions is not None:
        least = check.count(told.min_partitions, "min_partitions", bounds.PARTITIONS_MAX)
        found["partitions_min"] = least
    if told.max_partitions is not None:
        most = check.count(told.max_partitions, "max_partitions", bounds.PARTITIONS_MAX)
        found["partitions_max"] = most
    if least > most:
        raise Invalid(
            f"min_partitions is {least}, above max_partitions, which is {most}",
            field="min_partitions",
        )
    if told.max_partition_age is not None:
        check.millis(told.max_partition_age, "max_partition_age", bounds.PARTITION_AGE_MS_MAX)
        found["partition_age"] = told.max_partition_age
    if told.compressed_messages is not None:
        found["compressed"] = COMPRESSION if told.compressed_messages else "none"
    return found


def visibility_ms(spec: QueueSpec) -> int:
    """For how long a batch of the queue is locked."""
    text = dict(spec.notes).get(VISIBILITY_NOTE, "")
    number = id_in(text) or VISIBILITY_MS
    return min(number, limits.LEASE_MS_MAX)


class QueueOut(msgspec.Struct, frozen=True, rename="pascal"):
    """A queue's settings, times in seconds."""

    visibility_timeout: float | int
    min_partitions: int
    max_partitions: int
    max_partition_age: float | int
    compressed_messages: bool
    partitions: int = msgspec.field(name="partitions")
    """How many there are now."""


def queue_out(spec: QueueSpec, partitions: int) -> QueueOut:
    """A queue as it is now."""
    return QueueOut(
        _seconds(visibility_ms(spec)),
        spec.partitions_min,
        spec.partitions_max,
        _seconds(spec.partition_age_ms),
        bool(spec.compressed),
        partitions,
    )


def _seconds(millis: int) -> float | int:
    """As Dynamiq writes it: without a point where none is needed."""
    whole, rest = divmod(millis, 1000)
    return millis / 1000 if rest else whole
