"""Disk and memory watermarks, beyond which publishing is refused.

Rule 1: beyond a watermark, publishing, staging and creating queues are refused at once, with the
limit and a retry delay. Leasing, settling and deleting go on, because they free space. So do
cursors, sessions and settings, without which a restarted server could serve no client.
Rule 2: the refusal ends by itself, with hysteresis, so that it does not toggle with every message.
Rule 3: the start and the end of a refusal are logged once each.
Rule 4: audit records (`NodeMaintenance.keep_room`) may use a small reserve during a shortage;
otherwise nobody could purge, delete or revoke. It is renewed when the shortage ends. One owner gets
up to half of what the others have left, so that there is always some for another one.
Rule 5: measurements come from outside, and are checked in the rounds of the checkpointer.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from millrace import limits
from millrace.errors import Full

_logger = logging.getLogger("millrace")

_STATUS = Path("/proc/self/status")


class AuditReserve:
    """Room for audit records while everything else that grows is refused."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._taken: dict[bytes, int] = {}
        self._owed: dict[bytes, int] = {}

    def take(self, owner: bytes, size: int) -> bool:
        """Reserve room for an audit record and for a second one of its size about the outcome.

        Returns False if the owner's share does not suffice.
        """
        size = 2 * (size + limits.RESERVE_NOTE_BYTES)
        taken = self._taken.get(owner, 0)
        if taken + size > (self._left + taken) // 2:
            return False
        self._left -= size
        self._taken[owner] = taken + size
        self._owed[owner] = self._owed.get(owner, 0) + 1
        return True

    def end(self, owner: bytes) -> bool:
        """Use the room for an outcome; return True if one of the owner's records lacked it."""
        owed = self._owed.get(owner, 0)
        self._owed[owner] = max(owed - 1, 0)
        return owed > 0

    def renew(self) -> None:
        """Restore the whole reserve."""
        if self._taken:
            self._left = self._size
            self._taken.clear()
        self._owed.clear()


class Watermarks:
    """Decides whether requests that grow are accepted; call `measure` periodically."""

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
        reserve_bytes = limits.RESERVE_BYTES_MAX
        self.reserve = AuditReserve(
            min(reserve_bytes, disk_low // limits.RESERVE_SHARE) if disk_low else reserve_bytes
        )
        """Room for audit records during a shortage."""
        self.refusal: Full | None = None
        """The error with which requests that grow are refused; None if they are accepted."""

    @property
    def is_short_of_memory(self) -> bool:
        """True if the overlay should be flushed to save memory."""
        return self.refusal is not None and self.refusal.field == "memory_high"

    def measure(self, *, is_full: bool = False) -> None:
        """Measure disk and memory, and decide anew.

        `is_full`: the log or the index has no room, whatever the watermarks say.
        """
        previous = self.refusal.field if self.refusal is not None else None
        self.refusal = self._judge_disk(is_low=previous == "disk_low") or self._judge_memory(
            is_high=previous == "memory_high"
        )
        current = self.refusal.field if self.refusal is not None else None
        if self.refusal is not None and current != previous:
            _logger.warning("publishing is refused: %s", self.refusal.message)
        elif previous is not None and current is None:
            _logger.warning("publishing is accepted again: %s is no longer exceeded", previous)
        if self.refusal is None and not is_full:
            self.reserve.renew()

    def check(self) -> None:
        """Refuse a request that grows if disk or memory is short.

        Raises:
            Full: it names the setting and its limit.
        """
        if self.refusal is not None:
            raise self.refusal.again()

    def _judge_disk(self, *, is_low: bool) -> Full | None:
        threshold = self._disk_low
        if not threshold:
            return None
        if is_low:
            threshold += threshold // limits.WATERMARK_SHARE
        free = self._free_bytes()
        if free >= threshold:
            return None
        return Full(
            f"the disk has {free} bytes left, and disk_low is {self._disk_low}: settle or purge, "
            f"or give it more space; messages are taken again from {threshold} on",
            field="disk_low",
            limit=self._disk_low,
            after_ms=limits.WATERMARK_AFTER_MS,
        )

    def _judge_memory(self, *, is_high: bool) -> Full | None:
        threshold = self._memory_high
        if threshold is None:
            return None
        if is_high:
            self._trim()
            threshold -= threshold // limits.WATERMARK_SHARE
        used = self._used_bytes()
        if used <= threshold:
            return None
        return Full(
            f"the process holds {used} bytes, and memory_high is {self._memory_high}: let some "
            "work be done first, or allow more",
            field="memory_high",
            limit=self._memory_high,
            after_ms=limits.WATERMARK_AFTER_MS,
        )


def memory_used() -> int:
    """Return the anonymous memory of the process in bytes (RssAnon); 0 if it is unknown."""
    with suppress(OSError, ValueError, IndexError):
        for line in _STATUS.read_bytes().splitlines():
            if line.startswith(b"RssAnon"):
                return int(line.split()[1]) * 1024
    return 0


def trim_heap() -> None:
    """Return unused heap memory to the system, if the C library can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
