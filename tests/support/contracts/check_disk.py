"""Contract of disks: run it over your own implementation of `millrace.wal.disk.Disk`."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from millrace import errors
from millrace.wal.disk import Disk


def check_disk(make: Callable[[], Disk]) -> None:
    """Raise AssertionError where the disk breaks its promises; `make` gives a new, empty one."""
    for check in (
        _check_bytes,
        _check_maps,
        _check_allocation,
        _check_names,
        _check_refusals,
        _check_identity,
        _check_ownership,
    ):
        check(make())


def _check_bytes(disk: Disk) -> None:
    file = disk.create("file")
    file.write([b"ab", bytearray(b"cd"), memoryview(b"ef"), array("H", [1])], 3)
    file.sync()
    file.sync_all()
    expected = b"\0\0\0abcdef" + array("H", [1]).tobytes()
    assert file.read(100, 0) == expected, "buffers lie one after another, what was skipped is zero"
    assert file.read(2, 4) == b"bc"
    assert file.read(1, 100) == b"", "behind the end there is nothing"
    assert file.size == len(expected)
    assert file.name == "file"
    file.write([b"Z"], 4)
    assert disk.open("file").read(3, 3) == b"aZc", "other descriptors see it at once"
    file.close()
    file.close()


def _check_maps(disk: Disk) -> None:
    file = disk.open("file", create_bytes=8192)
    view = file.map()
    assert view.readonly
    assert bytes(view) == bytes(8192)
    file.write([b"later"], 4096)
    file.close()
    disk.remove("file")
    assert bytes(view[4096:4101]) == b"later", "a map is shared, and outlives the name"
    assert bytes(disk.create("empty").map()) == b""


def _check_allocation(disk: Disk) -> None:
    disk.open("file", create_bytes=4096).write([b"x"], 0)
    assert disk.open("file", create_bytes=9999).size == 4096, "only a missing file is made"
    assert disk.open("file").read(2, 0) == b"x\0"
    assert disk.open("none", create_bytes=0).size == 0
    assert disk.free_bytes() > 0


def _check_names(disk: Disk) -> None:
    assert disk.names("folder") == []
    disk.make_folder("folder/inner")
    disk.make_folder("folder/inner")
    for name in ("b", "a", "c"):
        disk.create(f"folder/inner/{name}").close()
    assert disk.names("folder/inner") == ["a", "b", "c"]
    disk.open("folder/inner/a").write([b"moved"], 0)
    disk.rename("folder/inner/a", "folder/inner/c")
    disk.link("folder/inner/c", "folder/d")
    disk.remove("folder/inner/c")
    disk.sync_folder("folder/inner")
    disk.sync_folder("folder")
    disk.sync_folder("")
    assert disk.names("folder") == ["d", "inner"]
    assert disk.names("folder/inner") == ["b"]
    assert disk.open("folder/d").read(5, 0) == b"moved"
    assert disk.exists("folder/d")
    assert not disk.exists("folder/inner/c")


def _check_refusals(disk: Disk) -> None:
    disk.create("taken").close()
    attempts: list[tuple[type[errors.Refused], Callable[[], object]]] = [
        (errors.Exists, lambda: disk.create("taken")),
        (errors.Exists, lambda: disk.link("taken", "taken")),
        (errors.NotFound, lambda: disk.open("missing")),
        (errors.NotFound, lambda: disk.remove("missing")),
        (errors.NotFound, lambda: disk.rename("missing", "other")),
        (errors.NotFound, lambda: disk.link("missing", "other")),
        (errors.NotFound, lambda: disk.identity("missing")),
        (errors.NotFound, lambda: disk.sync_folder("missing")),
        (errors.NotFound, lambda: disk.create("missing/file")),
    ]
    for kind, attempt in attempts:
        try:
            attempt()
        except kind:
            continue
        raise AssertionError(f"{kind.__name__} was expected")
    assert disk.names("") == ["taken"]


def _check_identity(disk: Disk) -> None:
    for name in ("one", "two"):
        disk.create(name).close()
    disk.link("one", "three")
    disk.rename("one", "four")
    assert disk.identity("three") == disk.identity("four")
    assert disk.identity("two") != disk.identity("four")


def _check_ownership(disk: Disk) -> None:
    lock = disk.lock("owner")
    try:
        disk.lock("owner").release()
    except errors.InUse as error:
        if not error.pid:
            raise AssertionError("the owner is not named") from error
    else:
        raise AssertionError("two owners at once")
    lock.release()
    lock.release()
    disk.lock("owner").release()
