"""Folders and engines for a measurement, gone when it ends."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from millrace import limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.node import Node, real_ports
from millrace.settings import Settings

SEGMENT_MEGABYTES = 64


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder on the disk that is measured."""
    root = Path("build/bench").absolute()
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


_nodes: dict[int, Node] = {}


@contextlib.asynccontextmanager
async def engine(
    folder: Path, *, megabytes: int = 0, settings: Settings | None = None
) -> AsyncIterator[Millrace]:
    """An open engine whose log has room for so much without sealing, filled ahead of need."""
    free = -(-megabytes * 11 // 10 // SEGMENT_MEGABYTES) + 3
    chosen = settings or Settings(
        log_segments_max=2 * free + 8, log_segments_free=free, log_segments_unsealed=2 * free
    )
    node = await Node.open(real_ports(folder), chosen)
    millrace = Millrace(EmbeddedEngine(node))
    _nodes[id(millrace)] = node
    try:
        await node.checkpointer.prepare()
        yield millrace
    finally:
        del _nodes[id(millrace)]
        await millrace.close()


def recycled(megabytes: int) -> Settings:
    """A log whose segments are all made beforehand, with room for so much without sealing."""
    count = -(-megabytes // SEGMENT_MEGABYTES) + limits.LOG_SEGMENTS_RESERVE + 4
    unsealed = count - limits.LOG_SEGMENTS_RESERVE - 2
    return Settings(log_segments_max=count, log_segments_free=count, log_segments_unsealed=unsealed)


def node_of(millrace: Millrace) -> Node:
    """The node behind an engine of `engine`."""
    return _nodes[id(millrace)]


async def settle_down(millrace: Millrace) -> None:
    """Bring the index up to the log, so that segments of dead rows are free again."""
    node = node_of(millrace)
    await node.checkpointer.checkpoint()
    while await node.checkpointer.reclaim():
        pass
