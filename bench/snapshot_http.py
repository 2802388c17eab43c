"""Group `server`: snapshots as Arrow over HTTP."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.publish import BATCH, bodies
from bench.report import Result, at_least, median
from bench.rest_load import cpu_of
from bench.scratch import engine, node_of, scratch
from bench.served import QUEUE, Served, served

ROUNDS = 9
_BUFFER = bytearray(4 * 1024 * 1024)


async def arrow_snapshot(megabytes: int = 400) -> list[Result]:
    """Sealed rows over loopback, against `sendfile` of the same bytes, in turns.

    Both are read by the same client: into one buffer, which nobody looks into.
    """
    ours: list[float] = []
    bares: list[float] = []
    with scratch() as folder:
        async with engine(folder / "data", megabytes=megabytes) as m:
            queue = await m.queue("bench")
            rows = bodies(1024)
            for _ in range(megabytes * 1_000_000 // 1024 // BATCH):
                await queue.publish_many(rows)
            await node_of(m).checkpointer.seal_all()
        with served(folder / "data") as server:
            request = _request(server)
            with (folder / "same").open("wb") as file:
                _, size = _read(server.port, request, file.write)
            with _bare(folder / "same") as (port, pid):
                used, bare_used = cpu_of(server.process.pid), cpu_of(pid)
                client = time.process_time()
                for turn in range(ROUNDS + 1):
                    own, got = await asyncio.to_thread(_read, server.port, request)
                    bare, same = await asyncio.to_thread(_read, port, b"send\n")
                    assert got == same == size, (got, same, size)
                    if turn:
                        ours.append(own)
                        bares.append(bare)
                client = time.process_time() - client
                gigabytes = size * (ROUNDS + 1) / 1e9
                costs = (cpu_of(server.process.pid) - used) / gigabytes
                bare_costs = (cpu_of(pid) - bare_used) / gigabytes
    ratio = median([b / o for b, o in zip(bares, ours, strict=True)])
    reach, judge = at_least(0.7)
    busy = client / (sum(ours) + sum(bares))
    return [
        Result(
            "arrow_snapshot",
            f"Arrow snapshot of {size / 1e6:,.0f} MB of sealed rows of 1 KB",
            size / median(ours) / 1e6,
            "MB/s",
            f"sendfile: {size / median(bares) / 1e6:,.0f} MB/s",
            ratio,
            reach,
            judge(ratio),
            f"CPU s per GB: server {costs:.2f}, bare program {bare_costs:.2f}, client "
            f"{client / gigabytes / 2:.2f}; the client was busy for {busy:.0%} of its time; "
            f"ratios {', '.join(f'{b / o:.2f}' for b, o in zip(bares, ours, strict=True))}",
        )
    ]


def _request(server: Served) -> bytes:
    lines = (
        f"GET {QUEUE}/rows HTTP/1.1",
        "Host: bench",
        f"Authorization: Bearer {server.token}",
        "Accept: application/vnd.apache.arrow.stream",
        "Connection: close",
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def _read(port: int, request: bytes, keep: object = None) -> tuple[float, int]:
    """Seconds and bytes from a request to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        began, size = time.perf_counter(), 0
        connection.sendall(request)
        while got := connection.recv_into(_BUFFER):
            size += got
            if keep is not None:
                keep(memoryview(_BUFFER)[:got])  # type: ignore[operator]
        return time.perf_counter() - began, size


@contextmanager
def _bare(file: Path) -> Iterator[tuple[int, int]]:
    command = [sys.executable, "-m", "bench.send", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process.pid
    finally:
        process.terminate()
        process.wait(60)
