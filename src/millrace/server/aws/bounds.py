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


AS_AWS = Bounds()
