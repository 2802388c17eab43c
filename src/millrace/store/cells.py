"""Cells: the ordered key-value tables of the store's index.

This is the interface. `LmdbCells` implements it on disk, `MemoryCells` in the simulator, and
`tests.support.contracts.check_cells` tests both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from millrace import errors, limits


class Table(IntEnum):
    """The tables. The number is part of every value's checksum: never change or reuse it."""

    NODE = 0
    META = 1
    CELLS = 2
    KEYS = 3
    BLOCKS = 4
    DEATHS = 5
    FILES = 6


Writes = Mapping[Table, Mapping[bytes, bytes | None]]


class Cells(Protocol):
    """Ordered tables of small values.

    Any thread may read at any time; a read sees whole commits only. Keys have 1 to
    `CELL_KEY_BYTES_MAX` bytes, values up to `CELL_BYTES_MAX`; anything else is a programming error
    and raises `Fatal` before anything is written. After `close` every call raises `Closed`.
    """

    @property
    def short_of_space(self) -> bool:
        """True if the disk is full or nearly so: only commits that free space are safe."""
        ...

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of the keys, all from one commit; None for a missing key.

        Raises:
            Corrupt: the checksum of a value does not match.
        """
        ...

    def range(
        self, table: Table, low: bytes, high: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return up to `limit` cells with low <= key < high, all from one commit.

        They come in the order of their keys, or in reverse.

        Raises:
            Corrupt: the checksum of a value does not match.
        """
        ...

    def commit(self, writes: Writes) -> None:
        """Put every value, and delete every key whose value is None, atomically.

        When it returns, the commit survives any crash. `writes` must not change during the call.

        Raises:
            Full: not enough space, even without the ballast. Nothing was committed.
            Fatal: the outcome is unknown; reopen the cells before the next commit.
        """
        ...

    def maintain(self) -> None:
        """Restore the ballast after a full disk, and update `short_of_space`.

        Call it about as often as `commit`.
        """
        ...

    def check(self) -> list[str]:
        """Verify all values against checksums and counts; return the findings.

        It reads everything in one transaction: not for a busy engine.
        """
        ...

    def close(self) -> None:
        """Close the tables. Closing twice is harmless."""
        ...


def check_bounds(keys: Sequence[bytes], values: Sequence[bytes | None] = ()) -> None:
    """Raise `Fatal` if a key or a value exceeds the limits of a cell."""
    sizes = set(map(len, keys))
    if sizes and not 1 <= min(sizes) <= max(sizes) <= limits.CELL_KEY_BYTES_MAX:
        bound = limits.CELL_KEY_BYTES_MAX
        message = f"a key of a cell has 1 to {bound} bytes (CELL_KEY_BYTES_MAX), not {max(sizes)}"
        raise errors.Fatal(message, field="key", limit=bound)
    size = max(map(len, filter(None, values)), default=0)
    if size > limits.CELL_BYTES_MAX:
        bound = limits.CELL_BYTES_MAX
        message = f"a value of a cell has at most {bound} bytes (CELL_BYTES_MAX), not {size}"
        raise errors.Fatal(message, field="value", limit=bound)
