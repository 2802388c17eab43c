"""The limits of SQS that an operator may set; unless they do, they are those of AWS."""

from __future__ import annotations

import msgspec

from millrace import limits


class Bounds(msgspec.Struct, frozen=True):
    """How much one queue, message or call may have."""

    message_bytes: int = limits.SQS_MESSAGE_BYTES_MAX
    batch: int = limits.SQS_BATCH_MAX
    in_flight: int = limits.SQS_IN_FLIGHT_MAX
    visibility_seconds: int = limits.SQS_VISIBILITY_SECONDS_MAX
    cooldown_seconds: int = 0
    """For how long a queue is not purged again, nor made anew after it was deleted."""


AS_AWS = Bounds()
