"""The simulated disk: it keeps a disk's promises, and breaks nothing that was synced."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import errors
from tests.support.contracts.check_disk import check_disk
from tests.support.simulator.disk import Crashed, Effect, SimDisk


def new_disk(seed: int = 0) -> SimDisk:
    return SimDisk(random.Random(seed))


def outcomes(build: Callable[[SimDisk], None], name: str = "file") -> Counter[bytes | None]:
    """Return what a crash leaves of the file, over many seeds; None: no such file."""
    found: Counter[bytes | None] = Counter()
    for seed in range(200):
        disk = new_disk(seed)
        build(disk)
        disk = disk.crash()
        found[disk.open(name).read(1 << 20, 0) if disk.exists(name) else None] += 1
    return found


def test_it_keeps_the_promises_of_a_disk() -> None:
    check_disk(new_disk)


def test_what_was_synced_stays() -> None:
    def build(disk: SimDisk) -> None:
        file = disk.create("file")
        file.write([b"kept"], 0)
        file.sync()
        disk.sync_folder("")

    assert set(outcomes(build)) == {b"kept"}


def test_a_name_is_lost_if_its_folder_was_not_synced() -> None:
    def build(disk: SimDisk) -> None:
        file = disk.create("file")
        file.write([b"kept"], 0)
        file.sync()

    assert set(outcomes(build)) == {None, b"kept"}


def test_a_file_is_lost_with_the_name_of_its_folder() -> None:
    def build(disk: SimDisk) -> None:
        disk.make_folder("folder")
        disk.create("folder/file")
        disk.sync_folder("folder")

    assert set(outcomes(build, "folder/file")) == {None, b""}


def test_an_unsynced_write_is_kept_lost_or_torn() -> None:
    old, new = b"-" * 8192, b"+" * 8192

    def build(disk: SimDisk) -> None:
        file = disk.create("file")
        file.write([old], 0)
        file.sync()
        disk.sync_folder("")
        file.write([new], 0)

    found = outcomes(build)
    assert {old, new} < set(found)
    pieces = {content[place : place + 512] for content in found if content for place in (0, 512)}
    assert pieces == {b"-" * 512, b"+" * 512}, "a sector is never torn"
    assert any(content and content[:512] != content[512:1024] for content in found)
    assert any(content and content[:4096] == b"+" * 4096 != content[4096:] for content in found)


def test_writes_are_lost_one_by_one() -> None:
    def build(disk: SimDisk) -> None:
        file = disk.create("file")
        file.write([b".."], 0)
        file.sync()
        disk.sync_folder("")
        file.write([b"a"], 0)
        file.write([b"b"], 1)

    assert set(outcomes(build)) == {b"..", b"a.", b".b", b"ab"}


def test_changes_of_names_are_kept_in_order() -> None:
    def build(disk: SimDisk) -> None:
        for name in ("one", "two", "three"):
            disk.create(name)

    found = set()
    for seed in range(100):
        disk = new_disk(seed)
        build(disk)
        found.add(tuple(disk.crash().names("")))
    assert found == {(), ("one",), ("one", "two"), ("one", "three", "two")}


def test_a_rename_is_one_step() -> None:
    def build(disk: SimDisk) -> None:
        for name, content in (("file", b"old"), ("next", b"new")):
            file = disk.create(name)
            file.write([content], 0)
            file.sync()
        disk.sync_folder("")
        disk.rename("next", "file")

    assert set(outcomes(build)) == {b"old", b"new"}


def test_a_removed_name_may_come_back() -> None:
    def build(disk: SimDisk) -> None:
        disk.create("file")
        disk.sync_folder("")
        disk.remove("file")

    assert set(outcomes(build)) == {None, b""}


def test_a_killed_process_leaves_its_writes_in_the_cache() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        disk.create("file").write([b"x"], 0)
        lock = disk.lock("owner")
        found = disk.kill()
        assert found.open("file").read(1, 0) == b"x"
        found.lock("owner")
        lock.release()
        with pytest.raises(Crashed):
            disk.open("file")


def test_after_a_failed_sync_the_pages_count_as_clean() -> None:
    """The second sync succeeds, and what the first one lost stays lost."""
    found = set()
    for seed in range(100):
        disk = new_disk(seed)
        file = disk.create("file")
        file.write([b"."], 0)
        file.sync()
        disk.sync_folder("")
        file.write([b"x"], 0)
        disk.fail_sync_in = 1
        with pytest.raises(errors.DiskFailed, match="syncing file failed"):
            file.sync()
        assert file.read(1, 0) == b"x"
        file.sync()
        later = disk.kill()
        cached = later.open("file").read(1, 0)
        found.add((cached, later.crash().open("file").read(1, 0)))
    assert found == {(b"x", b"x"), (b"x", b"."), (b".", b".")}


def test_after_a_failed_sync_of_a_folder_its_names_are_left_to_chance() -> None:
    found: set[bool] = set()
    for seed in range(50):
        disk = new_disk(seed)
        disk.create("file")
        disk.fail_folder_sync_in = 1
        with pytest.raises(errors.DiskFailed):
            disk.sync_folder("")
        found.add(disk.crash().exists("file"))
    assert found == {True, False}


def test_a_sync_may_find_no_room() -> None:
    found: set[bytes] = set()
    for seed in range(50):
        disk = new_disk(seed)
        file = disk.create("file")
        file.write([b"x"], 0)
        disk.sync_folder("")
        disk.sync_finds_no_room = True
        with pytest.raises(errors.Full):
            file.sync()
        found.add(disk.crash().open("file").read(1, 0))
    assert found == {b"x", b""}


def test_the_nth_sync_and_the_nth_write_fail() -> None:
    disk = new_disk()
    file = disk.create("file")
    disk.fail_sync_in = 2
    file.sync()
    with pytest.raises(errors.DiskFailed):
        file.sync_all()
    file.sync()
    disk.fail_write_in = 2
    file.write([b"a"], 0)
    with pytest.raises(errors.DiskFailed, match="writing to file failed"):
        file.write([b"b"], 0)
    file.write([b"c"], 0)
    assert file.read(1, 0) == b"c"


def test_a_budget_fills_the_disk() -> None:
    disk = new_disk()
    disk.budget_bytes = 10
    file = disk.create("file")
    file.write([b"12345678"], 0)
    assert disk.free_bytes() == 2
    with pytest.raises(errors.Full):
        file.write([b"abcd"], 8)
    assert file.read(20, 0) == b"12345678ab", "as much as fits is written"
    file.write([b"in place"], 0)
    with pytest.raises(errors.Full):
        disk.open("other", create_bytes=1)
    assert disk.names("") == ["file"]
    disk.remove("file")
    assert disk.free_bytes() == 10


def test_flips_and_bad_sectors() -> None:
    disk = new_disk()
    file = disk.create("file")
    file.write([b"abc"], 0)
    disk.sync_folder("")
    disk.flip("file", 1, bit=0)
    assert file.read(3, 0) == b"acc"
    assert disk.crash().open("file").read(3, 0) == b"acc"
    disk = new_disk()
    file = disk.create("file")
    file.write([b"abc"], 0)
    disk.break_reads("file", offset=2, length=1)
    assert file.read(2, 0) == b"ab"
    with pytest.raises(errors.DiskFailed, match="reading file at 1 failed"):
        file.read(2, 1)


def test_a_hook_sees_every_effect_and_may_end_the_machine() -> None:
    disk = new_disk()
    seen: list[Effect] = []
    disk.hook = seen.append
    disk.make_folder("folder")
    file = disk.create("folder/one")
    file.write([b"x"], 0)
    file.sync()
    disk.link("folder/one", "folder/two")
    disk.rename("folder/two", "folder/three")
    disk.remove("folder/three")
    disk.sync_folder("folder")
    verbs = ["make_folder", "create", "write", "sync", "link", "rename", "remove", "sync_folder"]
    assert [effect.verb for effect in seen] == verbs
    assert [effect.number for effect in seen] == list(range(len(verbs)))
    assert disk.effects == len(verbs)

    def end(effect: Effect) -> None:
        raise Crashed

    disk.hook = end
    with pytest.raises(Crashed):
        file.write([b"y"], 0)
    disk.hook = None
    with pytest.raises(Crashed):
        file.write([b"y"], 0)
    assert disk.kill().open("folder/one").read(1, 0) == b"x"


def test_a_file_may_grow_while_it_is_mapped() -> None:
    file = new_disk().create("file")
    file.write([b"ab"], 0)
    view = file.map()
    file.write([b"cd"], 2)
    assert bytes(view) == b"ab"
    assert bytes(file.map()) == b"abcd"


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 5000))))
def test_only_unsynced_ranges_change_in_a_crash(seed: int, writes: list[tuple[int, int]]) -> None:
    disk = new_disk(seed)
    file = disk.create("file")
    file.write([b"\xaa" * 16384], 0)
    file.sync()
    disk.sync_folder("")
    model = bytearray(b"\xaa" * 16384)
    for offset, length in writes:
        file.write([b"\xbb" * length], offset)
        model[offset : offset + length] = b"\xbb" * length
    assert file.read(16384, 0) == model
    found = disk.crash().open("file").read(16384, 0)
    assert all(byte == 0xAA or model[place] == byte for place, byte in enumerate(found))


@pytest.mark.process
def test_the_same_seed_gives_the_same_disk_whatever_the_hash_seed() -> None:
    program = (
        "from tests.wal.harness import VERBS, Life\n"
        "import random, hashlib\n"
        "life, chance = Life(5), random.Random(6)\n"
        "for _ in range(80): life.step(chance.choice(VERBS))\n"
        "print(hashlib.sha256(repr((life.known, life.disk.effects)).encode()).hexdigest())\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1", "4711")
    }
    assert len(found) == 1
