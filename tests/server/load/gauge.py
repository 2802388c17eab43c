"""What a process holds, as the system counts it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Holding:
    """What one process holds."""

    memory_bytes: int
    """Resident, and nobody else's."""
    descriptors: int
    threads: int


def holding(pid: int) -> Holding:
    """What it holds now."""
    found = {
        name: value.split()[0]
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        for name, _, value in [line.partition(":")]
        if name in ("RssAnon", "Threads")
    }
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Holding(int(found["RssAnon"]) * 1024, descriptors, int(found["Threads"]))
