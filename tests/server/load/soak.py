"""A mixed load for minutes: nothing that a server holds may grow with time.

`python -m tests.server.load.soak [--minutes 10]` serves a folder with two front ends, has clients
of every kind at it, and counts what each process holds. After a time to warm up, what is held in
the last third is compared with what was held in the first.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.server.load.gauge import holding
from tests.server.load.mixed import Mixed
from tests.server.server_process import Process, children

WARM_SHARE = 0.3
"""Of the time, so much passes before anything is compared."""

LOOK_SECONDS = 2.0

CONFIG = """
[engine]
segment_bytes = 4194304
log_segments_max = 32
log_segments_unsealed = 2
"""
"""So small that the log goes round within a minute."""

LEASE_CALL_BYTES = 1024
"""What the engine may hold of a lease call that has ended (`limits.LEASE_REMEMBERED_MS`)."""

MEMORY_SHARE, MEMORY_BYTES = 0.10, 8 * 1024 * 1024
DESCRIPTORS = 15
THREADS = 2
DISK_SHARE, DISK_BYTES = 0.25, 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Allowed:
    """By how much something may be more at the end than at the beginning."""

    share: float
    least: float

    def most(self, before: float) -> float:
        """What it may be at the end."""
        return before + max(before * self.share, self.least)


ALLOWED = {
    "memory": Allowed(MEMORY_SHARE, MEMORY_BYTES),
    "descriptors": Allowed(0, DESCRIPTORS),
    "threads": Allowed(0, THREADS),
    "disk": Allowed(DISK_SHARE, DISK_BYTES),
}


@dataclass(slots=True)
class Course:
    """What was held, time after time."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        """Add one."""
        self.values.setdefault(name, []).append(value)

    def judge(self, lease_calls: int = 0) -> tuple[list[str], list[str]]:
        """A line for each that was counted, and those that have grown.

        The engine remembers each lease call for ten minutes after it has ended, so that its memory
        rises with their number until then.
        """
        lines: list[str] = []
        grown: list[str] = []
        for name, values in sorted(self.values.items()):
            warm = values[int(len(values) * WARM_SHARE) :]
            third = max(len(warm) // 3, 1)
            before, after = median(warm[:third]), median(warm[-third:])
            most = ALLOWED[name.rpartition(" ")[2]].most(before)
            if name == "engine memory":
                most += lease_calls * LEASE_CALL_BYTES
            line = f"{name}: {before:,.0f} → {after:,.0f}, at most {most:,.0f}"
            lines.append(line)
            if after > most:
                grown.append(line)
        return lines, grown


def look(course: Course, server: Process, data: Path) -> None:
    """Count everything once."""
    frontends = sorted(children(server.pid))
    for name, pid in [
        ("engine", server.pid),
        *((f"front end {n}", p) for n, p in enumerate(frontends)),
    ]:
        held = holding(pid)
        course.note(f"{name} memory", held.memory_bytes)
        course.note(f"{name} descriptors", held.descriptors)
        course.note(f"{name} threads", held.threads)
    size = 0
    for path in data.rglob("*"):
        try:
            size += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue
    course.note("disk", size)


async def run(server: Process, data: Path, seconds: float, seed: int) -> tuple[Course, Mixed]:
    """Have clients at the server for so long, and count meanwhile."""
    course, mixed = Course(), Mixed(server.port, server.token, seed)
    load = asyncio.create_task(mixed.run(seconds))
    until = time.monotonic() + seconds
    while time.monotonic() < until and not load.done():
        await asyncio.sleep(min(LOOK_SECONDS, seconds / 20))
        look(course, server, data)
    await load
    return course, mixed


def soak(folder: Path, seconds: float, seed: int) -> tuple[Course, Mixed]:
    """Serve a folder of its own, with two front ends, for so long."""
    config = folder / "millrace.toml"
    config.write_text(CONFIG)
    with (
        (folder / "stderr").open("ab") as errors,
        Process(folder / "data", "--config", config, "--frontends", 2, errors=errors) as server,
    ):
        course, mixed = asyncio.run(run(server, folder / "data", seconds, seed))
        assert server.stop() == 0
    return course, mixed


def main() -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--folder", type=Path, help="on the disk to be tested; not kept")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.minutes} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="millrace-soak-", dir=arguments.folder) as folder:
        course, mixed = soak(Path(folder), arguments.minutes * 60, arguments.seed)
        said = (Path(folder) / "stderr").read_text(errors="replace")
    lines, grown = course.judge(sum(mixed.done[act] for act in ("work", "transact", "connect")))
    print(f"done: {dict(sorted(mixed.done.items()))}")
    print("\n".join(lines))
    if "Traceback" in said:
        grown.append(f"the server's log has an error: {said[-3_000:]}")
    print("\n".join(["nothing has grown"] if not grown else ["grown:", *grown]))
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
