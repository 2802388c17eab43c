"""Request and response bodies of Dynamiq's routes.

Rule 1: ids are texts of decimal digits. Any other text is the id of no message.
Rule 2: a body in UTF-8 is returned as text. Any other body is returned as Dynamiq did it, with a
replacement character for each invalid byte, and unchanged in base64 in a second field.
"""

from __future__ import annotations

from base64 import b64encode

import msgspec

from millrace import limits
from millrace.client.settings import QueueSettings
from millrace.core import bounds, validate
from millrace.core.format.message_id import IDS
from millrace.core.spec import QueueSpec
from millrace.decoding import json_decoder
from millrace.errors import Invalid
from millrace.server.dynamiq.route_table import QUEUE
from millrace.server.http.response import Response
from millrace.server.web.route import decode, encode

TEXT = "text/plain; charset=utf-8"
MESSAGES = f"{QUEUE}/messages/{{messages}}"

TEXT_ERRORS = frozenset({("GET", QUEUE), ("GET", MESSAGES)})
"""Routes whose errors are JSON strings; those of all other routes are objects."""

VISIBILITY_MS = 30_000
"""Default for the time that a batch locks its partition, in milliseconds; as in Dynamiq."""

VISIBILITY_NOTE = "dynamiq.visibility_timeout_ms"
"""The note of a queue with the time that a batch locks its partition, in milliseconds."""

COMPRESSION = "zstd"
"""The codec of queues with compressed messages."""


def error_out(text: str, *, is_text: bool) -> bytes:
    """Return the body of an error response."""
    return encode(text if is_text else {"error": text})


def text_out(text: str) -> Response:
    """Return a response in plain text."""
    return Response(200, text.encode(), type=TEXT)


# --- Messages -----------------------------------------------------------------------------------


class DynamiqMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message."""

    id: str
    body: str
    body_base64: str | None = None
    """The unchanged body, present if it is not text in UTF-8."""


def message_out(id_: int | str, body: bytes) -> DynamiqMessage:
    """Return a message's id and body in Dynamiq's form."""
    try:
        return DynamiqMessage(str(id_), body.decode())
    except UnicodeDecodeError:
        exact = b64encode(body).decode()
        return DynamiqMessage(str(id_), body.decode(errors="replace"), exact)


def id_in(text: str) -> int | None:
    """Parse an id; return None if the text is not one."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(IDS))):
        return None
    number = int(text)
    return number if number < IDS else None


def ids_in(text: str) -> list[int]:
    """Parse ids that are separated by commas; texts that are not ids are skipped."""
    found = [id_in(one.strip()) for one in text.split(",")]
    return [one for one in found if one is not None]


def batch_in(text: str) -> int:
    """Parse the size of a batch, reduced to the limit of one lease call.

    Raises:
        Invalid: it is not a number from 1 up.
    """
    wanted = id_in(text)
    if not wanted:
        raise Invalid(
            f"the size of a batch is {text[:40]!r}, not a whole number from 1 on", field="messages"
        )
    return min(wanted, limits.LEASE_MESSAGES_MAX)


# --- Settings -----------------------------------------------------------------------------------


class SettingsIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings to change; those that are omitted or null keep their values."""

    visibility_timeout: float | None = None
    min_partitions: int | None = None
    max_partitions: int | None = None
    max_partition_age: float | None = None
    compressed_messages: bool | None = None


_settings = json_decoder(SettingsIn)


def settings_in(body: bytes | bytearray | memoryview) -> SettingsIn:
    """Parse a body with settings; an empty body contains none.

    Raises:
        Invalid: it is not valid JSON of that form; the error names the field.
    """
    return decode(_settings, body or b"{}")


def settings_of(params: SettingsIn, spec: QueueSpec) -> QueueSettings:
    """Convert the settings for a queue whose present settings are `spec`.

    Raises:
        Invalid, TooLarge: a value is out of range; the error has the field's name in the
            request.
    """
    found: QueueSettings = {}
    if params.visibility_timeout is not None:
        if params.visibility_timeout <= 0:
            raise Invalid(
                f"visibility_timeout is {params.visibility_timeout:g}, not a number of seconds "
                "above 0: a batch is always locked",
                field="visibility_timeout",
            )
        locked_ms = validate.millis(
            params.visibility_timeout, "visibility_timeout", limits.LEASE_MS_MAX
        )
        found["notes"] = {VISIBILITY_NOTE: str(locked_ms)}
    least, most = spec.partitions_min, spec.partitions_max
    if params.min_partitions is not None:
        least = validate.count(params.min_partitions, "min_partitions", bounds.PARTITIONS_MAX)
        found["partitions_min"] = least
    if params.max_partitions is not None:
        most = validate.count(params.max_partitions, "max_partitions", bounds.PARTITIONS_MAX)
        found["partitions_max"] = most
    if least > most:
        raise Invalid(
            f"min_partitions is {least}, above max_partitions, which is {most}",
            field="min_partitions",
        )
    if params.max_partition_age is not None:
        validate.millis(params.max_partition_age, "max_partition_age", bounds.PARTITION_AGE_MS_MAX)
        found["partition_age"] = params.max_partition_age
    if params.compressed_messages is not None:
        found["compressed"] = COMPRESSION if params.compressed_messages else "none"
    return found


def visibility_ms(spec: QueueSpec) -> int:
    """Return the time that a batch locks its partition, in milliseconds."""
    text = dict(spec.notes).get(VISIBILITY_NOTE, "")
    number = id_in(text) or VISIBILITY_MS
    return min(number, limits.LEASE_MS_MAX)


class DynamiqQueue(msgspec.Struct, frozen=True, rename="pascal"):
    """A queue's settings, times in seconds."""

    visibility_timeout: float | int
    min_partitions: int
    max_partitions: int
    max_partition_age: float | int
    compressed_messages: bool
    partitions: int = msgspec.field(name="partitions")
    """Present number of partitions."""


def queue_out(spec: QueueSpec, partitions: int) -> DynamiqQueue:
    """Return a queue's settings in Dynamiq's form."""
    return DynamiqQueue(
        _seconds(visibility_ms(spec)),
        spec.partitions_min,
        spec.partitions_max,
        _seconds(spec.partition_age_ms),
        bool(spec.compressed),
        partitions,
    )


def _seconds(millis: int) -> float | int:
    """Convert to seconds: an integer if there is no fraction, as Dynamiq writes it."""
    whole, rest = divmod(millis, 1000)
    return millis / 1000 if rest else whole
