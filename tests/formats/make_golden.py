"""Writes a golden folder: what this version leaves on disk, and what must be read from it for ever.

`python -m tests.formats.make_golden 1` writes `folder-1.tar.xz` and `folder-1.json` beside this
file. It is run once for a format; a folder that was released is never written anew.
"""

from __future__ import annotations

import asyncio
import io
import json
import lzma
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from millrace import Millrace
from millrace.client.embedded import EmbeddedEngine
from millrace.node import Node, real_ports
from tests.crash.small_folder import SETTINGS, build, read_everything, shown

HERE = Path(__file__).parent

PACKED_BYTES_MAX = 200_000
"""More does not belong into a repository."""


def pack(files: dict[str, bytes]) -> bytes:
    """The files as a compressed archive, the same for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return lzma.compress(packed.getvalue(), preset=9)


def unpack(packed: bytes, folder: Path) -> None:
    """Write the archive's files below the folder."""
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(packed))) as archive:
        archive.extractall(folder, filter="data")


async def served(opened: Millrace) -> dict[str, object]:
    """What an open engine serves, as JSON can hold it; nothing is changed."""
    found: dict[str, object] = {}
    for name in await opened.queues():
        queue = await opened.find(name)
        rows = await queue.peek(10_000)
        states = {row.seq: await queue.explain(row.seq) for row in rows}
        found[name] = {
            "counters": await queue.stats(),
            "rows": [
                [row.seq, row.time_ms, shown(row.body), shown(row.key), shown(row.headers)]
                for row in rows
            ],
            "states": {
                str(seq): [state.state, state.lease, state.deliveries, state.failures]
                for seq, state in states.items()
            },
            "cursors": await queue.cursors(),
            "stages": await queue.stages(),
            "producer": await queue.producer("producer"),
            "spec": shown(await queue.spec()),
        }
    return found


@asynccontextmanager
async def open_at(folder: Path, now_ms: int, *, fork: bool) -> AsyncIterator[Millrace]:
    """Open the folder at a given time, which stands still: leases and stages do not run out."""
    ports = replace(real_ports(folder), now_ms=lambda: now_ms)
    node = await Node.open(ports, replace(SETTINGS, fork=fork))
    async with Millrace(EmbeddedEngine(node, str(folder))) as opened:
        yield opened


async def _serve(folder: Path, now_ms: int) -> dict[str, object]:
    async with open_at(folder, now_ms, fork=False) as opened:
        return await served(opened)


def main(number: str) -> None:
    """Write the golden folder of this number."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        files = build(folder)
        now_ms = time.time_ns() // 1_000_000
        expected: dict[str, object] = {
            "now_ms": now_ms,
            "served": asyncio.run(_serve(folder, now_ms)),
        }
        copy = Path(temporary) / "copy"
        packed = pack(files)
        unpack(packed, copy)
        expected["stored"] = shown(read_everything(copy))
    assert len(packed) < PACKED_BYTES_MAX, len(packed)
    (HERE / f"folder-{number}.tar.xz").write_bytes(packed)
    text = json.dumps(expected, indent=1, sort_keys=True)
    (HERE / f"folder-{number}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
