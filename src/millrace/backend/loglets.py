"""The loglet port: replicated logs with one writer each, which any node can seal.

A loglet is written by one run of one node. Its records are numbered 1, 2, 3 …, and it ends with a
seal: afterwards nothing more is committed in it, whatever its writer does.

Rule 1: record n is committed when it *and all before it* are durable (X3). A record behind a gap or
a seal is not part of the loglet.
Rule 2: number n of a loglet is one record for ever: the writer's, or a seal. So a request with an
unknown outcome is asked again until the number has one of them.
Rule 3: all who seal a loglet get the same end. A seal outlives its loglet (X6).
Rule 4: records are deleted only after `trimmed` has moved in the registry (X4).

`tests.support.contracts.check_loglets` holds every implementation to this page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millrace.errors import Refused

LogletId = bytes
"""Sixteen random bytes: an id is never used again."""


class LogletSealed(Refused):
    """The loglet has ended before this number: the record is not part of it and never will be."""

    code = "loglet_sealed"


class LogletTrimmed(Refused):
    """The record was deleted, since an image contains it; it is refused, never skipped."""

    code = "loglet_trimmed"


class Loglets(Protocol):
    """Replicated logs by id."""

    async def append(self, loglet: LogletId, number: int, record: bytes) -> None:
        """Append a record; return when it and all before it are durable.

        Up to 16 calls and 64 MB are in flight at once, which the caller observes, in any order of
        their completion. Repeating a call is safe and means the same. While the backend does not
        answer, the call goes on.

        Raises:
            LogletSealed: the loglet has ended before this number.
            Corrupt: the number has another writer's record: two nodes use one loglet.
        """
        ...

    async def seal(self, loglet: LogletId) -> int:
        """Seal a loglet; return the number of its last record, 0 if it is empty.

        It may be called by any node, at any time, any number of times.
        """
        ...

    async def read(self, loglet: LogletId, first: int, last: int) -> Sequence[bytes]:
        """Return the records from `first` to `last`, which are known to be committed.

        While the backend does not answer, the call goes on, as all calls of this port do.

        Raises:
            LogletTrimmed: one of them was deleted.
            Corrupt: one of them is missing.
        """
        ...

    async def trim(self, loglet: LogletId, upto: int) -> None:
        """Delete the records up to a number.

        If it is cancelled, some may be left, and a request that the writer has given up may write
        one once more; a later call deletes them.
        """
        ...
