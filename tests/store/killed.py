"""Commits and says so, until it is killed; run as `python -m tests.store.killed <folder>`."""

from __future__ import annotations

import sys
from pathlib import Path

from millrace.store.cells import Table
from millrace.store.lmdb_cells import LmdbCells


def main(folder: Path) -> None:
    cells = LmdbCells(folder, ballast_bytes=4096, spare_bytes=4096)
    [last] = cells.get(Table.META, [b"number"])
    number = 0 if last is None else int(last)
    while True:
        number += 1
        value = b"%d" % number
        rows: dict[bytes, bytes | None] = {b"row-%d" % row: value for row in range(500)}
        cells.commit({Table.META: {b"number": value}, Table.KEYS: rows})
        print(number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
