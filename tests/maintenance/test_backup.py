"""Online backups, and folders restored from them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

import millrace
from millrace import errors
from millrace.client.millrace import Millrace
from tests.cli.program import findings
from tests.client.harness import eventually, opened, run


async def bodies(m: Millrace, name: str = "orders") -> list[bytes | None]:
    queue = await m.find(name)
    return [row.body for row in await queue.peek(1000)]


def test_a_backup_holds_what_was_acknowledged_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"%d" % n for n in range(10)])
            await queue.settle(await queue.lease(3))
            made = await m.backup(tmp_path / "vault")
            await queue.publish(b"later")
            assert made.path == tmp_path / "vault" / "000001"
        restored = await millrace.restore(tmp_path / "vault", tmp_path / "again")
        assert restored.index == made.last_index
        assert findings(tmp_path / "again") == []
        async with opened(tmp_path / "again") as m:
            assert await bodies(m) == [b"%d" % n for n in range(3, 10)]

    run(main())


def test_sealed_files_are_linked_and_found_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            for _ in range(6):
                await queue.publish_many([bytes(1000)] * 500)
            await m._engine._node.checkpointer.seal_all()  # type: ignore[attr-defined]
            await queue.publish_many([b"in the log"] * 10)
            first = await m.backup(tmp_path / "vault")
            second = await m.backup(tmp_path / "vault")
            [name] = [path.name for path in (first.path / "sealed").iterdir()]
            for made in (first, second):
                inode = (made.path / "sealed" / name).stat().st_ino
                assert inode == (tmp_path / "data" / "sealed" / name).stat().st_ino
            # The source may drop its own file.
            await queue.purge()
        await millrace.restore(first.path, tmp_path / "again")
        assert findings(tmp_path / "again") == []
        async with opened(tmp_path / "again") as m:
            found = await m.find("orders")
            assert (await found.stats())["live"] == 3010

    run(main())


def test_a_restored_folder_goes_its_own_way(tmp_path: Path) -> None:
    """H1, H2: leases of the source after the backup are not valid in the restored folder."""

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"a", b"b"])
            [before] = await queue.lease(1, seconds=3600)
            known = before.receipt
            await m.backup(tmp_path / "vault")
            [lease] = await queue.lease(1, seconds=3600)
            foreign = lease.receipt
        await millrace.restore(tmp_path / "vault", tmp_path / "again")
        async with opened(tmp_path / "again") as m:
            queue = await m.find("orders")
            [lease] = await queue.lease(1, seconds=3600)
            assert lease.body == b"b"
            with pytest.raises(errors.Gone):
                await queue.settle(foreign)
            await queue.settle(known)
            with pytest.raises(errors.Exists, match="of another folder"):
                await m.backup(tmp_path / "vault")

    run(main())


def test_the_index_stands_still_while_it_is_copied(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            checkpointer = m._engine._node.checkpointer  # type: ignore[attr-defined]
            async with checkpointer.pausing():
                before = (tmp_path / "data" / "index" / "data.mdb").read_bytes()
                waits = asyncio.ensure_future(checkpointer.checkpoint())
                # Publishing goes on for several checkpointer rounds, but without filling the log,
                # which cannot be emptied during the pause.
                since = checkpointer.rounds
                for _ in range(3):
                    await queue.publish_many([bytes(1000)] * 500)

                async def has_looked() -> bool:
                    await queue.publish(b"a little")
                    return bool(checkpointer.rounds >= since + 3)

                await eventually(has_looked)
                assert not waits.done()
                assert (tmp_path / "data" / "index" / "data.mdb").read_bytes() == before
            await waits
            assert (tmp_path / "data" / "index" / "data.mdb").read_bytes() != before

    run(main())


def test_no_file_goes_while_somebody_reads_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            await queue.publish_many([bytes(1000)] * 500)
            node = m._engine._node  # type: ignore[attr-defined]
            await node.checkpointer.seal_all()
            [path] = list((tmp_path / "data" / "sealed").iterdir())
            with node.store.keeping_files():
                await queue.purge()
                await node.checkpointer.seal_all()
                await node.checkpointer.checkpoint()
                assert path.exists()

            async def is_gone() -> bool:
                await queue.publish(b"something to be written down")
                await node.checkpointer.checkpoint()
                return not path.exists()

            await eventually(is_gone)

    run(main())


def test_a_file_is_no_place_for_backups_and_a_time_has_a_zone(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "file").write_bytes(b"")
        async with opened(tmp_path / "data") as m:
            with pytest.raises(errors.Invalid, match="is a file") as caught:
                await m.backup(tmp_path / "file")
            assert caught.value.field == "into"
            await m.backup(tmp_path / "vault")
        with pytest.raises(errors.Invalid, match="time zone") as caught:
            await millrace.restore(tmp_path / "vault", tmp_path / "x", time=datetime(2026, 1, 1))
        assert caught.value.field == "time"
        early = datetime(2026, 1, 1, tzinfo=UTC)
        with pytest.raises(errors.Refused, match="cannot be reached") as before:
            await millrace.restore(tmp_path / "vault", tmp_path / "x", time=early)
        assert before.value.field == "time"

    run(main())
