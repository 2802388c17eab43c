"""The settings of a node: immutable values, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

from millrace import limits
from millrace.core import plain_types
from millrace.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of an engine, given when a folder is opened."""

    segment_bytes: int = limits.SEGMENT_BYTES
    """Size of a new log segment in bytes; existing ones keep theirs."""
    log_segments_max: int = limits.LOG_SEGMENTS_MAX
    """Maximal number of log segments; beyond it, publishing waits for sealing."""
    log_segments_free: int = limits.LOG_SEGMENTS_FREE
    """Number of segments that are prepared ahead of need."""
    log_segments_unsealed: int = 8
    """Number of full segments that are left unsealed: a message settled within them is written only
    once."""
    checkpoint_seconds: float = limits.CHECKPOINT_SECONDS
    checkpoint_log_bytes: int = limits.CHECKPOINT_LOG_BYTES
    switch_interval_seconds: float | None = 0.0005
    """`sys.setswitchinterval` while the engine is open, if it is shorter than the current one; None
    leaves it unchanged. With Python's default and a busy thread, commits take ten times as long."""
    follow_held_bytes: int | None = None
    """Bytes of the log that are retained for an archive that lags; None: a quarter of the maximal
    log. Beyond it the archive gets a gap."""
    disk_low: int | None = None
    """Free bytes on the disk below which publishing is refused; None: 128 MiB, 0: only when the
    disk is full."""
    memory_high: int | None = None
    """Memory of the process in bytes (RssAnon) above which publishing is refused; None: no limit.
    """
    scrub_bytes_per_second: int = limits.SCRUB_BYTES_PER_SECOND
    """Rate at which sealed files and old segments are read again and checked; 0 disables scrubbing.
    """
    scrub_every: float = limits.SCRUB_EVERY_SECONDS
    """Seconds from the start of one scrubbing pass to the start of the next."""
    fork: bool = False
    """Open a copied folder as a new one, with an identity and a history of its own."""

    def __post_init__(self) -> None:
        """Validate all fields; `Invalid` names the field."""
        minimum, maximum = limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX
        size = _whole("segment_bytes", self.segment_bytes, minimum)
        if size > maximum:
            _refuse("segment_bytes", f"must be at most {maximum}", maximum)
        if size % limits.SECTOR_BYTES:
            text = f"must be a multiple of {limits.SECTOR_BYTES}"
            _refuse("segment_bytes", text, limits.SECTOR_BYTES)
        _whole("log_segments_free", self.log_segments_free, 1)
        unsealed = _whole("log_segments_unsealed", self.log_segments_unsealed, 0)
        # One is being written, one is ready to follow it, and the reserve is for settling.
        spare = limits.LOG_SEGMENTS_RESERVE + 2
        text = f", which is log_segments_unsealed and {spare} more"
        _whole("log_segments_max", self.log_segments_max, unsealed + spare, text)
        if not _seconds("checkpoint_seconds", self.checkpoint_seconds) >= 0:
            _refuse("checkpoint_seconds", "must be at least 0", 0)
        _whole("checkpoint_log_bytes", self.checkpoint_log_bytes, 0)
        interval = self.switch_interval_seconds
        if interval is not None and not _seconds("switch_interval_seconds", interval) > 0:
            _refuse("switch_interval_seconds", "must be above 0, or None", 0)
        if self.follow_held_bytes is not None:
            _whole("follow_held_bytes", self.follow_held_bytes, 0)
        for name, value in (("disk_low", self.disk_low), ("memory_high", self.memory_high)):
            if value is not None:
                _whole(name, value, 0)
        _whole("scrub_bytes_per_second", self.scrub_bytes_per_second, 0)
        if not _seconds("scrub_every", self.scrub_every) >= 0:
            _refuse("scrub_every", "must be at least 0", 0)
        if not isinstance(self.fork, bool):
            _refuse("fork", "must be True or False")


def _whole(field: str, value: object, minimum: int, reason: str = "") -> int:
    number = plain_types.whole(value)
    if number is None:
        _refuse(field, "must be a whole number")
    if number < minimum:
        _refuse(field, f"must be at least {minimum}{reason}", minimum)
    return number


def _seconds(field: str, value: object) -> float:
    number = plain_types.number(value)
    if number is None or number in (math.inf, -math.inf):
        _refuse(field, "must be a number of seconds")
    return number


def _refuse(field: str, what: str, limit: int | None = None) -> NoReturn:
    raise Invalid(f"{field} {what}", field=field, limit=limit)
