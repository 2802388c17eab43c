"""Verify and restore find damage in a backup, and name the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import millrace
from millrace import errors
from millrace.maintenance.restore import RESTORING
from millrace.maintenance.verify import OfflineStore, compare_digests, digest_store
from tests.cli.program import flip
from tests.client.harness import opened, run


async def make(folder: Path, *, follow: bool = False) -> Path:
    """Make a repository with one backup, with all kinds of files."""
    async with opened(folder / "data") as m:
        queue = await m.queue("orders")
        await queue.publish_many([bytes(1000)] * 900)
        await m._engine._node.checkpointer.seal_all()  # type: ignore[attr-defined]
        await queue.publish_many([b"in the log"] * 10)
        made = await m.backup(folder / "vault", follow=follow)
        await queue.publish_many([b"archived"] * 10)
    return made.path


def undo(into: Path) -> None:
    """Remove what was restored, which must not look complete."""
    assert not into.exists() or (into / RESTORING).exists()
    shutil.rmtree(into, ignore_errors=True)


async def refuses(backup: Path, into: Path, name: str) -> None:
    with pytest.raises(errors.Corrupt, match=name):
        await millrace.verify(backup)
    with pytest.raises(errors.Corrupt, match=name):
        await millrace.restore(backup, into)
    undo(into)


def test_every_kind_of_damage_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        backup = await make(tmp_path)
        assert (await millrace.verify(backup)).rows == 910
        files = sorted(path for path in backup.rglob("*") if path.is_file())
        assert len(files) >= 4
        for path in files:
            data = path.read_bytes()
            # It is a hard link to a file of the source: damage only the copy.
            path.unlink()
            for offset in {1, len(data) // 3, len(data) // 2, len(data) - 2}:
                path.write_bytes(data)
                flip(path, offset)
                await refuses(backup, tmp_path / "never", path.name)
            path.write_bytes(data[:-1])
            await refuses(backup, tmp_path / "never", path.name)
            path.unlink()
            if path.name != "manifest.json":
                await refuses(backup, tmp_path / "never", path.name)
            path.write_bytes(data)
        assert (await millrace.verify(backup)).rows == 910

    run(main())


def test_damage_in_the_archive_is_found(tmp_path: Path) -> None:
    async def main() -> None:
        backup = await make(tmp_path, follow=True)
        assert (await millrace.verify(backup)).rows == 920
        [*_, path] = sorted((tmp_path / "vault" / "archive" / "log").iterdir())
        data = path.read_bytes()
        for offset in range(4096 + 20, len(data), 4096):
            flip(path, offset)
            await refuses(backup, tmp_path / "never", "archive/log|offset|log")
            path.write_bytes(data)
        path.write_bytes(data[:4096])
        await refuses(backup, tmp_path / "never", "missing or damaged")

    run(main())


def test_a_damaged_end_of_an_archived_segment_is_no_end(tmp_path: Path) -> None:
    """The following records show that it is damaged: no older state is restored in its place."""

    async def main() -> None:
        backup = await make(tmp_path, follow=True)
        async with opened(tmp_path / "data") as m:
            await (await m.find("orders")).publish(b"in the next segment")
        path, *others = sorted((tmp_path / "vault" / "archive" / "log").iterdir())
        assert others
        data = path.read_bytes()
        last = max(at for at in range(4096, len(data), 4096) if data[at : at + 4] == b"MRR1")
        flip(path, last + 20)
        for name in (backup, backup.parent):
            with pytest.raises(errors.MillraceError, match=r"gap|damaged"):
                await millrace.restore(name, tmp_path / "never")

    run(main())


def test_an_unfinished_backup_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        backup = await make(tmp_path)
        unfinished = backup.rename(backup.with_name("000002.unfinished"))
        with pytest.raises(errors.Refused, match="unfinished"):
            await millrace.restore(unfinished, tmp_path / "never")
        with pytest.raises(errors.NotFound):
            await millrace.restore(tmp_path / "vault", tmp_path / "never")
        async with opened(tmp_path / "data") as m:
            made = await m.backup(tmp_path / "vault")
        assert made.path.name == "000001"
        assert not unfinished.exists()

    run(main())


def test_a_target_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        backup = await make(tmp_path)
        into = tmp_path / "into"
        into.mkdir()
        (into / "mine").write_text("keep it")
        with pytest.raises(errors.Exists, match="not empty"):
            await millrace.restore(backup, into)
        assert [path.name for path in into.iterdir()] == ["mine"]
        with pytest.raises(errors.Invalid, match="lies in the folder"):
            async with opened(tmp_path / "data") as m:
                await m.backup(tmp_path / "data" / "vault")
        for wrong in (tmp_path / "nothing", into):
            with pytest.raises(errors.NotFound):
                await millrace.restore(wrong, tmp_path / "never")

    run(main())


def test_a_source_that_holds_something_else_is_told_apart(tmp_path: Path) -> None:
    async def main() -> None:
        backup = await make(tmp_path, follow=True)
        assert (await millrace.verify(backup, against=tmp_path / "data")).differences == ()
        await millrace.restore(backup, tmp_path / "other")
        async with opened(tmp_path / "other") as m:
            await (await m.find("orders")).publish(b"its own")
        async with opened(tmp_path / "data") as m:
            await (await m.find("orders")).publish(b"not the same")
        with pytest.raises(errors.Exists, match="of different folders"):
            await millrace.verify(backup, against=tmp_path / "other")
        with OfflineStore(tmp_path / "data") as one, OfflineStore(tmp_path / "other") as other:
            [difference] = compare_digests(digest_store(one), digest_store(other))
        assert "rows" in difference

    run(main())
