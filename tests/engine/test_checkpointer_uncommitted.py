"""Rule L7 with the real checkpointer and store: the log is recycled while no quorum commits."""

from __future__ import annotations

import asyncio
import random

from pyroaring import BitMap64

from millrace import errors
from millrace.core.commands import CreateQueue, InitCatalog, Publish
from millrace.core.format.codec import decode_entries
from millrace.core.model import (
    CATALOG,
    Epoch,
    Index,
    NewMessage,
    Row,
    ShardId,
)
from millrace.core.spec import QueueSpec
from millrace.core.state.view import View
from millrace.engine.checkpointer import Checkpointer, CheckpointSchedule
from millrace.engine.command_request import CommandRequest
from millrace.engine.commit_loop import CommitLoop
from millrace.journal.log_writer import LogWriter
from millrace.journal.recovery import Recovery
from millrace.store.disk_store import DiskStore
from millrace.store.memory_cells import MemoryCells
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.write_ahead_log import WriteAheadLog
from tests.journal.harness import (
    HISTORY,
    KIB,
    A,
    B,
    HeldIoThread,
    run,
)
from tests.support.contracts.check_journal import append
from tests.support.contracts.late_journal import LateJournal
from tests.support.simulator.disk import SimDisk
from tests.support.simulator.event_loop import SimLoop

SHAPE = LogShape(segment_bytes=256 * KIB, segments_max=8, segments_free=1, segments_reserve=1)
UNSEALED = 2
QUEUE = ShardId(1)


class Member:
    """A node whose groups both commit late: one has a commit loop, the other fills the log."""

    def __init__(self, disk: SimDisk, cells: MemoryCells, epoch: int) -> None:
        self.disk = disk
        self.cells = cells
        self.store = DiskStore.open(disk, cells)
        replay = Replay(disk, start=self.store.replay_mark(), needed_from=self.store.needed_from())
        records = [(position, bytes(payload)) for position, payload in replay]
        self.log = WriteAheadLog.open(replay, SHAPE, chance=random.Random(epoch).randbytes)
        self.store.attach(self.log)
        recovery = Recovery(
            self.store.applied,
            self.store.facts(),
            self.store.fold,
            commits_when_synced=lambda _: False,
        )
        for position, payload in records:
            for entry in decode_entries(memoryview(payload)):
                recovery.read(entry, position)
        self.writing, self.caring = HeldIoThread(), HeldIoThread()
        self.writer = LogWriter(self.log, self.writing, recovery.hand_over())
        self.journal = LateJournal(A, Epoch(epoch), HISTORY, self.store.applied(A), self.writer)
        self.filler = LateJournal(B, Epoch(epoch), HISTORY, self.store.applied(B), self.writer)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.host = CommitLoop(self.journal, self.store, loop.clock.now_ms)
        pace = CheckpointSchedule(
            checkpoint_seconds=1.0, checkpoint_log_bytes=1 << 30, segments_unsealed=UNSEALED
        )
        self.checkpointer = Checkpointer(
            self.log, self.store, cells, self.writer, self.caring, self.host, recovery.facts, pace
        )
        self.checkpointer.start()

    def ask(
        self, shard: ShardId, command: InitCatalog | CreateQueue | Publish
    ) -> asyncio.Future[object]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: future.exception())
        self.host.submit(CommandRequest(shard, command, future))
        return future

    async def fill(self, times: int) -> None:
        """Write and roll back, so that the log is recycled and nothing is folded."""
        for _ in range(times):
            try:
                append(self.filler, bytes(60 * KIB))
                await asyncio.sleep(0.3)
                await self.filler.void(0)
            except errors.Full:
                await asyncio.sleep(0.3)

    def crash(self, epoch: int) -> Member:
        """Simulate a power cut; only checkpointed and synced data is left."""
        self.writing.close()
        self.caring.close()
        return Member(self.disk.crash(), MemoryCells(self.cells.image()), epoch)

    def rows(self) -> list[Row]:
        return self.store.rows(QUEUE, BitMap64(range(1, 100)))


def test_the_log_goes_round_while_a_group_waits_for_its_quorum() -> None:
    async def main() -> None:
        member = Member(SimDisk(random.Random(1)), MemoryCells(), 1)
        await member.journal.remember(5, 3)
        member.host.adopt(View(CATALOG, Epoch(1), HISTORY))
        for shard, command in (
            (CATALOG, InitCatalog(bytes(32))),
            (CATALOG, CreateQueue("default", "q", QueueSpec())),
            (QUEUE, Publish((NewMessage(b"committed"),))),
        ):
            future = member.ask(shard, command)
            await asyncio.sleep(0.01)
            member.journal.commit()
            await future
        waits = [member.ask(QUEUE, Publish((NewMessage(b"%d" % at * 1000),))) for at in range(3)]
        await asyncio.sleep(0.01)
        begun = member.log.mark().generation
        suffix = [held.entry.index for held in member.writer.suffixes.held(A)]
        assert suffix
        for life in range(2, 5):
            await member.fill(25)
            assert member.log.mark().generation > begun + 3, "it has gone round"
            assert len(member.log.segments()) <= 2 * UNSEALED + 2
            begun = member.log.mark().generation
            assert [held.entry.index for held in member.writer.suffixes.held(A)] == suffix
            member = member.crash(life)
            assert [held.entry.index for held in member.writer.suffixes.held(A)] == suffix
            assert member.journal.ballot() == (5, 3)
            assert member.journal.waiting() == len(suffix)
            assert member.store.applied(A) == Index(suffix[0] - 1)
        assert not any(future.done() for future in waits), "nobody was ever answered"
        asked = member.ask(QUEUE, Publish((NewMessage(b"after"),)))
        await asyncio.sleep(0.01)
        member.journal.commit()
        await asyncio.sleep(0.01)
        member.journal.commit()
        await asked
        assert [row.body for row in member.rows()] == [
            b"committed",
            *(b"%d" % at * 1000 for at in range(3)),
            b"after",
        ]
        await member.fill(10)
        await member.host.stop()
        await member.checkpointer.stop()
        member = member.crash(9)
        assert len(member.rows()) == 5

    run(main())
