"""The blob port: immutable files by name.

Images of commit groups and the Arrow files of their rows are blobs.

Rule 1: a blob is written once, and never changed; a second `put` of the same contents is no error.
Rule 2: every read verifies checksums of ours, in blocks, so that a range can be read alone.
Rule 3: nothing is deleted on inference (F1): only what its owner has named.

`tests.support.contracts.check_blobs` holds every implementation to this page.
"""

from __future__ import annotations

from typing import Protocol


class Blobs(Protocol):
    """Immutable files."""

    async def put(self, name: str, data: bytes) -> None:
        """Store a blob; return when it is durable. Repeating the call means the same.

        Raises:
            Exists: the name has other contents.
        """
        ...

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return a blob or a part of it, verified; shorter if the blob ends before.

        Raises:
            NotFound: there is no such blob.
            Corrupt: a block of it is damaged.
            BackendUnavailable: it could not be read.
        """
        ...

    async def names(self, prefix: str) -> list[str]:
        """Return the names that begin with `prefix`, sorted.

        Raises:
            BackendUnavailable: they could not be listed.
        """
        ...

    async def delete(self, name: str) -> None:
        """Delete a blob; a missing one is no error.

        Raises:
            BackendUnavailable: it may still be there.
        """
        ...
