"""A folder has one owner, and none after that one closed it or died, whatever was forked."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace import errors
from millrace.wal.disk import Lock, RealDisk
from tests.support.timeouts import scaled

pytestmark = pytest.mark.process

SECONDS_MAX = scaled(30)

FORK = multiprocessing.get_context("fork")


@contextmanager
def forked(lock: Lock | None = None) -> Iterator[None]:
    """A child process that lives as long as the body; it releases the lock that it is given."""
    ours, theirs = FORK.Pipe()

    def live() -> None:
        if lock is not None:
            lock.release()
        theirs.send("here")
        theirs.recv()

    child = FORK.Process(target=live, daemon=True)
    child.start()
    try:
        assert ours.poll(SECONDS_MAX)
        ours.recv()
        yield
        assert child.is_alive()
    finally:
        ours.send("end")
        child.join(SECONDS_MAX)
    assert child.exitcode == 0


def test_a_child_keeps_no_folder_that_its_parent_has_closed(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    lock = disk.lock("owner")
    with forked():
        lock.release()
        disk.lock("owner").release()


def test_a_child_does_not_let_others_in(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    lock = disk.lock("owner")
    with forked(lock), pytest.raises(errors.InUse):
        disk.lock("owner")
    with pytest.raises(errors.InUse):
        disk.lock("owner")
    lock.release()


def test_a_child_keeps_no_folder_whose_owner_was_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from millrace.wal.disk import RealDisk;"
        "lock = RealDisk(Path(sys.argv[1])).lock('owner'); child = os.fork();"
        "child or print(os.getpid(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        with pytest.raises(errors.InUse) as caught:
            RealDisk(tmp_path).lock("owner")
        assert caught.value.pid == owner.pid
        owner.kill()
        owner.wait(SECONDS_MAX)
        os.kill(child, 0)
        RealDisk(tmp_path).lock("owner").release()


def test_the_same_process_is_told_so(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    lock = disk.lock("owner")
    with pytest.raises(errors.InUse, match="already open in this process") as caught:
        disk.lock("owner")
    assert caught.value.pid == os.getpid()
    lock.release()
    # A process of another machine may have the same number.
    program = (
        "import sys, fcntl; file = open(sys.argv[1], 'r+'); fcntl.flock(file, fcntl.LOCK_EX);"
        "file.write(sys.argv[2]); file.flush(); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "owner"), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(errors.InUse, match=f"in use by process {os.getpid()}") as other:
            disk.lock("owner")
        assert other.value.pid is None, "whoever waits for others would not wait for this one"
        owner.kill()
