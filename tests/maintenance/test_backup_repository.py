"""Backup repositories: refused folders, failed backups and their remnants."""

from __future__ import annotations

from pathlib import Path

import pytest

import millrace
from millrace import errors
from millrace.maintenance.backup_repository import BackupRepository
from millrace.maintenance.wal_archiver import ArchiveState, merge_archive_states
from millrace.wal.disk import RealDisk
from tests.client.harness import Clock, eventually, opened, run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def no_room(_: int, __: int) -> None:
    raise errors.Full("there is no room; free some", field="path")


def test_no_link_leads_a_backup_into_its_own_folder(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            (tmp_path / "link").symlink_to(tmp_path / "data")
            with pytest.raises(errors.Invalid, match="backed up") as caught:
                await m.backup(tmp_path / "link" / "backups")
            assert caught.value.field == "into"
        assert "backups" not in names(tmp_path / "data")

    run(main())


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300])
def test_a_place_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        (tmp_path / "file").touch()
        async with opened(tmp_path / "data") as m:
            with pytest.raises(errors.Invalid):
                await m.backup(tmp_path / name)
            await m.backup(tmp_path / "vault")
        with pytest.raises(errors.Invalid):
            await millrace.restore(tmp_path / "vault", tmp_path / name)

    run(main())


def test_nothing_is_restored_among_the_backups(tmp_path: Path) -> None:
    async def main() -> None:
        vault = tmp_path / "vault"
        async with opened(tmp_path / "data") as m:
            made = await m.backup(vault)
            for into in (vault / "again", made.path / "again"):
                with pytest.raises(errors.Invalid, match="among the backups"):
                    await millrace.restore(vault, into)
            # Otherwise this would find something else there.
            await m.backup(vault)

    run(main())


def test_what_the_backup_before_has_lost_is_taken_from_the_folder(tmp_path: Path) -> None:
    async def main() -> None:
        vault = tmp_path / "vault"
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            await queue.publish_many([bytes(1000)] * 500)
            await m._engine._node.checkpointer.seal_all()  # type: ignore[attr-defined]
            await queue.publish_many([b"in the log"] * 10)
            first = await m.backup(vault)
            for folder in ("sealed", "log"):
                [path] = (first.path / folder).iterdir()
                path.unlink()
            second = await m.backup(vault)
            assert (await millrace.verify(second.path)).rows == 510
            # A truncated file is no better; the folder's own must not be truncated with it.
            [path] = (second.path / "log").iterdir()
            path.write_bytes(path.read_bytes()[:4096])
            third = await m.backup(vault)
            assert (await millrace.verify(third.path)).rows == 510

    run(main())


def test_a_damaged_backup_says_how_others_can_be_made(tmp_path: Path) -> None:
    async def main() -> None:
        vault = tmp_path / "vault"
        async with opened(tmp_path / "data") as m:
            made = await m.backup(vault)
            (made.path / "manifest.json").write_bytes(b"{")
            with pytest.raises(errors.Invalid, match="move it away") as caught:
                await m.backup(vault)
            assert str(made.path) in caught.value.message
            made.path.rename(tmp_path / "away")
            await m.backup(vault)

    run(main())


def test_a_backup_that_fails_in_any_way_leaves_nothing(tmp_path: Path) -> None:
    def broken(_: int, __: int) -> None:
        raise ValueError("a progress bar that broke")

    async def main() -> None:
        vault = tmp_path / "vault"
        async with opened(tmp_path / "data") as m:
            with pytest.raises(ValueError, match="broke"):
                await m.backup(vault, progress=broken)
            assert names(vault) == ["lock"]

    run(main())


def test_a_backup_that_fails_ends_no_archive(tmp_path: Path) -> None:
    async def main() -> None:
        vault, other = tmp_path / "vault", tmp_path / "other"
        async with opened(tmp_path / "data") as m:
            queue = await m.queue("orders")
            await m.backup(vault, follow=True)
            for place in (vault, other):
                with pytest.raises(errors.Full):
                    await m.backup(place, follow=True, progress=no_room)
                assert (await m.health()).archive == vault
            await queue.publish(b"later")
        assert (await millrace.verify(vault, against=tmp_path / "data")).differences == ()
        end = await millrace.restore(vault, tmp_path / "again")
        async with opened(end.path) as m:
            assert len(await (await m.find("orders")).peek(10)) == 1

    run(main())


def test_nothing_is_archived_where_nothing_is_mounted(tmp_path: Path) -> None:
    async def main() -> None:
        vault, clock = tmp_path / "vault", Clock()
        async with opened(tmp_path / "data", clock=clock) as m:
            await (await m.queue("orders")).publish(b"first")
            await m.backup(vault, follow=True)
        vault.rename(tmp_path / "elsewhere")
        vault.mkdir()  # what is there when the disk is not mounted
        async with opened(tmp_path / "data", clock=clock) as m:
            await (await m.find("orders")).publish(b"second")

            async def is_told() -> bool:
                return (await m.health()).archive_error is not None

            await eventually(is_told)
            assert "is it mounted?" in str((await m.health()).archive_error)
        assert names(vault) == []
        vault.rmdir()
        (tmp_path / "elsewhere").rename(vault)
        async with opened(tmp_path / "data", clock=clock):
            pass
        assert BackupRepository(vault).numbers() == [1]
        assert (await millrace.verify(vault, against=tmp_path / "data")).differences == ()
        assert (await millrace.verify(vault)).rows == 2

    run(main())


def test_an_archive_that_was_begun_in_vain_hides_no_gap() -> None:
    before, since = ArchiveState("/vault", 3, 2), ArchiveState("/vault", 7)
    assert merge_archive_states(before, since) == ArchiveState("/vault", 3, 2)
    assert merge_archive_states(before, ArchiveState("/vault", 7, 6)) == ArchiveState(
        "/vault", 3, 6
    )
    # A gap of another repository does not concern this one.
    assert merge_archive_states(before, ArchiveState("/other", 7, 6)) == before


def test_what_a_killed_verification_has_left_is_removed_by_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            await (await m.queue("orders")).publish(b"x")
            await m.backup(tmp_path / "vault")
        killed, at_work, about_to = (
            tmp_path / "vault" / f"verifying.{name}.unfinished" for name in ("a", "b", "c")
        )
        for left in (killed, at_work):
            (left / "folder" / "log").mkdir(parents=True)
            (left / "lock").write_bytes(b"1")
        about_to.mkdir()
        held = RealDisk(at_work).lock("lock")
        assert (await millrace.verify(tmp_path / "vault")).rows == 1
        assert [killed.exists(), at_work.exists(), about_to.exists()] == [False, True, True]
        held.release()
        assert (await millrace.verify(tmp_path / "vault")).rows == 1
        assert [at_work.exists(), about_to.exists()] == [False, True]

    run(main())
