"""Opening a folder: creation, ownership, refusals."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import millrace
from millrace import errors
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.node import Node, real_ports
from tests.client import full_disk
from tests.client.harness import SMALL, copy_live, opened, run
from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[2]

NOBODY = 65534


def python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"tests.client.{module}", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


async def publish(path: Path, body: bytes, **options: Any) -> list[bytes | None]:
    """Open, publish, and return all messages."""
    async with millrace.open(path, settings=SMALL, **options) as m:
        queue = await m.queue("orders")
        await queue.publish(body)
        return [row.body for row in await queue.peek(100)]


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in ("lock", "lock.mdb", "data.mdb")
    }


# --- Opening -------------------------------------------------------------------------------------


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where"
    assert run(publish(path, b"x")) == [b"x"]
    assert run(publish(path, b"y")) == [b"x", b"y"]


def test_it_may_be_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        m = await millrace.open(str(tmp_path), settings=SMALL)
        await (await m.queue("orders")).publish(b"x")
        await m.close()
        async with await millrace.open(tmp_path, settings=SMALL) as m:
            assert await m.queues() == ["orders"]

    run(main())


def test_a_moved_folder_is_the_same(tmp_path: Path) -> None:
    run(publish(tmp_path / "old", b"x"))
    (tmp_path / "old").rename(tmp_path / "new")
    assert run(publish(tmp_path / "new", b"y")) == [b"x", b"y"]


def test_a_cancelled_opening_lets_the_folder_go(tmp_path: Path) -> None:
    async def main() -> None:
        threads = threading.active_count()
        for turns in range(1, 8):
            task = asyncio.create_task(publish(tmp_path, b"x"))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert threading.active_count() == threads
        assert (await publish(tmp_path, b"last"))[-1] == b"last"

    run(main())


# --- One owner -----------------------------------------------------------------------------------


@pytest.mark.process
def test_a_second_process_is_refused_with_the_pid(tmp_path: Path) -> None:
    with subprocess.Popen(
        python("owner", str(tmp_path)),
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "open\n"
            with pytest.raises(errors.InUse, match=f"process {owner.pid}") as caught:
                run(publish(tmp_path, b"x"))
            assert (caught.value.pid, caught.value.field) == (owner.pid, "path")
            owner.communicate("", timeout=scaled(30))
        finally:
            owner.kill()
    assert owner.returncode == 0
    assert run(publish(tmp_path, b"x")) == [b"from the owner", b"x"]


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as m:
            with pytest.raises(errors.InUse) as caught:
                await publish(tmp_path, b"x")
            assert caught.value.pid == os.getpid()
            assert await m.queues() == []

    run(main())


@pytest.mark.process
def test_a_killed_owner_leaves_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        python("owner", str(tmp_path)),
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        owner.kill()
    assert run(publish(tmp_path, b"x")) == [b"from the owner", b"x"]


# --- Copies --------------------------------------------------------------------------------------


def test_a_copy_is_refused_unless_it_is_forked(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    run(publish(original, b"1"))
    shutil.copytree(original, copy)
    threads = threading.active_count()
    for _ in range(2):
        with pytest.raises(errors.Copied, match="fork=True"):
            run(publish(copy, b"x"))
    assert threading.active_count() == threads
    assert run(publish(copy, b"mine", fork=True)) == [b"1", b"mine"]
    assert run(publish(copy, b"again")) == [b"1", b"mine", b"again"]
    assert run(publish(original, b"2")) == [b"1", b"2"]


def test_a_fork_has_a_history_of_its_own(tmp_path: Path) -> None:
    """A receipt known to both is valid for what they share, and for nothing later."""
    original, copy = tmp_path / "original", tmp_path / "copy"

    async def main() -> None:
        async with opened(original) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"1", b"2"])
            shared = (await queue.lease(seconds=3600))[0].receipt
            async with queue.snapshot() as snapshot:
                history = snapshot.id[0]
        await asyncio.to_thread(shutil.copytree, original, copy)
        async with opened(original) as m:
            queue = await m.find("orders")
            later = (await queue.lease(seconds=3600))[0].receipt
            async with queue.snapshot() as snapshot:
                assert snapshot.id[0] == history
        async with millrace.open(copy, fork=True, settings=SMALL) as m:
            queue = await m.find("orders")
            async with queue.snapshot() as snapshot:
                assert snapshot.id[0] != history
            await queue.lease(seconds=3600)
            await queue.settle(shared)
            with pytest.raises(errors.Gone, match="history"):
                await queue.settle(later)
            assert (await queue.stats())["settled"] == 1

    run(main())


# --- Paths ---------------------------------------------------------------------------------------


@contextmanager
def unprivileged() -> Iterator[None]:
    """Change to another user during the test: a superuser may write everywhere."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(own)


def test_a_read_only_path_is_refused() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data"
        run(publish(data, b"x"))
        for each in (data, folder):
            each.chmod(0o555)
        for path in (data, folder / "new", data / "log" / "new"):
            with unprivileged(), pytest.raises(errors.Refused) as caught:
                run(publish(path, b"y"))
            assert caught.value.field == "path"
        for each in (folder, data):
            each.chmod(0o755)
        assert run(publish(data, b"y")) == [b"x", b"y"]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below"):
        with pytest.raises(errors.Invalid) as caught:
            run(publish(path, b"x"))
        assert caught.value.field == "path"
    paths: list[Any] = ["", None, 5]
    for path in paths:
        with pytest.raises(errors.Invalid, match="path"):
            millrace.open(path)
    assert file.read_text() == "x"


# --- Damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://127.0.0.1:7070", "https://queues.example"])
def test_an_address_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (url, Path(url)):
        with pytest.raises(errors.Invalid, match=r"use millrace\.connect") as caught:
            millrace.open(path)
        assert caught.value.field == "path"
    assert not list(tmp_path.iterdir())


def test_host_and_port_are_no_folder_unless_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.Invalid, match=r"use millrace\.connect.*\./localhost:7070") as caught:
        millrace.open("localhost:7070")
    assert caught.value.field == "path"
    assert not list(tmp_path.iterdir())
    millrace.open("./localhost:7070")
    Path("localhost:7070").mkdir()
    millrace.open("localhost:7070")


def test_a_damaged_log_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data"

    async def fill() -> None:
        settings = replace(SMALL, checkpoint_seconds=3600)
        node = await Node.open(real_ports(path), settings)
        async with Millrace(EmbeddedEngine(node)) as m:
            queue = await m.queue("orders")
            await node.checkpointer.checkpoint()
            # After it and before the next one, so that all of these must be read again.
            for n in range(20):
                await queue.publish(b"%d" % n * 1000)
            await asyncio.to_thread(copy_live, path, tmp_path / "crashed")

    run(fill())
    shutil.rmtree(path)
    (tmp_path / "crashed").rename(path)
    segment, offset = find(path / "log", b"10" * 1000)
    whole = segment.read_bytes()
    segment.write_bytes(whole[:offset] + b"!" + whole[offset + 1 :])
    before = contents(path)
    for _ in range(2):
        with pytest.raises(errors.Corrupt, match=segment.name):
            run(publish(path, b"x", fork=True))
        assert contents(path) == before
    segment.write_bytes(whole)
    assert len(run(publish(path, b"x", fork=True))) == 21


def find(folder: Path, data: bytes) -> tuple[Path, int]:
    for file in sorted(folder.iterdir()):
        offset = file.read_bytes().find(data)
        if offset >= 0:
            return file, offset
    raise AssertionError("it is in no file")


@pytest.mark.process
def test_a_full_disk_refuses_what_grows_and_settles_the_rest(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size={full_disk.DISK_BYTES} none "$0" && exec "$@"'
    apart = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("this system lets nobody mount a small file system")
    done = subprocess.run(
        [*apart, *python("full_disk", str(tmp_path))],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(120),
    )
    assert done.returncode == 0, done.stderr
