"""Damages the file of the cells in many ways, and classifies the results.

A damaged page can end the process that reads it, so each attempt is a child of its own. Run as
`python -m tests.store.damage <folder> <seed> <count>`, it prints the number of each outcome, and
describes what must not happen.

Outcomes:

- `refused`: the cells do not open.
- `unreadable`: reading raises `Corrupt`.
- `found`: everything could be read, and `check` finds fault.
- `crashed`: LMDB ended the process.
- `harmless`: all values are there and `check` is content: free space was hit.
- `older`: a commit before the last is there as a whole, because a page that names the last one was
  hit. The position in the log that it holds is as old, so that replay begins there.
- `silent`: values differ from the committed ones, and no error was raised. This must not happen.
- `escaped`: an exception that is not ours. This must not happen either.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from millrace import errors
from millrace.store.cells import Table
from millrace.store.lmdb_cells import LmdbCells

OUTCOMES = (
    "refused",
    "unreadable",
    "found",
    "harmless",
    "older",
    "silent",
    "escaped",
)
PAGE_BYTES = 4096

State = dict[Table, dict[bytes, bytes]]


def open_cells(folder: Path) -> LmdbCells:
    return LmdbCells(folder, ballast_bytes=4096, spare_bytes=4096)


def build(folder: Path, chance: random.Random) -> list[tuple[State, bytes]]:
    """Commit several times; return each commit's values and the file as it then was."""
    cells = open_cells(folder)
    state: State = {table: {} for table in Table}
    history: list[tuple[State, bytes]] = []
    for _ in range(8):
        writes: dict[Table, dict[bytes, bytes | None]] = {}
        for table in (Table.META, Table.KEYS, Table.DEATHS):
            changes = writes.setdefault(table, {})
            for _ in range(40):
                key = b"key-%04d" % chance.randrange(200)
                size = chance.choice([8, 8, 8, 8, 8, 8, 60, 300, 1_900])
                changes[key] = None if chance.random() < 0.2 else chance.randbytes(size)
                state[table].pop(key, None)
            state[table] |= {key: value for key, value in changes.items() if value is not None}
        cells.commit(writes)
        copied = {table: dict(values) for table, values in state.items()}
        history.append((copied, (folder / "data.mdb").read_bytes()))
    cells.close()
    return history


def damages(
    history: list[tuple[State, bytes]], chance: random.Random, count: int
) -> Iterator[tuple[str, bytes]]:
    """Yield descriptions of damages, and what the file then holds."""
    whole = history[-1][1]
    pages = len(whole) // PAGE_BYTES
    for _ in range(count):
        data = bytearray(whole)
        # The first two pages name the last commit, and are hit more often than chance would.
        page = chance.randrange(2 if chance.random() < 0.1 else pages)
        start, end = page * PAGE_BYTES, (page + 1) * PAGE_BYTES
        kind = chance.choice(
            ["bit", "bit", "bit", "bit", "byte", "zeros", "old page", "other page"]
        )
        at = start + chance.randrange(chance.choice([200, PAGE_BYTES]))
        if kind == "bit":
            data[at] ^= 1 << chance.randrange(8)
        elif kind == "byte":
            data[at] = chance.randrange(256)
        elif kind == "zeros":
            data[start:end] = bytes(PAGE_BYTES)
        elif kind == "old page":
            # A write that the disk confirmed and then lost.
            old = chance.choice(history[:-1])[1][start:end]
            data[start : start + len(old)] = old
        else:
            other = chance.randrange(pages) * PAGE_BYTES
            data[start:end] = whole[other : other + PAGE_BYTES]
        yield f"{kind} at {at} (page {page})", bytes(data)


def outcome(folder: Path, states: list[State]) -> str:
    """Open the damaged cells, read everything in every way, and check them."""
    try:
        cells = open_cells(folder)
    except errors.Fatal:
        return "refused"
    found: State = {table: {} for table in Table}
    is_readable = True
    try:
        for table in Table:
            found[table] = dict(cells.range(table, b"", b"\xff", limit=10_000))
            cells.range(table, b"", b"\xff", limit=10_000, reverse=True)
            keys = sorted(states[-1][table])
            values = cells.get(table, keys)
            if values != [found[table].get(key) for key in keys]:
                is_readable = False
    except errors.Corrupt:
        return "unreadable"
    findings = cells.check()
    if findings:
        return "found"
    if not is_readable:
        return "silent"
    if found == states[-1]:
        return "harmless"
    return "older" if found in states else "silent"


def in_a_child(folder: Path, states: list[State]) -> str:
    child = os.fork()
    if child == 0:
        number = OUTCOMES.index("escaped")
        try:
            number = OUTCOMES.index(outcome(folder, states))
        finally:
            os._exit(number)
    _, status = os.waitpid(child, 0)
    return "crashed" if os.WIFSIGNALED(status) else OUTCOMES[os.WEXITSTATUS(status)]


def main(folder: Path, seed: int, count: int) -> None:
    chance = random.Random(seed)
    history = build(folder, chance)
    states = [state for state, _ in history]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for description, data in damages(history, chance, count):
        (folder / "data.mdb").write_bytes(data)
        result = in_a_child(folder, states)
        counts[result] += 1
        # Only the two pages that name the last commit can bring back another.
        is_of_meta = description.endswith(("(page 0)", "(page 1)"))
        if result in ("silent", "escaped") or (result == "older" and not is_of_meta):
            wrong.append(f"{result}: {description}")
    (folder / "data.mdb").write_bytes(history[-1][1])
    counts["sound"] += in_a_child(folder, states) == "harmless"
    print(json.dumps({"counts": counts, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
