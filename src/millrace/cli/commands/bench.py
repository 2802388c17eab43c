"""`millrace bench`: roughly how fast it is here, beside the bare disk."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from millrace.cli.kinds import DURATION
from millrace.cli.printing import Column
from millrace.cli.progress import Bar
from millrace.cli.shell import Shell
from millrace.cli.verb import verb

if TYPE_CHECKING:
    from millrace import Millrace, Queue
    from millrace.cli.target import Target

BATCH = 1_000
"""Messages of one publish, and of one lease call."""

PUBLISHERS = 4
"""Publishers at a time; a commit takes what all of them have sent."""

BARE_BYTES = 8 * 1024 * 1024
"""The file that the bare disk writes over; the engine's records are as large at most."""

SECTOR_BYTES = 4096

WORDS = """\
One short run beside whatever else this machine does; a second one may differ by half. Every rate
counts messages that are on disk as far as the disk tells the truth about syncs. The bare disk
writes as many bodies over a file that is there already, with a sync after each write, and does
nothing else: one body, or those of four publishers at once."""


class Measure(NamedTuple):
    """A rate, and that of the bare disk for the same bytes."""

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
@click.option("--here", is_flag=True, help="Where --data is, in a queue of its own.")
@click.option(
    "--time", "seconds", type=DURATION, default=2, metavar="TIME", help="For each measure. [2s]"
)
@click.option(
    "--size",
    type=click.IntRange(1, 1024 * 1024),
    default=1000,
    show_default=True,
    metavar="BYTES",
    help="The size of a body.",
)
async def bench(shell: Shell, *, here: bool, seconds: float, size: int) -> None:
    """Measure publishing, leasing and settling for a moment, beside the bare disk.

    It uses a temporary folder, which may lie on another disk than your data: TMPDIR names its
    place, and --here measures in the folder of --data, or on the server, whose disk is not to be
    had by itself.
    """
    if here:
        measures = await _in_folder(shell, seconds, size)
    else:
        with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
            temporary = Shell(Path(folder), is_json=shell.out.is_json, patience=0)
            measures = await _in_folder(temporary, seconds, size)
    columns = [
        Column("MEASURE"),
        Column("MESSAGES/S", is_number=True),
        Column("MB/S", is_number=True),
        Column("BARE DISK", is_number=True),
        Column("SHARE", is_number=True),
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
    with Bar("measuring", total=5) as bar:
        # Those that a program has unless it chooses others.
        async with shell.open(make=True, settings=Settings()) as m:
            try:
                return await _measure(shell.target, m, name, seconds, size, bar)
            finally:
                await m.delete_queue(name)


async def _measure(
    target: Target, m: Millrace, name: str, seconds: float, size: int, bar: Bar
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
    """Bodies a second that the disk takes, `count` with each sync."""
    data = body * count
    # Whole sectors, as any log writes them.
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
