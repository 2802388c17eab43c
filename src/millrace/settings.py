"""The settings of a node: frozen values, read once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NoReturn

from millrace import limits
from millrace.core import exact
from millrace.errors import Invalid
from millrace.maintenance.bounds import SCRUB_BYTES_PER_SECOND, SCRUB_EVERY_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What may be chosen when a folder is opened."""

    segment_bytes: int = limits.SEGMENT_BYTES
    """Size of a new log segment; those that are there keep theirs."""
    log_segments_max: int = limits.LOG_SEGMENTS_MAX
    """How many segments the log may have; beyond it, publishing waits for sealing."""
    log_segments_free: int = limits.LOG_SEGMENTS_FREE
    """Segments that are kept ready ahead of need."""
    log_segments_unsealed: int = 8
    """Full segments that are left alone: what is settled within them is written only once."""
    checkpoint_seconds: float = limits.CHECKPOINT_SECONDS
    checkpoint_log_bytes: int = limits.CHECKPOINT_LOG_BYTES
    switch_interval_seconds: float | None = 0.0005
    """`sys.setswitchinterval` while the engine is open, if it is shorter than the one in force;
    None leaves it alone. Beside a busy thread, commits take ten times as long with the default."""
    follow_held_bytes: int | None = None
    """How much of the log is kept for an archive that lacks it; a quarter of what the log may have,
    if None. Beyond it the archive gets a gap."""
    disk_low: int | None = None
    """Free bytes on the disk below which publishing is refused; 128 MiB if None, 0 never refuses
    before it must."""
    memory_high: int | None = None
    """Bytes of memory (RssAnon of the process) above which publishing is refused; None: never."""
    scrub_bytes_per_second: int = SCRUB_BYTES_PER_SECOND
    """How fast sealed files and old segments are read again and compared with their sums; 0: not
    at all."""
    scrub_every: float = SCRUB_EVERY_SECONDS
    """Seconds from the beginning of one such pass to that of the next."""
    fork: bool = False
    """Open a copied folder as a new one: it gets an identity and a history of its own."""

    def __post_init__(self) -> None:
        """Refuse what could not work; `Invalid` names the field."""
        least, most = limits.SEGMENT_BYTES_MIN, limits.SEGMENT_BYTES_MAX
        size = _whole("segment_bytes", self.segment_bytes, least)
        if size > most:
            _refuse("segment_bytes", f"must be at most {most}", most)
        if size % limits.SECTOR_BYTES:
            what = f"must be a multiple of {limits.SECTOR_BYTES}"
            _refuse("segment_bytes", what, limits.SECTOR_BYTES)
        _whole("log_segments_free", self.log_segments_free, 1)
        unsealed = _whole("log_segments_unsealed", self.log_segments_unsealed, 0)
        # One is being written, one is ready to follow it, and the reserve is for settling.
        spare = limits.LOG_SEGMENTS_RESERVE + 2
        what = f", which is log_segments_unsealed and {spare} more"
        _whole("log_segments_max", self.log_segments_max, unsealed + spare, what)
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


def _whole(field: str, value: object, least: int, why: str = "") -> int:
    number = exact.whole(value)
    if number is None:
        _refuse(field, "must be a whole number")
    if number < least:
        _refuse(field, f"must be at least {least}{why}", least)
    return number


def _seconds(field: str, value: object) -> float:
    number = exact.number(value)
    if number is None or number in (math.inf, -math.inf):
        _refuse(field, "must be a number of seconds")
    return number


def _refuse(field: str, what: str, limit: int | None = None) -> NoReturn:
    raise Invalid(f"{field} {what}", field=field, limit=limit)
