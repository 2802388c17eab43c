"""A disk in memory that loses, tears and refuses what a real one may.

Rule 1: unsynced writes may be lost. A write stays pending until its file is synced, a name
until its folder is. A crash keeps, loses or tears each pending write on its own, and keeps only a
prefix of the pending changes of names.
Rule 2: a killed process loses nothing: `kill` keeps the page cache, `crash` is a power failure.
Rule 3: after a failed sync the pages count as clean: a later sync does not write them.
Rule 4: chance comes from the given source alone, and nothing depends on hashes: the same source and
the same calls give the same disk.

It keeps the promises of `millrace.wal.disk.Disk` and raises the same errors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from millrace import errors
from millrace.wal.disk import File, Lock

if TYPE_CHECKING:
    from typing_extensions import Buffer

SECTOR_BYTES = 512
"""What a device writes whole or not at all."""

PAGE_BYTES = 4096
"""What the kernel hands to a device at once."""

ENDLESS_BYTES = 1 << 50
"""Free bytes on a disk without a budget."""


class Crashed(BaseException):
    """The simulated machine has ended; not an error that anyone may handle."""


class Effect(NamedTuple):
    """Something that is about to change the disk."""

    number: int
    verb: str
    name: str


class _Node:
    """A file or a folder, without its names."""

    def __init__(self, number: int, *, is_folder: bool = False) -> None:
        self.number = number
        self.is_folder = is_folder
        self.current = bytearray()
        """What the page cache shows."""
        self.durable = bytearray()
        """What a power failure leaves, but for the pending writes that it happens to keep."""
        self.pending: list[tuple[int, bytes]] = []
        self.doubtful: list[tuple[int, int]] = []
        """Ranges whose pages count as clean although their sync failed."""
        self.unreadable: list[tuple[int, int]] = []

    def grow(self, size: int) -> None:
        if size <= len(self.current):
            return
        try:
            self.current.extend(bytes(size - len(self.current)))
        except BufferError:
            # Somebody has mapped it: that map keeps its size, as a real one would.
            self.current = bytearray(self.current.ljust(size, b"\0"))

    def sync(self) -> None:
        for offset, data in self.pending:
            _put(self.durable, offset, data)
        self.pending.clear()
        self.durable.extend(bytes(max(0, len(self.current) - len(self.durable))))

    def settle(self, chance: random.Random) -> None:
        """Let chance decide which of the pending writes reached the device."""
        for offset, data in self.pending:
            for begin, end in _survivors(offset, len(data), chance):
                _put(self.durable, begin, data[begin - offset : end - offset])
        self.pending.clear()


class _Change(NamedTuple):
    """Names that change together, and the folder whose sync makes that durable."""

    folder: str
    names: tuple[tuple[str, _Node | None], ...]


class SimDisk:
    """See the module; `crash` and `kill` return the disk that the next process finds."""

    def __init__(
        self,
        chance: random.Random,
        *,
        budget_bytes: int | None = None,
        hook: Callable[[Effect], None] | None = None,
    ) -> None:
        self.chance = chance
        self.budget_bytes = budget_bytes
        """Bytes that all files together may have; beyond them the disk is full."""
        self.hook = hook
        """Called before every effect; it may raise `Crashed`."""
        self.effects = 0
        """Number of effects: writes, syncs and changes of names."""
        self.fail_sync_in: int | None = None
        """1: the next sync of a file fails, 2: the one after it, and so on."""
        self.sync_finds_no_room = False
        """The next sync of a file fails as well, because the disk turns out to be full."""
        self.fail_folder_sync_in: int | None = None
        """The same for syncs of folders: what of the changed names is durable is left to chance."""
        self.fail_write_in: int | None = None
        """The same for writes; a part of the failed write may have been done."""
        self._is_over = False
        self._numbers = 0
        self._names: dict[str, _Node] = {"": _Node(0, is_folder=True)}
        self._durable_names = dict(self._names)
        self._pending: list[_Change] = []
        self._locked: dict[str, int] = {}

    # --- Faults ------------------------------------------------------------------------------

    def crash(self) -> SimDisk:
        """Cut the power; return the disk as found afterwards, and end this one."""
        self._is_over = True
        names = dict(self._durable_names)
        for change in self._pending[: self.chance.randint(0, len(self._pending))]:
            _rename_in(names, change)
        found = SimDisk(self.chance, budget_bytes=self.budget_bytes)
        found._numbers = self._numbers
        copies: dict[int, _Node] = {}
        for name, node in names.items():
            if not _is_reachable(name, names):
                continue
            if node.number not in copies:
                node.settle(self.chance)
                copy = _Node(node.number, is_folder=node.is_folder)
                copy.durable, copy.current = bytearray(node.durable), bytearray(node.durable)
                copy.unreadable = list(node.unreadable)
                copies[node.number] = copy
            found._names[name] = copies[node.number]
        found._durable_names = dict(found._names)
        return found

    def kill(self) -> SimDisk:
        """Kill the process: the page cache stays, with all unsynced writes.

        Pages whose sync failed may have been dropped from the cache.
        """
        self._is_over = True
        found = SimDisk(self.chance, budget_bytes=self.budget_bytes)
        found._numbers = self._numbers
        found._names = self._names
        found._durable_names = self._durable_names
        found._pending = self._pending
        for node in self._nodes():
            for offset, end in node.doubtful:
                if self.chance.random() < 0.5:
                    _put(
                        node.current,
                        offset,
                        bytes(node.durable[offset:end]).ljust(end - offset, b"\0"),
                    )
            node.doubtful.clear()
        return found

    def flip(self, name: str, offset: int, *, bit: int = 0) -> None:
        """Turn one bit of the file over, on the device and in the cache."""
        node = self._node("flipping", name)
        node.sync()
        node.current[offset] ^= 1 << bit
        node.durable[offset] ^= 1 << bit

    def break_reads(self, name: str, *, offset: int, length: int) -> None:
        """Make reads of this range fail from now on; maps do not know of it."""
        self._node("breaking", name).unreadable.append((offset, offset + length))

    # --- Disk --------------------------------------------------------------------------------

    def open(self, name: str, *, create_bytes: int | None = None) -> File:
        if create_bytes is None or name in self._names:
            return SimFile(self, self._node("opening", name), name)
        self._claim("creating", name, create_bytes)
        file = self.create(name)
        node = self._names[name]
        node.grow(create_bytes)
        return file

    def create(self, name: str) -> File:
        self._effect("create", name)
        self._vacant("creating", name)
        self._numbers += 1
        node = _Node(self._numbers)
        self._change(_folder_of(name), (name, node))
        return SimFile(self, node, name)

    def exists(self, name: str) -> bool:
        self.check()
        return name in self._names

    def names(self, folder: str) -> list[str]:
        self.check()
        prefix = f"{folder}/" if folder else ""
        inside = (name[len(prefix) :] for name in self._names if name.startswith(prefix))
        return sorted(name for name in inside if name and "/" not in name)

    def remove(self, name: str) -> None:
        self._effect("remove", name)
        self._node("removing", name)
        self._change(_folder_of(name), (name, None))

    def rename(self, name: str, new: str) -> None:
        self._effect("rename", name)
        node = self._node("renaming", name)
        self._change(_folder_of(new), (name, None), (new, node))

    def link(self, name: str, new: str) -> None:
        self._effect("link", name)
        self._vacant("linking", new)
        self._change(_folder_of(new), (new, self._node("linking", name)))

    def make_folder(self, name: str) -> None:
        above = _folder_of(name)
        if above and above not in self._names:
            self.make_folder(above)
        if name not in self._names:
            self._effect("make_folder", name)
            self._numbers += 1
            self._change(above, (name, _Node(self._numbers, is_folder=True)))

    def sync_folder(self, name: str) -> None:
        self._effect("sync_folder", name)
        if name not in self._names:
            raise errors.NotFound(f"syncing {name}: it does not exist", field="path")
        self.fail_folder_sync_in, is_failing = _count_down(self.fail_folder_sync_in)
        if is_failing:
            raise errors.DiskFailed(f"syncing {name} failed: simulated", field=name)
        later = []
        for change in self._pending:
            if change.folder == name:
                _rename_in(self._durable_names, change)
            else:
                later.append(change)
        self._pending[:] = later

    def free_bytes(self) -> int:
        self.check()
        if self.budget_bytes is None:
            return ENDLESS_BYTES
        return max(0, self.budget_bytes - sum(len(node.current) for node in self._nodes()))

    def identity(self, name: str) -> tuple[int, int]:
        number = self._node("looking at", name).number
        return number, number

    def lock(self, name: str) -> Lock:
        self.check()
        if name not in self._names:
            self.create(name)
        if name in self._locked:
            pid = self._locked[name]
            raise errors.InUse(f"the folder is in use by process {pid}", pid=pid)
        self._locked[name] = 1
        return SimLock(self._locked, name)

    # --- Within ------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse everything that a process does after its end."""
        if self._is_over:
            raise Crashed

    def _effect(self, verb: str, name: str) -> None:
        self.check()
        if self.hook is not None:
            try:
                self.hook(Effect(self.effects, verb, name))
            except Crashed:
                # What still runs while the stack unwinds must not reach the disk.
                self._is_over = True
                raise
        self.effects += 1

    def write(self, node: _Node, name: str, data: bytes, offset: int) -> None:
        """Do what `SimFile.write` was asked for."""
        self._effect("write", name)
        self.fail_write_in, is_failing = _count_down(self.fail_write_in)
        if is_failing:
            data = data[: self.chance.randint(0, len(data))]
        fits = max(len(node.current), offset) + self.free_bytes()
        written = data[: max(0, fits - offset)]
        if written:
            node.grow(offset + len(written))
            _put(node.current, offset, written)
            node.pending.append((offset, written))
        if is_failing:
            raise errors.DiskFailed(f"writing to {name} failed: simulated", field=name)
        if len(written) < len(data):
            raise errors.Full(f"writing to {name}: the disk is full; free some space", field="path")

    def sync(self, node: _Node, verb: str, name: str) -> None:
        """Do what `SimFile.sync` was asked for."""
        self._effect(verb, name)
        self.fail_sync_in, is_failing = _count_down(self.fail_sync_in)
        if not is_failing and not self.sync_finds_no_room:
            node.sync()
            return
        node.doubtful += [(offset, offset + len(data)) for offset, data in node.pending]
        node.settle(self.chance)
        if self.sync_finds_no_room:
            self.sync_finds_no_room = False
            raise errors.Full(f"syncing {name}: the disk is full; free some space", field="path")
        raise errors.DiskFailed(f"syncing {name} failed: simulated", field=name)

    def _claim(self, verb: str, name: str, count: int) -> None:
        if count > self.free_bytes():
            raise errors.Full(f"{verb} {name}: the disk is full; free some space", field="path")

    def _nodes(self) -> Iterator[_Node]:
        seen: dict[int, _Node] = {node.number: node for node in self._names.values()}
        return iter(seen.values())

    def _node(self, verb: str, name: str) -> _Node:
        self.check()
        if name not in self._names:
            raise errors.NotFound(f"{verb} {name}: it does not exist", field="path")
        return self._names[name]

    def _vacant(self, verb: str, name: str) -> None:
        if name in self._names:
            raise errors.Exists(f"{verb} {name}: the name is taken", field="path")
        if _folder_of(name) not in self._names:
            raise errors.NotFound(f"{verb} {name}: its folder does not exist", field="path")

    def _change(self, folder: str, *names: tuple[str, _Node | None]) -> None:
        change = _Change(folder, names)
        _rename_in(self._names, change)
        self._pending.append(change)


class SimFile:
    """An open file of a `SimDisk`; see `millrace.wal.disk.File`."""

    def __init__(self, disk: SimDisk, node: _Node, name: str) -> None:
        self._disk = disk
        self._node = node
        self.name = name

    @property
    def size(self) -> int:
        return len(self._node.current)

    def read(self, count: int, offset: int) -> bytes:
        self._disk.check()
        for begin, end in self._node.unreadable:
            if offset < end and begin < offset + count:
                raise errors.DiskFailed(
                    f"reading {self.name} at {offset} failed: simulated", field=self.name
                )
        return bytes(memoryview(self._node.current)[offset : offset + count])

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(memoryview(buffer).cast("B") for buffer in buffers)
        self._disk.write(self._node, self.name, data, offset)

    def sync(self) -> None:
        self._disk.sync(self._node, "sync", self.name)

    def sync_all(self) -> None:
        self._disk.sync(self._node, "sync_all", self.name)

    def map(self) -> memoryview:
        self._disk.check()
        return memoryview(self._node.current).toreadonly()

    def close(self) -> None:
        """Nothing is kept that could be given back."""


class SimLock:
    """Ownership within one life of a `SimDisk`."""

    def __init__(self, locked: dict[str, int], name: str) -> None:
        self._locked = locked
        self._name: str | None = name

    def release(self) -> None:
        if self._name is not None:
            self._locked.pop(self._name, None)
        self._name = None


def _survivors(offset: int, length: int, chance: random.Random) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a pending write that reach the device: all, none, or some blocks."""
    fate = chance.randrange(3)
    if fate == 0:
        yield offset, offset + length
    if fate != 2:
        return
    block = SECTOR_BYTES if chance.randrange(2) else PAGE_BYTES
    begin = offset
    while begin < offset + length:
        end = min((begin // block + 1) * block, offset + length)
        if chance.randrange(2):
            yield begin, end
        begin = end


def _put(content: bytearray, offset: int, data: bytes) -> None:
    """Write into `content`, which grows as a file does; its maps stay valid if it does not."""
    if offset + len(data) > len(content):
        content.extend(bytes(offset + len(data) - len(content)))
    content[offset : offset + len(data)] = data


def _count_down(left: int | None) -> tuple[int | None, bool]:
    if left is None or left > 1:
        return (None if left is None else left - 1), False
    return None, True


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def _rename_in(names: dict[str, _Node], change: _Change) -> None:
    for name, node in change.names:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _is_reachable(name: str, names: dict[str, _Node]) -> bool:
    while name:
        name = _folder_of(name)
        if name not in names:
            return False
    return True
