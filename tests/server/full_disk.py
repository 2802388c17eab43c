"""What clients of a server see when its disk is nearly full, and full; run on a small file system.

`test_server_full_disk.py` runs it as `python -m tests.server.full_disk <folder>`.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.server.rest.harness import Answer
from tests.server.server_process import Process
from tests.support.timeouts import scaled

DISK_BYTES = 260 * 1024 * 1024

DISK_LOW = 48 * 1024 * 1024

QUEUE = "/v1/spaces/default/queues/orders"

CONFIG = """
[engine]
segment_bytes = 1048576
log_segments_max = 64
log_segments_free = 1
disk_low = {disk_low}

[queues.orders]
max_failures = 3
"""

ROWS = {"messages": [{"body": "x" * 1_000} for _ in range(100)]}

PATIENCE_SECONDS = scaled(60)


def free_bytes(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def fill(disk: Path, *, leave: int) -> None:
    """Write a file until so much is left."""
    with (disk / "filler").open("ab", buffering=0) as file:
        size = 0
        while (more := free_bytes(disk) - leave) > 0:
            # Segments are made beside this.
            with suppress(OSError):
                os.posix_fallocate(file.fileno(), size, more)
                size += more


def publish_until(server: Process, status: int) -> tuple[Answer, int]:
    """Publish until it is answered so; how many were taken."""
    taken, answer = 0, None
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        answer = server.ask("POST", f"{QUEUE}/messages", ROWS)
        taken += 100 * (answer.status == 201)
        if answer.status == status:
            return answer, taken
        assert answer.status in (201, 503), answer
        time.sleep(0.02)
    raise AssertionError(f"publishing is not answered with {status}: {answer}")


def ready_is(server: Process, status: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (answer := server.ask("GET", "/readyz?publishing=true")).status != status:
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


def work(server: Process, count: int) -> int:
    """Lease and settle; how many were settled."""
    leased = server.ask("POST", f"{QUEUE}/leases", {"count": count, "seconds": 600})
    assert leased.status == 200, leased
    receipts = [one["receipt"] for one in leased.items("messages")]
    settled = server.ask("POST", f"{QUEUE}/settle", {"receipts": receipts})
    assert settled.json == {"done": len(receipts), "refused": []}
    return len(receipts)


def read(server: Process) -> int:
    """How many messages there are to be seen."""
    answer = server.ask("GET", f"{QUEUE}/messages?count=10")
    assert answer.status == 200, answer
    return len(answer.items("messages"))


def run(disk: Path, name: str, *, disk_low: int, field: str) -> None:
    """Publish until there is no room, work on, make room, and publish again.

    Meanwhile the server is killed and started again, twice: with and without room.
    """
    config = disk / "millrace.toml"
    config.write_text(CONFIG.format(disk_low=disk_low))
    with Process(disk / name, "--config", config) as server:
        assert server.ask("POST", f"{QUEUE}/messages", ROWS).status == 201
        fill(disk, leave=disk_low // 2)
        refused, taken = publish_until(server, 503)
        taken += 100
        assert refused.json["code"] == "full", refused
        assert refused.json["outcome"] == "retry", refused
        assert refused.json["field"] == field, refused
        assert int(refused.headers["retry-after"]) >= 1
        if disk_low:
            ready_is(server, 503)
        assert server.ask("GET", "/healthz").status == 200
        assert read(server) > 0
        # Where the disk is full, the server is killed before anything makes room.
        settled = work(server, 30) if disk_low else 0
        server.kill()
    with Process(disk / name, "--config", config) as server:
        # What is there can be worked on, and what was declared is there.
        assert read(server) > 0
        settled += work(server, 30)
        assert server.ask("POST", f"{QUEUE}/messages", ROWS).status in (201, 503)
        (disk / "filler").unlink()
        publish_until(server, 201)
        ready_is(server, 200)
        settled += work(server, 30)
        stats = counters(server)
        assert stats["published"] >= taken + 100, stats
        assert stats["settled"] == settled, stats
        server.kill()
    with Process(disk / name, "--config", config) as server:
        assert counters(server) == stats
        assert server.stop() == 0


def counters(server: Process) -> dict[str, int]:
    """What the queue has counted."""
    stats = server.ask("GET", QUEUE).json["stats"]
    assert isinstance(stats, dict)
    return stats


def main(disk: Path) -> None:
    run(disk, "low", disk_low=DISK_LOW, field="disk_low")
    shutil.rmtree(disk / "low")
    run(disk, "full", disk_low=0, field="disk")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
