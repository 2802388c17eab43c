"""`millrace bench`: a rough throughput measurement, compared with the raw disk."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from millrace.cli.parameter_types import DURATION
from millrace.cli.printing import ProgressBar, TableColumn
from millrace.cli.shell import Shell
from millrace.cli.verb import verb

if TYPE_CHECKING:
    from millrace import Millrace, Queue
    from millrace.cli.target import Target

BATCH = 1_000
"""Messages of one publish, and of one lease call."""

PUBLISHERS = 4
"""Concurrent publishers; a commit includes the messages of all."""

BARE_BYTES = 8 * 1024 * 1024
"""Size of the file that the raw disk test overwrites; the maximum size of a WAL record."""

SECTOR_BYTES = 4096

WORDS = """\
This is one short run, on a machine with other load; a second run may differ by half. Rates count
messages that are durable, provided that the disk reports syncs truthfully. The bare disk test
overwrites an existing file with the same bodies and syncs after each write: one body, or those of
four publishers at once."""


class Measure(NamedTuple):
    """A measured rate, and the rate of the bare disk for the same bytes."""

    name: str
    what: str
    rate: float
    bare: float | None
    body_bytes: int


@verb(
    "bench",
    examples="""
        millrace bench --time 0.2s
        millrace bench --time 0.2s --size 100 --here
    """,
)
@click.option("--here", is_flag=True, help="Measure in the folder or server of --data.")
@click.option(
    "--time",
    "seconds",
    type=DURATION,
    default=2,
    metavar="TIME",
    help="Duration of each measurement. [2s]",
)
@click.option(
    "--size",
    type=click.IntRange(1, 1024 * 1024),
    default=1000,
    show_default=True,
    metavar="BYTES",
    help="Size of a body in bytes.",
)
async def bench(shell: Shell, *, here: bool, seconds: float, size: int) -> None:
    """Measure publishing, leasing and settling, compared with the bare disk.

    It uses a temporary folder, which may be on another disk than your data: TMPDIR sets its place.
    With --here, it uses a temporary queue in the folder or server of --data; for a server, the
    disk is not measured.
    """
    if here:
        measures = await _in_folder(shell, seconds, size)
    else:
        with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
            temporary = Shell(Path(folder), is_json=shell.out.is_json, patience=0)
            measures = await _in_folder(temporary, seconds, size)
    columns = [
        TableColumn("MEASURE"),
        TableColumn("MESSAGES/S", is_number=True),
        TableColumn("MB/S", is_number=True),
        TableColumn("BARE DISK", is_number=True),
        TableColumn("SHARE", is_number=True),
    ]
    shell.out.table("measure", columns, [_row(measure) for measure in measures], empty="nothing")
    shell.out.note(WORDS)


def _row(measure: Measure) -> tuple[dict[str, object], list[str]]:
    share = None if not measure.bare else measure.rate / measure.bare
    fields: dict[str, object] = {
        "name": measure.name,
        "messages_per_second": round(measure.rate, 1),
        "bare_per_second": None if measure.bare is None else round(measure.bare, 1),
        "share": None if share is None else round(share, 3),
        "body_bytes": measure.body_bytes,
    }
    texts = [
        measure.what,
        f"{measure.rate:,.0f}",
        f"{measure.rate * measure.body_bytes / 1e6:,.1f}",
        "-" if measure.bare is None else f"{measure.bare:,.0f}",
        "-" if share is None else f"{share:.0%}",
    ]
    return fields, texts


async def _in_folder(shell: Shell, seconds: float, size: int) -> list[Measure]:
    from millrace import Settings

    name = f"bench-{secrets.token_hex(4)}"
    with ProgressBar("measuring", total=5) as bar:
        # The default settings of a program.
        async with shell.open(make=True, settings=Settings()) as m:
            try:
                return await _measure(shell.target, m, name, seconds, size, bar)
            finally:
                await m.delete_queue(name)


async def _measure(
    target: Target, m: Millrace, name: str, seconds: float, size: int, bar: ProgressBar
) -> list[Measure]:
    queue = await m.queue(name)
    body = os.urandom(size)
    bare_one: float | None = None
    bare_many: float | None = None
    if isinstance(target, Path):
        bare_one = await asyncio.to_thread(_bare_rate, target, body, 1, seconds)
        bar.advance(1)
        at_once = min(PUBLISHERS * BATCH, max(BARE_BYTES // size, 1))
        bare_many = await asyncio.to_thread(_bare_rate, target, body, at_once, seconds)
        bar.advance(1)
    one = await _publish_one(queue, body, seconds)
    bar.advance(1)
    many = await _publish_many(queue, body, seconds)
    bar.advance(1)
    leased = await _lease_and_settle(queue, seconds)
    bar.advance(1)
    return [
        Measure("publish_one", "publish, one by one", one, bare_one, size),
        Measure("publish_batches", f"publish, {BATCH:,} at once", many, bare_many, size),
        Measure("lease_settle", f"lease and settle, {BATCH:,} at once", leased, None, size),
    ]


def _bare_rate(folder: Path, body: bytes, count: int, seconds: float) -> float:
    """Return the bodies per second that the disk writes, with a sync after each `count`."""
    data = body * count
    # Whole sectors, as a log writes them.
    data += bytes(-len(data) % SECTOR_BYTES)
    done = 0
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(max(BARE_BYTES, len(data))))
        os.fsync(file.fileno())
        room = file.tell()
        began = time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            if room - file.tell() < len(data):
                file.seek(0)
            file.write(data)
            os.fdatasync(file.fileno())
            done += count
    return done / passed


async def _publish_one(queue: Queue, body: bytes, seconds: float) -> float:
    done = 0
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        await queue.publish(body)
        done += 1
    return done / passed


async def _publish_many(queue: Queue, body: bytes, seconds: float) -> float:
    bodies = [body] * BATCH
    began = time.perf_counter()

    async def publisher() -> int:
        done = 0
        while time.perf_counter() - began < seconds:
            done += len(await queue.publish_many(bodies))
        return done

    counts = await asyncio.gather(*(publisher() for _ in range(PUBLISHERS)))
    return sum(counts) / (time.perf_counter() - began)


async def _lease_and_settle(queue: Queue, seconds: float) -> float:
    done = 0
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        leases = await queue.lease(BATCH, seconds=600)
        if not leases:
            break
        await queue.settle(leases)
        done += len(leases)
    return done / passed
