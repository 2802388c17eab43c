"""Limits of SQS that an operator can set; the defaults are those of AWS."""

from __future__ import annotations

import msgspec

from millrace import limits


class SqsLimits(msgspec.Struct, frozen=True):
    """Limits of one queue, message or call."""

    message_bytes: int = limits.SQS_MESSAGE_BYTES_MAX
    batch: int = limits.SQS_BATCH_MAX
    in_flight: int = limits.SQS_IN_FLIGHT_MAX
    visibility_seconds: int = limits.SQS_VISIBILITY_SECONDS_MAX
    cooldown_seconds: int = 0
    """Cooldown after a purge or delete, until the queue can be purged or created again."""


AS_AWS = SqsLimits()
