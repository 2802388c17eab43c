"""Repair of quarantined queues: readable rows are kept, exactly the others are dropped."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from millrace import errors, restore, verify
from millrace.client.embedded import EmbeddedEngine
from millrace.client.maintenance_results import Repaired
from millrace.client.millrace import Millrace
from millrace.client.queue import engine_and_shard
from millrace.core.cells import Kind
from millrace.core.commands import Publish
from millrace.node import Node, real_ports
from tests.client.harness import SMALL, eventually, opened, run
from tests.client.test_reading import seal
from tests.engine.poison import ask, poison, publish_poison


async def poisoned(path: Path, *, shards: int = 1, keyed: bool = False) -> None:
    """Make a queue with two unreadable rows among ten, and another queue."""
    node = await Node.open(real_ports(path), SMALL)
    async with Millrace(EmbeddedEngine(node)) as m:
        queue = await m.queue("bad", shards=shards, keyed=keyed)
        for number in range(5):
            await queue.publish(b"a%d" % number, key=b"%d" % number)
        await publish_poison(node, queue, queue.shards.ids[-1])
        for number in range(5, 8):
            await queue.publish(b"a%d" % number, key=b"%d" % number)
        await (await m.queue("good")).publish(b"g")


def rows_in(folder: Path) -> list[bytes]:
    found: list[bytes] = []
    for path in sorted(folder.glob("rows-*.arrow")):
        with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
            bodies = reader.read_all().column("value").to_pylist()
            found += [body for body in bodies if body is not None]
    return found


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("sealed", [False, True])
def test_what_can_be_read_is_exported_and_the_rest_dropped(
    tmp_path: Path, *, keyed: bool, shards: int, sealed: bool
) -> None:
    async def main() -> None:
        data, saved = tmp_path / "data", tmp_path / "saved"
        await poisoned(data, shards=shards, keyed=keyed)
        node = await Node.open(real_ports(data), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            queue = await m.find("bad")
            if sealed:
                await node.checkpointer.seal_all()
            with pytest.raises(errors.Quarantined):
                await queue.peek(100)
            seen = await m.repair("bad", export=saved)
            assert seen == Repaired(8, 2, 0, is_open=False)
            assert sorted(rows_in(saved)) == [b"a%d" % number for number in range(8)]
            [report] = json.loads((saved / "unreadable.json").read_bytes())
            assert report["last"] == report["first"] + 1
            block = b"".join(bytes(part) for part in poison().encode())
            assert (saved / report["file"]).read_bytes() == block
            with pytest.raises(errors.Quarantined):
                await queue.lease()
            with pytest.raises(errors.Exists):
                await m.repair("bad", export=saved)
            assert await m.repair("bad", drop=True) == Repaired(8, 2, 2, is_open=True)
            leases = await queue.lease(100)
            assert sorted(lease.body for lease in leases) == [b"a%d" % n for n in range(8)]
            await queue.settle(leases)
            counts = await queue.stats()
            assert (counts["dropped"], counts["settled"], counts["live"]) == (2, 8, 0)
            with pytest.raises(errors.Invalid, match="not quarantined"):
                await m.repair("bad", drop=True)
        async with opened(data) as m:
            assert await (await m.find("bad")).peek(10) == []
            assert len(await (await m.find("good")).peek(10)) == 1

    run(main())


def test_a_file_that_is_replaced_from_a_backup_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        data, backups = tmp_path / "data", tmp_path / "backups"
        await seal(data, ["orders"])
        async with opened(data) as m:
            made = await m.backup(backups)
        for file in (data / "sealed").iterdir():
            whole = bytearray(file.read_bytes())
            at = whole.find(b"orders 5\x00")
            if at >= 0:
                whole[at] ^= 1
                # Another file: the backup shares the old one.
                file.unlink()
                file.write_bytes(whole)
        async with opened(data) as m:
            queue = await m.find("orders")
            with pytest.raises(errors.Quarantined):
                async with queue.snapshot() as snapshot:
                    snapshot.arrow().read_all()
            found = await m.repair("orders")
            assert found.unreadable
            assert not found.is_open
        for file in (made.path / "sealed").iterdir():
            shutil.copy(file, data / "sealed" / file.name)
        async with opened(data) as m:
            queue = await m.find("orders")
            with pytest.raises(errors.Quarantined):
                await queue.peek(1)
            assert await m.repair("orders") == Repaired(3600, 0, 0, is_open=True)
            async with queue.snapshot() as snapshot:
                assert snapshot.arrow().read_all().num_rows == 3600

    run(main())


@pytest.mark.parametrize("ending", ["drop", "purge", "delete"])
@pytest.mark.parametrize("reopened", [False, True])
def test_damage_is_gone_once_its_rows_are(tmp_path: Path, ending: str, *, reopened: bool) -> None:
    """A reader found the damage; backups made after the repair can be restored."""

    async def end(m: Millrace) -> None:
        if ending == "drop":
            assert (await m.repair("bad", drop=True)).dropped == 20
        elif ending == "purge":
            await (await m.find("bad")).purge()
        else:
            await m.delete_queue("bad")

    async def main() -> None:
        data = tmp_path / "data"
        node = await Node.open(real_ports(data), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            await (await m.queue("bad")).publish_many([b"bad row"] * 20)
            await (await m.queue("good")).publish_many([bytes(1000)] * 900)
            await node.checkpointer.seal_all()
        [file] = [one for one in (data / "sealed").iterdir() if b"bad row" in one.read_bytes()]
        whole = bytearray(file.read_bytes())
        whole[whole.index(b"bad row")] ^= 1
        file.write_bytes(whole)

        async def is_gone() -> bool:
            return not file.exists()

        async with opened(data) as m:
            with pytest.raises(errors.Quarantined):
                await (await m.find("bad")).peek(1)
            if not reopened:
                await end(m)
                await eventually(is_gone)
        async with opened(data) as m:
            if reopened:
                assert (await m.health()).damaged == (f"sealed/{file.name}",)
                await end(m)
                await eventually(is_gone)
            assert (await m.health()).damaged == ()
            await m.backup(tmp_path / "backups")
        assert (await verify(tmp_path / "backups")).rows == 900

    run(main())


def test_a_backup_carries_the_quarantine(tmp_path: Path) -> None:
    async def main() -> None:
        data = tmp_path / "data"
        await poisoned(data)
        node = await Node.open(real_ports(data), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            with pytest.raises(errors.Quarantined):
                await (await m.find("bad")).peek(100)
            await m.backup(tmp_path / "first")
            await node.checkpointer.seal_all()
            await m.backup(tmp_path / "second")
        for name in ("first", "second"):
            await restore(tmp_path / name, tmp_path / f"of-{name}")
            async with opened(tmp_path / f"of-{name}") as m:
                queue = await m.find("bad")
                with pytest.raises(errors.Quarantined):
                    await queue.publish(b"x")
                saved = tmp_path / f"saved-{name}"
                assert (await m.repair("bad", export=saved, drop=True)).dropped == 2
                assert len(rows_in(saved)) == 8
                [report] = json.loads((saved / "unreadable.json").read_bytes())
                assert report["file"], "the bytes are in the backup"
                assert len(await queue.peek(100)) == 8

    run(main())


def test_a_backup_is_made_of_a_folder_with_a_damaged_file(tmp_path: Path) -> None:
    async def main() -> None:
        data = tmp_path / "data"
        await seal(data, ["orders", "others"])
        for file in (data / "sealed").iterdir():
            whole = bytearray(file.read_bytes())
            at = whole.find(b"orders 5\x00")
            if at >= 0:
                whole[at] ^= 1
                file.write_bytes(whole)
        async with opened(data) as m:
            with pytest.raises(errors.Quarantined):
                await (await m.find("orders")).lease(3600)
            made = await m.backup(tmp_path / "backups")
        assert (await verify(made.path, against=data)).differences == ()
        await restore(made.path, tmp_path / "restored")
        async with opened(tmp_path / "restored") as m:
            orders, others = await m.find("orders"), await m.find("others")
            with pytest.raises(errors.Quarantined):
                await orders.peek(1)
            assert len(await others.lease(3600)) == 3600
            done = await m.repair("orders", drop=True)
            assert done.readable + done.dropped == 3600
            assert len(await orders.lease(3600)) == done.readable

    run(main())


def test_a_topic_is_repaired(tmp_path: Path) -> None:
    async def main() -> None:
        node = await Node.open(real_ports(tmp_path), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            topic = await m.topic("news")
            queue = await m.queue("q", max_messages=1)
            await topic.subscribe("q")
            for body in (b"1", b"2"):
                await topic.publish(body)
            shard = topic._shard
            await ask(node, shard, Publish(poison()))
            await topic.publish(b"5")
        node = await Node.open(real_ports(tmp_path), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            queue, topic = await m.find("q"), await m.find_topic("news")
            with pytest.raises(errors.NotFound):
                await m.repair("news")
            found: list[bytes] = []

            async def work() -> None:
                leases = await queue.lease(1)
                found.extend(lease.body for lease in leases)
                await queue.settle(leases)
                # What a queue had no room for is brought at the next tick.
                node._commit_loop.tick()
                await asyncio.sleep(0)

            while not node.store.cells(shard, Kind.QUARANTINE):
                await work()
            assert (await m.repair("news", topic=True, drop=True)).dropped == 2
            while len(found) < 3:
                await work()
            assert found == [b"1", b"2", b"5"]

    run(main())


def test_cursors_behind_dropped_rows_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        node = await Node.open(real_ports(tmp_path), SMALL)
        async with Millrace(EmbeddedEngine(node)) as m:
            queue = await m.queue("log", keyed=True, retention="log")
            await queue.publish(b"1", key=b"1")
            cursor = await queue.cursor("lake")
            snapshot = await cursor.next()
            assert snapshot is not None
            async for _ in snapshot.rows():
                pass
            await snapshot.commit()
            await publish_poison(node, queue)
            await queue.publish(b"4", key=b"4")
            with pytest.raises(errors.Quarantined):
                async with queue.snapshot() as bad:
                    bad.arrow().read_all()
            with pytest.raises(errors.Quarantined):
                await cursor.next()
            await m.repair("log", drop=True)
            with pytest.raises(errors.CursorExpired):
                await cursor.next()
            assert engine_and_shard(queue)

    run(main())
