"""A restore to any index is the fold of everything up to it."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import millrace
from millrace import errors
from millrace.client.millrace import Millrace
from millrace.core.changes import Entry
from millrace.maintenance import archived_log, checksummed_json, manifest
from millrace.maintenance.archived_log import LogWalk
from millrace.maintenance.backup_repository import BackupRepository
from millrace.maintenance.restore import RestoreTarget, plan_restore, write_folder
from millrace.maintenance.verify import OfflineStore, digest_store
from millrace.store.memory_store import MemoryStore
from millrace.wal.disk import RealDisk
from tests.cli.program import findings
from tests.client.harness import Clock, opened, run


async def play(m: Millrace, chance: random.Random, steps: int, clock: Clock) -> None:
    """Run a sequence of operations in a folder: each step is an entry, or several in one record."""
    plain, keyed = await m.queue("plain"), await m.queue("keyed", keyed=True)
    held = []
    for step in range(steps):
        clock.forward(seconds=1)
        match chance.randrange(7):
            case 0:
                await plain.publish_many([b"%d" % step] * chance.randrange(1, 4))
            case 1:
                headers = {"step": str(step)}
                message = millrace.Message(b"x" * step, key=f"k{step % 5}", headers=headers)
                await keyed.publish_many([message])
            case 2:
                held += await plain.lease(2, seconds=5)
            case 3 if held:
                with suppress(errors.Refused):
                    await held.pop().settle()
            case 4:
                async with m.transaction() as t:
                    t.publish(plain, b"one")
                    t.publish(keyed, b"other", key="both")
            case 5:
                await keyed.publish(None, key=f"k{step % 5}")
            case _:
                await plain.publish(b"alone")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_index_of_a_log_is_the_fold_of_what_came_before(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        chance, clock = random.Random(seed), Clock()
        clock.stop()
        vault = tmp_path / "vault"
        async with opened(tmp_path / "data", clock=clock) as m:
            checkpointer = m._engine._node.checkpointer  # type: ignore[attr-defined]
            await play(m, chance, 10, clock)
            await m.backup(vault, follow=True)
            await play(m, chance, 25, clock)
            await checkpointer.seal_all()
            await play(m, chance, 15, clock)
            await m.backup(vault)
            await play(m, chance, 5, clock)
        check_points(tmp_path, vault)

    run(main())


def check_points(tmp_path: Path, vault: Path) -> None:
    first = plan_restore(vault / "000001", RestoreTarget(index=None))
    entries: dict[int, Entry] = {}
    for step in LogWalk(first.pieces):
        entries |= {entry.index: entry for _, entry in archived_log.local_entries(step)}
    model = MemoryStore()
    tried = 0
    for index in sorted(entries):
        model.fold(entries[index], None)
        for backup in ("000001", "000002"):
            start = BackupRepository(vault).manifest_of(int(backup)).start.index
            if index < start:
                with pytest.raises(errors.Refused, match="cannot be reached"):
                    plan_restore(vault / backup, RestoreTarget(index=index))
                continue
            plan = plan_restore(vault / backup, RestoreTarget(index=index))
            folder = tmp_path / f"at-{index}-{backup}"
            write_folder(plan, folder)
            assert plan.cut.point.index == index
            assert findings(folder) == []
            with OfflineStore(folder) as state:
                assert digest_store(state) == digest_store(model)
            tried += 1
    assert tried > 40
    assert max(entries) == first.cut.point.index


@pytest.mark.parametrize("time_ms", [2**63 - 1, 2**53, -1])
def test_a_backup_of_a_time_that_cannot_be_is_corrupt(tmp_path: Path, time_ms: int) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            await (await m.queue("orders")).publish(b"x")
            made = await m.backup(tmp_path / "vault")
        file = made.path / manifest.MANIFEST
        known = manifest.read(RealDisk(made.path, read_only=True))
        start = msgspec.structs.replace(known.start, time_ms=time_ms)
        file.write_bytes(checksummed_json.encode(msgspec.structs.replace(known, start=start)))
        with pytest.raises(errors.Corrupt, match=manifest.MANIFEST):
            await millrace.restore(
                tmp_path / "vault", tmp_path / "again", time=datetime(2020, 1, 1, tzinfo=UTC)
            )

    run(main())
