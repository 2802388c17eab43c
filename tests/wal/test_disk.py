"""The real disk keeps what its port promises. The simulated one: tests/simulation/test_disk.py."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace import errors, limits
from millrace.wal.disk import RealDisk, byte_count
from tests.support.contracts.check_disk import check_disk
from tests.wal.harness import open_log, read_log


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    return RealDisk(tmp_path)


def test_it_keeps_the_promises_of_a_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    check_disk(lambda: RealDisk(tmp_path_factory.mktemp("disk")))


def test_more_buffers_than_the_kernel_takes_at_once(disk: RealDisk) -> None:
    buffers = [b"%06d" % number for number in range(2 * limits.WRITE_BUFFERS_MAX + 7)]
    buffers[5] = b""
    file = disk.create("file")
    file.write(buffers, 1)
    assert file.read(1 << 20, 1) == b"".join(buffers)


def test_a_short_write_is_continued_and_then_fails(disk: RealDisk) -> None:
    """The kernel wrote a part and stopped; the rest must not be forgotten."""
    file = disk.create("file")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, old[1]))
    try:
        with pytest.raises(errors.DiskFailed, match="writing to file failed"):
            file.write([b"a" * 3000, b"b" * 3000], 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert file.size == 5000
    file.write([b"a" * 3000, b"b" * 3000], 0)
    assert file.read(9000, 0) == b"a" * 3000 + b"b" * 3000


def test_bytes_are_counted_whatever_the_items_are() -> None:
    assert byte_count([b"abc", array("Q", [1, 2]), memoryview(array("I", [1]))]) == 3 + 16 + 4


@contextmanager
def no_more_files() -> Iterator[None]:
    """Opening a file reports that the process has too many open files."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)


def test_too_many_open_files_are_no_failure(disk: RealDisk) -> None:
    """Nothing was written: the same call succeeds when some were closed."""
    file = disk.create("file")
    file.write([b"there"], 0)
    with no_more_files():
        for call in (
            lambda: disk.open("file"),
            lambda: disk.create("other"),
            lambda: disk.open("third", create_bytes=4096),
            file.map,
            lambda: disk.sync_folder(""),
            lambda: disk.lock("lock"),
        ):
            with pytest.raises(errors.Full, match="Too many open files") as caught:
                call()
            assert caught.value.field == "files"
    assert disk.names("") == ["file"]
    assert bytes(file.map()) == disk.open("file").read(9, 0) == b"there"


def test_a_log_goes_on_after_too_many_open_files(disk: RealDisk) -> None:
    log, _ = open_log(disk)
    before = disk.names("log")
    with no_more_files(), pytest.raises(errors.Full):
        log.prepare()
    assert disk.names("log") == before
    assert log.prepare()
    log.append([b"it goes on"])
    log.close()
    assert read_log(disk) == [b"it goes on"]


def test_a_full_disk_is_full_and_any_other_failure_fatal() -> None:
    file = RealDisk(Path("/dev")).open("full")
    with pytest.raises(errors.Full, match="full: the disk is full"):
        file.write([b"x"], 0)
    with pytest.raises(errors.DiskFailed, match="syncing full failed"):
        file.sync()
    with pytest.raises(errors.DiskFailed, match="syncing full failed"):
        file.sync_all()
    file.close()
    with pytest.raises(errors.DiskFailed, match="reading full at 0 failed"):
        file.read(1, 0)


def test_what_does_not_fit_is_not_left_behind(disk: RealDisk) -> None:
    with pytest.raises(errors.MillraceError):
        disk.open("large", create_bytes=1 << 62)
    assert not disk.exists("large")


def test_a_copy_has_another_identity(disk: RealDisk, tmp_path: Path) -> None:
    disk.create("one").close()
    before = disk.identity("one")
    (tmp_path / "two").write_bytes((tmp_path / "one").read_bytes())
    (tmp_path / "one").chmod(0o644)
    assert disk.identity("two") != disk.identity("one") == before


def test_what_the_path_forbids_is_refused(disk: RealDisk) -> None:
    for name in ("../outside", "/absolute", "a//b"):
        with pytest.raises(errors.Invalid):
            disk.exists(name)
    # The kernel's own tree takes no files, not even from root.
    for forbidden in (RealDisk(Path("/sys")).create, RealDisk(Path("/sys")).lock):
        with pytest.raises(errors.Refused, match="must be writable"):
            forbidden("millrace")


def test_a_read_only_disk_changes_nothing(tmp_path: Path) -> None:
    RealDisk(tmp_path).create("file").write([b"x"], 0)
    disk = RealDisk(tmp_path, read_only=True)
    assert disk.open("file").read(1, 0) == b"x"
    for change in (disk.create, disk.remove, disk.make_folder, disk.lock):
        with pytest.raises(errors.Refused, match="read-only"):
            change("other")
    for pair in (disk.rename, disk.link):
        with pytest.raises(errors.Refused, match="read-only"):
            pair("file", "other")
    with pytest.raises(errors.DiskFailed):
        disk.open("file").write([b"y"], 0)
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_has_one_owner(disk: RealDisk, tmp_path: Path) -> None:
    lock = disk.lock("owner")
    with pytest.raises(errors.InUse, match=str(os.getpid())) as caught:
        RealDisk(tmp_path).lock("owner")
    assert caught.value.pid == os.getpid()
    lock.release()
    lock.release()
    disk.lock("owner").release()


@pytest.mark.process
def test_another_process_is_named_and_its_end_frees_the_folder(
    disk: RealDisk, tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path; from millrace.wal.disk import RealDisk;"
        "lock = RealDisk(Path(sys.argv[1])).lock('owner'); print('locked', flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"locked\n"
        with pytest.raises(errors.InUse) as caught:
            disk.lock("owner")
        assert caught.value.pid == owner.pid
        owner.kill()
    disk.lock("owner").release()
