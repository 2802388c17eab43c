"""Watermarks: what there must be of disk and memory for messages to be taken.

Rule 1: below the mark, publishing, staging and new queues are refused at once, with the limit and
when to come again. Leasing, settling and deleting go on: they are what makes room. So do cursors,
sessions and settings: without them a server that was started again could serve nobody.
Rule 2: it ends by itself, at a mark that lies a little further, so that it does not come and go
with every message.
Rule 3: what is measured comes in from outside, and is looked at by whoever goes round anyway.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from millrace.care import bounds
from millrace.errors import Full

_STATUS = Path("/proc/self/status")


class Watermarks:
    """Says whether something may grow; `look` from time to time."""

    def __init__(
        self,
        *,
        disk_low: int,
        memory_high: int | None,
        free_bytes: Callable[[], int],
        used_bytes: Callable[[], int],
        trim: Callable[[], None],
    ) -> None:
        self._disk_low = disk_low
        self._memory_high = memory_high
        self._free_bytes = free_bytes
        self._used_bytes = used_bytes
        self._trim = trim
        self.refusal: Full | None = None
        """Why nothing may grow, at the moment."""

    @property
    def is_short_of_memory(self) -> bool:
        """Whether what is held in memory should be written down."""
        return self.refusal is not None and self.refusal.field == "memory_high"

    def look(self) -> None:
        """Measure, and judge anew."""
        was = self.refusal.field if self.refusal is not None else None
        self.refusal = self._judge_disk(is_low=was == "disk_low") or self._judge_memory(
            is_high=was == "memory_high"
        )

    def check(self) -> None:
        """Refuse what grows, if there is not enough.

        Raises:
            Full: it names the setting and its limit.
        """
        if self.refusal is not None:
            raise self.refusal.again()

    def _judge_disk(self, *, is_low: bool) -> Full | None:
        wanted = self._disk_low
        if not wanted:
            return None
        if is_low:
            wanted += wanted // bounds.WATERMARK_SHARE
        free = self._free_bytes()
        if free >= wanted:
            return None
        return Full(
            f"the disk has {free} bytes left, and disk_low is {self._disk_low}: settle or purge, "
            f"or give it more space; messages are taken again from {wanted} on",
            field="disk_low",
            limit=self._disk_low,
            after_ms=bounds.WATERMARK_AFTER_MS,
        )

    def _judge_memory(self, *, is_high: bool) -> Full | None:
        allowed = self._memory_high
        if allowed is None:
            return None
        if is_high:
            self._trim()
            allowed -= allowed // bounds.WATERMARK_SHARE
        used = self._used_bytes()
        if used <= allowed:
            return None
        return Full(
            f"the process holds {used} bytes, and memory_high is {self._memory_high}: let some "
            "work be done first, or allow more",
            field="memory_high",
            limit=self._memory_high,
            after_ms=bounds.WATERMARK_AFTER_MS,
        )


def memory_used() -> int:
    """Bytes that the process holds and that are nobody else's (RssAnon); 0 where it is not told."""
    with suppress(OSError, ValueError, IndexError):
        for line in _STATUS.read_bytes().splitlines():
            if line.startswith(b"RssAnon"):
                return int(line.split()[1]) * 1024
    return 0


def give_back() -> None:
    """Have the C library give back what it keeps for later, where it can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
