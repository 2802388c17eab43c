"""Cells in LMDB: damage, crashes, full disks, bytes."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from millrace import errors, limits
from millrace.store.cells import Table
from millrace.store.lmdb_cells import LmdbCells
from millrace.store.lmdb_reader import ValueChecksum
from tests.store import full_disk

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "formats" / "cells-1.txt"


class Raw:
    """The tables as another program sees them."""

    def __init__(self, environment: lmdb.Environment, transaction: lmdb.Transaction[bytes]) -> None:
        self._environment = environment
        self._transaction = transaction

    def table(self, name: str) -> lmdb._Database:
        return self._environment.open_db(name.encode(), txn=self._transaction)

    def get(self, name: str, key: bytes) -> bytes:
        return self._transaction.get(key, b"", db=self.table(name))

    def put(self, name: str, key: bytes, stored: bytes) -> None:
        self._transaction.put(key, stored, db=self.table(name))

    def delete(self, name: str, key: bytes) -> None:
        self._transaction.delete(key, db=self.table(name))


def open_cells(folder: Path, *, map_bytes: int = limits.CELLS_MAP_BYTES) -> LmdbCells:
    return LmdbCells(folder, map_bytes=map_bytes, ballast_bytes=4096, spare_bytes=4096)


def run(module: str, *arguments: str, before: tuple[str, ...] = ()) -> str:
    """Run one of the programs next to this file, and return its output."""
    command = [*before, sys.executable, "-m", f"tests.store.{module}", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def edit(folder: Path, change: Callable[[Raw], None]) -> None:
    """Change the file by other means, in a way that LMDB itself finds in order."""
    with (
        lmdb.open(os.fspath(folder), map_size=1 << 30, max_dbs=16) as environment,
        environment.begin(write=True) as transaction,
    ):
        raw = Raw(environment, transaction)
        change(raw)
        number = struct.pack("<Q", transaction.id())
        raw.put("SUMS", b"commit", ValueChecksum(255).stamped([b"commit"], [number])[0])


# --- Damage --------------------------------------------------------------------------------------


@pytest.mark.process
def test_no_damage_stays_hidden(tmp_path: Path) -> None:
    report = json.loads(run("damage", str(tmp_path), "1", "300"))
    assert report["wrong"] == []
    assert report["counts"].pop("sound") == 1
    assert sum(report["counts"].values()) == 300
    noticed = ("refused", "unreadable", "found", "crashed")
    assert sum(report["counts"].get(outcome, 0) for outcome in noticed) > 30, "too few damages hit"


def page_with(data: bytearray, kind: int, content: bytes) -> int:
    """Return where the only page of that kind begins that has this in it."""
    [start] = [
        start
        for start in range(0, len(data), 4096)
        if data[start + 10] == kind and content in data[start : start + 4096]
    ]
    return start


@pytest.mark.parametrize("damage", ["signpost", "page number"])
def test_what_reading_in_order_does_not_show_is_noticed_by_the_check(
    tmp_path: Path, damage: str
) -> None:
    cells = open_cells(tmp_path)
    keys = [b"key-%06d" % number for number in range(300)]
    cells.commit({Table.KEYS: dict.fromkeys(keys, b"1")})
    cells.close()
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    if damage == "signpost":
        # A branch page names the first key of each page below it, but for the first of them.
        start = page_with(data, 1, b"key-0001")
        at = data.index(b"key-0001", start)
        data[at : at + 8] = b"key-0002"
    else:
        start = page_with(data, 2, keys[0])
        data[start] ^= 64
    (tmp_path / "data.mdb").write_bytes(data)
    cells = open_cells(tmp_path)
    assert cells.range(Table.KEYS, b"", b"\xff", limit=999) == [(key, b"1") for key in keys]
    assert (None in cells.get(Table.KEYS, keys)) is (damage == "signpost")
    assert cells.check() != []
    cells.close()


def test_a_value_under_another_key_is_noticed_by_reading(tmp_path: Path) -> None:
    cells = open_cells(tmp_path)
    cells.commit({Table.KEYS: {b"a": b"1", b"b": b"2"}})
    cells.close()

    edit(tmp_path, lambda raw: raw.put("KEYS", b"b", raw.get("KEYS", b"a")))
    cells = open_cells(tmp_path)
    assert cells.get(Table.KEYS, [b"a"]) == [b"1"]
    with pytest.raises(errors.Corrupt, match="table KEYS, key 62"):
        cells.get(Table.KEYS, [b"a", b"b"])
    with pytest.raises(errors.Corrupt, match="table KEYS, key 62"):
        cells.range(Table.KEYS, b"", b"\xff", limit=10)
    assert cells.range(Table.KEYS, b"", b"b", limit=10) == [(b"a", b"1")]
    [found, total] = cells.check()
    assert "table KEYS, key 62" in found
    assert "lost or old" in total
    cells.close()


def test_a_value_in_another_table_is_noticed_by_reading(tmp_path: Path) -> None:
    cells = open_cells(tmp_path)
    cells.commit({Table.KEYS: {b"a": b"1"}, Table.META: {b"a": b"2"}})
    cells.close()

    edit(tmp_path, lambda raw: raw.put("META", b"a", raw.get("KEYS", b"a")))
    cells = open_cells(tmp_path)
    with pytest.raises(errors.Corrupt, match="table META"):
        cells.get(Table.META, [b"a"])
    cells.close()


def test_an_older_value_is_noticed_by_the_check(tmp_path: Path) -> None:
    cells = open_cells(tmp_path)
    cells.commit({Table.KEYS: {b"a": b"old", b"b": b"2"}})
    cells.close()
    kept: list[bytes] = []

    edit(tmp_path, lambda raw: kept.append(raw.get("KEYS", b"a")))
    cells = open_cells(tmp_path)
    cells.commit({Table.KEYS: {b"a": b"new"}})
    assert cells.check() == []
    cells.close()
    edit(tmp_path, lambda raw: raw.put("KEYS", b"a", kept[0]))
    cells = open_cells(tmp_path)
    assert cells.get(Table.KEYS, [b"a"]) == [b"old"], "its stamp is right"
    [finding] = cells.check()
    assert "table KEYS" in finding
    assert "lost or old" in finding
    cells.commit({Table.KEYS: {b"a": b"newest", b"c": b"3"}})
    assert len(cells.check()) == 1, "later commits do not hide it"
    cells.close()


def test_a_lost_value_is_noticed_by_opening(tmp_path: Path) -> None:
    cells = open_cells(tmp_path)
    cells.commit({Table.KEYS: {b"a": b"1", b"b": b"2"}})
    cells.close()
    edit(tmp_path, lambda raw: raw.delete("KEYS", b"a"))
    with pytest.raises(errors.Corrupt, match="table KEYS has 1 values, its sum says 2"):
        open_cells(tmp_path)


def test_a_foreign_commit_is_noticed_by_opening(tmp_path: Path) -> None:
    open_cells(tmp_path).close()
    with (
        lmdb.open(os.fspath(tmp_path), map_size=1 << 30, max_dbs=16) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(b"x", b"y", db=environment.open_db(b"other", txn=transaction))
    with pytest.raises(errors.Corrupt, match="LMDB shows commit 2"):
        open_cells(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    open_cells(tmp_path).close()

    [stored] = ValueChecksum(255).stamped([b"format"], [struct.pack("<I", 2)])
    edit(tmp_path, lambda raw: raw.put("SUMS", b"format", stored))
    with pytest.raises(errors.Corrupt, match="format 1 is the one known here"):
        open_cells(tmp_path)


@pytest.mark.parametrize("content", [b"", b"x" * 10_000, bytes(8192)])
def test_a_file_of_something_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    if content:
        with pytest.raises(errors.Fatal):
            open_cells(tmp_path)
    else:
        open_cells(tmp_path).close()


# --- Crashes -------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_killed_writer_loses_nothing_and_leaves_nothing_half(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.store.killed", str(tmp_path)]
    for cycle in range(5):
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            said = [int(child.stdout.readline()) for _ in range(7 + cycle)]
            child.send_signal(signal.SIGKILL)
            said += [int(line) for line in child.stdout if line.endswith("\n")]
        cells = open_cells(tmp_path)
        [number] = cells.get(Table.META, [b"number"])
        assert number is not None
        assert int(number) >= said[-1]
        rows = cells.range(Table.KEYS, b"", b"\xff", limit=1_000)
        assert [value for _, value in rows] == [number] * 500
        assert cells.check() == []
        cells.close()


def test_commits_are_synced(tmp_path: Path) -> None:
    cells = open_cells(tmp_path)
    flags = cells._env.flags()
    assert flags["sync"]
    assert flags["metasync"]
    assert not flags["map_async"]
    assert not flags["writemap"], "a stray write would go to the disk"
    cells.close()


def test_a_file_that_was_not_finished_is_made_anew(tmp_path: Path) -> None:
    # The power went while the folder was being made: of the new file there is a name at best.
    (tmp_path / "data.new").write_bytes(bytes(8192))
    cells = open_cells(tmp_path)
    assert not (tmp_path / "data.new").exists()
    cells.commit({Table.META: {b"a": b"1"}})
    assert cells.check() == []
    cells.close()


def test_readers_see_whole_commits(tmp_path: Path) -> None:
    cells = open_cells(tmp_path)
    keys = [b"%05d" % number for number in range(3 * limits.CELLS_STEP)]
    cells.commit({Table.KEYS: dict.fromkeys(keys, b"0")})
    seen: set[bytes | None] = set()
    torn: list[set[bytes | None]] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            looked_up = set(cells.get(Table.KEYS, keys))
            rows = cells.range(Table.KEYS, b"", b"\xff", limit=9_999)
            walked: set[bytes | None] = {value for _, value in rows}
            seen.update(looked_up, walked)
            torn.extend(values for values in (looked_up, walked) if len(values) != 1)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    number = 0
    while number < 20 or len(seen) < 3:
        number += 1
        cells.commit({Table.KEYS: dict.fromkeys(keys, b"%d" % number)})
    is_over.set()
    for reader in readers:
        reader.join()
    assert torn == []
    assert cells.check() == []
    cells.close()


# --- Full and failing disks ----------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("scenario", full_disk.SCENARIOS)
def test_a_full_disk(scenario: str, tmp_path: Path) -> None:
    # A file system of its own, in a name space of its own: it goes with the process.
    mount = f'mount -t tmpfs -o size={full_disk.DISK_BYTES} none "$0" && exec "$@"'
    apart = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(tmp_path))
    run("full_disk", scenario, str(tmp_path), before=apart)


def test_a_full_map_refuses_and_keeps_what_was_there(tmp_path: Path) -> None:
    cells = open_cells(tmp_path, map_bytes=1 << 20)
    cells.commit({Table.META: {b"a": b"1"}})
    large = {b"%06d" % number: b"x" * 1_000 for number in range(2_000)}
    with pytest.raises(errors.Full):
        cells.commit({Table.KEYS: large, Table.META: {b"a": b"2"}})
    cells.maintain()
    assert full_disk.is_short(cells), "the disk has space, but no commit has succeeded since"
    assert cells.get(Table.META, [b"a"]) == [b"1"]
    cells.commit({Table.META: {b"a": b"3"}})
    cells.maintain()
    assert not full_disk.is_short(cells)
    assert cells.check() == []
    cells.close()


def test_a_failed_write_is_the_end(tmp_path: Path) -> None:
    cells = open_cells(tmp_path)
    cells.commit({Table.META: {b"a": b"1"}})
    large = {b"%06d" % number: b"x" * 1_000 for number in range(2_000)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 * 1024, hard))
    try:
        with pytest.raises(errors.DiskFailed):
            cells.commit({Table.KEYS: large})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(errors.DiskFailed):
        cells.commit({Table.META: {b"a": b"2"}})
    with pytest.raises(errors.DiskFailed):
        cells.get(Table.META, [b"a"])
    cells.close()
    with pytest.raises(errors.Closed):
        cells.get(Table.META, [b"a"])
    cells = open_cells(tmp_path)
    assert cells.get(Table.META, [b"a"]) == [b"1"]
    assert cells.range(Table.KEYS, b"", b"\xff", limit=1) == []
    assert cells.check() == []
    cells.close()


def test_a_folder_is_open_once(tmp_path: Path) -> None:
    cells = open_cells(tmp_path)
    with pytest.raises(errors.Fatal, match="already open"):
        open_cells(tmp_path)
    cells.commit({Table.META: {b"a": b"1"}})
    cells.close()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(errors.DiskFailed):
        open_cells(tmp_path / "file")


# --- Bytes ---------------------------------------------------------------------------------------


def golden() -> list[tuple[str, bytes, bytes]]:
    lines = [line.split() for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    return [
        (name, bytes.fromhex(key), bytes.fromhex(stored))
        for name, key, stored in (line for line in lines if line and line[0] != "#")
    ]


def test_the_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    cells = open_cells(tmp_path)
    cells.commit(
        {
            Table.META: {b"a": b"", b"ab": b"c"},
            Table.KEYS: {bytes(range(8)) + b"order-17": (4711).to_bytes(8, "big"), b"x": b"x"},
        }
    )
    cells.commit({Table.META: {b"a": b"value"}, Table.KEYS: {b"x": None}})
    cells.close()
    written: list[tuple[str, bytes, bytes]] = []
    with lmdb.open(os.fspath(tmp_path), map_size=1 << 30, max_dbs=16) as environment:
        assert environment.lib_version()[:2] == (0, 9)
        for name in environment.dbs():
            table = environment.open_db(name)
            with environment.begin(table) as transaction, transaction.cursor() as cursor:
                written += [(name.decode(), key, stored) for key, stored in cursor.iternext()]
    assert sorted(written) == sorted(golden())


def test_what_an_earlier_release_wrote_is_read(tmp_path: Path) -> None:
    def write(raw: Raw) -> None:
        for name in ("NODE", "META", "CELLS", "KEYS", "BLOCKS", "DEATHS", "FILES"):
            raw.table(name)
        for name, key, stored in golden():
            raw.put(name, key, stored)

    edit(tmp_path, write)
    cells = open_cells(tmp_path)
    assert cells.range(Table.META, b"", b"\xff", limit=9) == [(b"a", b"value"), (b"ab", b"c")]
    key = bytes(range(8)) + b"order-17"
    assert cells.get(Table.KEYS, [key]) == [(4711).to_bytes(8, "big")]
    assert cells.check() == []
    cells.close()
