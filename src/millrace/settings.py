"""The settings of a node: frozen values, read once."""

from __future__ import annotations

from dataclasses import dataclass

from millrace import limits


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
