"""Watermarks: what there must be of disk and memory for messages to be taken.

Rule 1: below the mark, publishing, staging and new queues are refused at once, with the limit and
when to come again. Leasing, settling and deleting go on: they are what makes room. So do cursors,
sessions and settings: without them a server that was started again could serve nobody.
Rule 2: it ends by itself, at a mark that lies a little further, so that it does not come and go
with every message.
Rule 3: the beginning and the end of a refusal are logged, once each.
Rule 4: notes of acts (`FolderCare.keep_room`) may use a small reserve meanwhile, or nobody could
purge, delete or revoke. It is renewed when the shortage has ended. One owner takes up to half of
what the others have left of it: there is always some for one more.
Rule 5: what is measured comes in from outside, and is looked at by whoever goes round anyway.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from millrace.errors import Full
from millrace.maintenance import bounds

_logger = logging.getLogger("millrace")

_STATUS = Path("/proc/self/status")


class Reserve:
    """Room that a few may use where nothing else may grow."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._taken: dict[bytes, int] = {}
        self._owed: dict[bytes, int] = {}

    def take(self, owner: bytes, size: int) -> bool:
        """Take room for a note and for one more of its size that belongs to it, by which an owner
        says later how the first one ended; whether there was so much for them."""
        size = 2 * (size + bounds.RESERVE_NOTE_BYTES)
        taken = self._taken.get(owner, 0)
        if taken + size > (self._left + taken) // 2:
            return False
        self._left -= size
        self._taken[owner] = taken + size
        self._owed[owner] = self._owed.get(owner, 0) + 1
        return True

    def end(self, owner: bytes) -> bool:
        """Use the room for a second note; whether there is a first one without."""
        owed = self._owed.get(owner, 0)
        self._owed[owner] = max(owed - 1, 0)
        return owed > 0

    def renew(self) -> None:
        """All of it is there again."""
        if self._taken:
            self._left = self._size
            self._taken.clear()
        self._owed.clear()


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
        most = bounds.RESERVE_BYTES_MAX
        self.reserve = Reserve(min(most, disk_low // bounds.RESERVE_SHARE) if disk_low else most)
        """For notes of acts, while there is too little."""
        self.refusal: Full | None = None
        """Why nothing may grow, at the moment."""

    @property
    def is_short_of_memory(self) -> bool:
        """Whether what is held in memory should be written down."""
        return self.refusal is not None and self.refusal.field == "memory_high"

    def look(self, *, is_full: bool = False) -> None:
        """Measure, and judge anew; `is_full`: the log or the index has no room, whatever this says
        of the disk."""
        was = self.refusal.field if self.refusal is not None else None
        self.refusal = self._judge_disk(is_low=was == "disk_low") or self._judge_memory(
            is_high=was == "memory_high"
        )
        now = self.refusal.field if self.refusal is not None else None
        if self.refusal is not None and now != was:
            _logger.warning("publishing is refused: %s", self.refusal.message)
        elif was is not None and now is None:
            _logger.warning("publishing is accepted again: %s is no longer exceeded", was)
        if self.refusal is None and not is_full:
            self.reserve.renew()

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
