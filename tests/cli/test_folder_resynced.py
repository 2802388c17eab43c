"""Folders as a resync and late journals leave them: shown and judged as the engine serves them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from millrace.cli.folder import Folder
from millrace.core.changes import Batch, Changes, Entry
from millrace.core.model import Epoch, GroupId, History, Index, Millis, ShardId
from millrace.node import Node, real_ports
from millrace.settings import Settings
from millrace.store.index_codec import FIRST_COPY
from millrace.store.resync import resync
from tests.cli.conftest import SETTINGS
from tests.cli.program import findings, objects

FORK = Settings(
    segment_bytes=SETTINGS.segment_bytes,
    log_segments_max=SETTINGS.log_segments_max,
    log_segments_unsealed=SETTINGS.log_segments_unsealed,
    fork=True,
)


async def resynced(source: Path, target: Path) -> None:
    """Bring every shard of the target to the source's state, as copies."""
    sender = await Node.open(real_ports(source), FORK)
    receiver = await Node.open(real_ports(target), FORK)
    for shard in sender.store.shards():
        resync(sender.store, receiver.store, shard)
        state = receiver.store._layered.must(shard)
        assert state.id >= FIRST_COPY
    for _ in range(3):
        # What the index held before is reclaimed, so that nothing of it can be shown.
        await receiver.checkpointer.checkpoint()
    await receiver.close()
    await sender.close()


@pytest.fixture
def copies(original: Path, tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(original, source)
    shutil.copytree(original, target)
    asyncio.run(resynced(source, target))
    return source, target


def test_a_resynced_folder_is_in_order(copies: tuple[Path, Path]) -> None:
    for folder in copies:
        assert findings(folder) == []


def test_a_resynced_folder_shows_what_its_source_does(copies: tuple[Path, Path]) -> None:
    source, target = copies
    for what in (["cells"], ["rows", "work"], ["rows", "orders"]):
        shown = objects("dump", source, *what)
        assert shown
        assert objects("dump", target, *what) == shown
    for queue in ("work", "orders"):
        blocks = [objects("dump", folder, "blocks", queue) for folder in copies]
        rows = [sum(int(str(block["rows"])) for block in found) for found in blocks]
        assert rows[0] >= rows[1] > 0
    shards = [
        [line for line in objects("dump", folder) if "published" in line] for folder in copies
    ]
    assert shards[0] == shards[1]
    assert any(line["cells"] for line in shards[1])


def test_what_is_not_committed_is_not_shown(tmp_path: Path) -> None:
    """A journal that commits late has entries in the log that may still be taken back."""
    late, shard = GroupId(5), ShardId(77)

    async def main() -> None:
        node = await Node.open(real_ports(tmp_path), SETTINGS)
        node.writer.suffixes.track(late, Index(0))
        batch = Batch(shard, Index(1), Millis(1), Changes(made=1), [])
        entry = Entry(late, Epoch(1), Index(1), History(bytes(16)), [batch])
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        node.writer.submit(
            entry, lambda *_: done.set_result(None), done.set_exception, alone=True, reserve=False
        )
        await done
        await node.close()

    async def again() -> None:
        node = await Node.open(real_ports(tmp_path), SETTINGS)
        [held] = node.writer.suffixes.held(late)
        assert held.entry.index == 1, "it is handed to whoever may commit it"
        assert node.store.meta(shard) is None
        await node.close()

    asyncio.run(main())
    state = Folder(tmp_path).state()
    assert shard not in state.store.layered.all()
    assert state.store.applied(late) == 0
    state.close()
    asyncio.run(again())
    assert findings(tmp_path) == []
