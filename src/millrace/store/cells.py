"""Cells: the ordered tables of small values that are the store's index.

This is the promise. `LmdbCells` keeps it on disk, `MemoryCells` in the simulator, and
`tests.support.contracts.check_cells` holds both to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol

from millrace import errors, limits


class Table(IntEnum):
    """The tables. A number is part of every stamp: it is never changed, and never used again."""

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
    `CELL_KEY_BYTES_MAX` bytes, values up to `CELL_BYTES_MAX`; anything else is a mistake of the
    program and raises `Fatal` before anything is written. After `close` every call raises `Closed`.
    """

    @property
    def short_of_space(self) -> bool:
        """The disk is full or nearly so: commit what frees space, and nothing that takes more."""
        ...

    def get(self, table: Table, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the keys' values, all from one commit, None where there is none.

        Raises:
            Corrupt: a value is not the one that was written under its key.
        """
        ...

    def range(
        self, table: Table, low: bytes, high: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return up to `limit` cells with low <= key < high, all from one commit.

        They come in the order of their keys, or from the last one backwards.

        Raises:
            Corrupt: a value is not the one that was written under its key.
        """
        ...

    def commit(self, writes: Writes) -> None:
        """Put every value, and delete every key whose value is None; all of it or nothing.

        When it returns, the commit survives any crash. `writes` must not change meanwhile.

        Raises:
            Full: there is no room, not even without the ballast. Nothing was committed.
            Fatal: the outcome is unknown; nothing may be committed before the cells are reopened.
        """
        ...

    def care(self) -> None:
        """Look after the space: restore what a full disk took, and judge `short_of_space` anew.

        To be called about as often as `commit`.
        """
        ...

    def check(self) -> list[str]:
        """Compare everything with its checksums, counts and sums; return what is wrong.

        It reads everything in one transaction: not for a busy engine.
        """
        ...

    def close(self) -> None:
        """End. What was committed stays; closing twice is harmless."""
        ...


def check_bounds(keys: Sequence[bytes], values: Sequence[bytes | None] = ()) -> None:
    """Raise `Fatal` if a key or a value is outside the bounds of a cell."""
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
