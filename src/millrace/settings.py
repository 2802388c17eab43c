"""The settings of a node: frozen values, read once."""

from __future__ import annotations

from dataclasses import dataclass

from millrace import limits
from millrace.errors import Invalid


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
    fork: bool = False
    """Open a copied folder as a new one: it gets an identity and a history of its own."""

    def __post_init__(self) -> None:
        """Refuse what could not work; `Invalid` names the field."""
        sector = limits.SECTOR_BYTES
        if self.segment_bytes % sector:
            _refuse("segment_bytes", f"must be a multiple of {sector}", sector)
        _check_least("segment_bytes", self.segment_bytes, 2 * sector)
        _check_least("log_segments_free", self.log_segments_free, 1)
        _check_least("log_segments_unsealed", self.log_segments_unsealed, 0)
        # One is being written, one is ready to follow it, and the reserve is for settling.
        least = self.log_segments_unsealed + limits.LOG_SEGMENTS_RESERVE + 2
        if self.log_segments_max < least:
            what = f"must be at least {least}, which is log_segments_unsealed and "
            _refuse("log_segments_max", f"{what}{least - self.log_segments_unsealed} more", least)
        if not self.checkpoint_seconds >= 0:
            _refuse("checkpoint_seconds", "must be at least 0", 0)
        _check_least("checkpoint_log_bytes", self.checkpoint_log_bytes, 0)
        if self.switch_interval_seconds is not None and not self.switch_interval_seconds > 0:
            _refuse("switch_interval_seconds", "must be above 0, or None", 0)


def _check_least(field: str, value: int, least: int) -> None:
    if value < least:
        _refuse(field, f"must be at least {least}", least)


def _refuse(field: str, what: str, limit: int) -> None:
    raise Invalid(f"{field} {what}", field=field, limit=limit)
