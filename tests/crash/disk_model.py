"""What may be on the disk after a loss of power, as recorded system calls allow it.

- A write, a change of a file's size, and a change of a folder's entries are pending until they are
  synced. Any of what is pending may be on the disk or not, whatever its order, and a write may be
  there in part: any of its sectors.
- A sync of a file covers what had ended before the sync began, and takes effect when it ends. It
  says nothing about the file's name: only a sync of the folder does.
- A write through a descriptor that was opened with O_DSYNC is there when it ends.

Files that hold nothing of value (`IGNORED`) are left out: every open makes them anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tests.crash.trace import Call, Moment

IGNORED = ("lock", "index/lock.mdb", "index/ballast")

SECTOR_SIZES = (512, 4096)
"""What a disk writes whole: a sector of old, or of a newer one."""


@dataclass(slots=True, eq=False)
class Write:
    """Data that may not have reached the disk."""

    offset: int
    data: bytes
    is_done: bool = False

    def apply(self, content: bytearray) -> None:
        _fit(content, self.offset + len(self.data))
        content[self.offset : self.offset + len(self.data)] = self.data


@dataclass(slots=True, eq=False)
class Resize:
    """A size that may not have reached the disk."""

    size: int
    is_cut: bool
    is_done: bool = False

    def apply(self, content: bytearray) -> None:
        if self.is_cut:
            del content[self.size :]
        _fit(content, self.size)


@dataclass(slots=True, eq=False)
class Entries:
    """Changes of a folder's entries that come about together."""

    names: dict[str, Node | None]
    is_done: bool = False


def _fit(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))


@dataclass(slots=True, eq=False)
class Node:
    """A file, or a folder."""

    is_folder: bool
    content: bytearray = field(default_factory=bytearray)
    """What is on the disk for certain."""
    pending: list[Write | Resize] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    """What is in the folder, as processes see it."""
    durable: dict[str, Node] = field(default_factory=dict)
    """What is in the folder for certain."""
    changes: list[Entries] = field(default_factory=list)

    def change(self, names: dict[str, Node | None]) -> Entries:
        """Change entries; what processes see changes at once."""
        change = Entries(names)
        self.changes.append(change)
        _change(self.entries, names)
        return change

    def settle(self, covered: list[Write | Resize | Entries]) -> None:
        """These are on the disk now."""
        for one in covered:
            if isinstance(one, Entries):
                if one in self.changes:
                    self.changes.remove(one)
                    _change(self.durable, one.names)
            elif one in self.pending:
                self.pending.remove(one)
                one.apply(self.content)

    def done(self) -> list[Write | Resize | Entries]:
        """What a sync that begins now covers."""
        ended: list[Write | Resize | Entries] = []
        ended += [one for one in self.pending if one.is_done]
        ended += [one for one in self.changes if one.is_done]
        return ended


def _change(entries: dict[str, Node], names: dict[str, Node | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


@dataclass(slots=True)
class _Open:
    """An open descriptor."""

    node: Node
    is_synced: bool
    place: int = 0


class Chooser(Protocol):
    """Decides what of the pending is on the disk."""

    def takes(self, change: Write | Resize | Entries) -> bool:
        """Whether it is there."""
        ...

    def tear(self, write: Write) -> Iterator[Write | Resize]:
        """What of a write is there."""
        ...


State = dict[str, bytes | None]
"""Path below the root → content; None for a folder."""


class DiskModel:
    """The folder `root`, as one process after another changes it."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self.tree = Node(is_folder=True)
        self._descriptors: dict[int, _Open] = {}
        self._in_flight: dict[int, list[Write | Resize | Entries]] = {}
        """By call: what it changes, or what it covers if it is a sync."""

    def forget_process(self) -> None:
        """The process has ended, and so have its calls: the next sync covers what they did."""
        self._descriptors.clear()
        self._in_flight.clear()
        for _, node in self._walk():
            for change in (*node.pending, *node.changes):
                change.is_done = True

    # --- Calls -----------------------------------------------------------------------------------

    def take(self, moment: Moment) -> None:
        """A call begins, or ends."""
        call = moment.call
        if not moment.is_end:
            self._begin(call)
            return
        self._end(call)

    def touched(self, call: Call) -> str:
        """The path of the file that a call changes or syncs; empty if it is none of ours."""
        if call.name in ("rename", "unlink", "mkdir"):
            return self._below(call.strings[-1]) or ""
        if call.name in _CHANGING:
            found = self._descriptors.get(int(call.numbers[0]))
            return next((path for path, node in self._walk() if found and node is found.node), "")
        return ""

    def _begin(self, call: Call) -> None:
        name = call.name
        opened = self._descriptors.get(_number(call.numbers[0])) if call.numbers else None
        if opened is None:
            return
        change: Write | Resize
        if name in ("fsync", "fdatasync"):
            self._in_flight[id(call)] = opened.node.done()
            return
        if name in _WRITING:
            change = Write(_offset(call, opened), b"".join(call.strings))
        elif name == "ftruncate":
            change = Resize(int(call.numbers[1]), is_cut=True)
        elif name == "fallocate":
            change = Resize(int(call.numbers[2]) + int(call.numbers[3]), is_cut=False)
        else:
            assert name not in _UNKNOWN, f"the model does not know {name}"
            return
        opened.node.pending.append(change)
        self._in_flight[id(call)] = [change]

    def _end(self, call: Call) -> None:
        changes = self._in_flight.pop(id(call), [])
        name = call.name
        opened = self._descriptors.get(_number(call.numbers[0])) if call.numbers else None
        if call.result < 0:
            if opened is not None:
                opened.node.pending = [one for one in opened.node.pending if one not in changes]
            return
        if name in ("openat", "open"):
            self._open(call)
        elif name == "close":
            self._descriptors.pop(int(call.numbers[0]), None)
        elif name == "lseek" and opened is not None:
            opened.place = call.result
        elif name in ("fsync", "fdatasync"):
            if opened is not None:
                opened.node.settle(changes)
        elif name in _WRITING and opened is not None:
            self._wrote(call, opened, changes)
        elif name == "rename":
            self._rename(call)
        elif name == "unlink":
            self._entry(call.strings[0], None)
        elif name == "mkdir":
            self._entry(call.strings[0], Node(is_folder=True))
        for change in changes:
            change.is_done = True

    def _wrote(self, call: Call, opened: _Open, changes: list[Write | Resize | Entries]) -> None:
        [write] = changes
        assert isinstance(write, Write)
        write.data = write.data[: call.result]
        if call.name in ("write", "writev"):
            opened.place = write.offset + call.result
        if opened.is_synced:
            opened.node.settle(changes)
            # What was written there before has been overwritten, and cannot come back.
            opened.node.pending = [
                part for one in opened.node.pending for part in _without(one, write)
            ]

    def _open(self, call: Call) -> None:
        path = self._below(call.strings[0])
        flags = " ".join(call.numbers)
        self._descriptors.pop(call.result, None)
        if path is None or path in IGNORED:
            return
        node = self.find(path)
        if node is None:
            assert "O_CREAT" in flags, path
            node = Node(is_folder=False)
            self._entry(call.strings[0], node)
        elif "O_TRUNC" in flags:
            node.pending.append(Resize(0, is_cut=True, is_done=True))
        self._descriptors[call.result] = _Open(node, "O_DSYNC" in flags or "O_SYNC" in flags)

    def _rename(self, call: Call) -> None:
        old, new = (self._below(path) for path in call.strings)
        if old is None or new is None:
            return
        parent, name = self._parent(old)
        target, new_name = self._parent(new)
        assert parent is target, "only names within one folder are changed"
        parent.change({name: None, new_name: parent.entries[name]}).is_done = True

    def _entry(self, raw: bytes, node: Node | None) -> None:
        path = self._below(raw)
        if path and path not in IGNORED:
            parent, name = self._parent(path)
            parent.change({name: node}).is_done = True

    # --- Paths -----------------------------------------------------------------------------------

    def _below(self, raw: bytes) -> str | None:
        path = raw.decode()
        if path == self._root:
            return ""
        return path[len(self._root) + 1 :] if path.startswith(self._root + "/") else None

    def find(self, path: str) -> Node | None:
        """The file or folder at the path, as processes see it."""
        node = self.tree
        for part in path.split("/") if path else []:
            found = node.entries.get(part)
            if found is None:
                return None
            node = found
        return node

    def _parent(self, path: str) -> tuple[Node, str]:
        folder, _, name = path.rpartition("/")
        parent = self.find(folder)
        assert parent is not None, path
        return parent, name

    def _walk(self) -> Iterator[tuple[str, Node]]:
        return _walk("", self.tree)

    # --- States ----------------------------------------------------------------------------------

    def cached(self) -> State:
        """What processes see: all that was written, synced or not."""
        return self.state(Everything())

    def pending(self) -> int:
        """How many changes may be lost."""
        return sum(len(node.pending) + len(node.changes) for _, node in self._walk())

    def state(self, chooser: Chooser) -> State:
        """What may be on the disk, if the power went now."""
        state: State = {}
        _collect("", self.tree, chooser, state, {})
        return state


def _walk(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    yield path, node
    for name, child in node.entries.items():
        yield from _walk(f"{path}/{name}" if path else name, child)


def _collect(
    path: str, folder: Node, chooser: Chooser, state: State, contents: dict[int, bytes]
) -> None:
    entries = dict(folder.durable)
    for change in folder.changes:
        if chooser.takes(change):
            _change(entries, change.names)
    for name, node in sorted(entries.items()):
        below = f"{path}/{name}" if path else name
        if node.is_folder:
            state[below] = None
            _collect(below, node, chooser, state, contents)
            continue
        if id(node) not in contents:
            content = bytearray(node.content)
            for one in node.pending:
                if chooser.takes(one):
                    for part in chooser.tear(one) if isinstance(one, Write) else [one]:
                        part.apply(content)
            contents[id(node)] = bytes(content)
        state[below] = contents[id(node)]


# --- What is chosen ------------------------------------------------------------------------------


class Everything:
    """All that was written is there: a killed process, not a loss of power."""

    def takes(self, change: Write | Resize | Entries) -> bool:
        return True

    def tear(self, write: Write) -> Iterator[Write | Resize]:
        yield write


class Nothing(Everything):
    """Only what was synced is there."""

    def takes(self, change: Write | Resize | Entries) -> bool:
        return False


class Some(Everything):
    """Each change is there or not, by chance; a write is there whole."""

    def __init__(self, chance: random.Random, share: float) -> None:
        self._chance = chance
        self._share = share

    def takes(self, change: Write | Resize | Entries) -> bool:
        return self._chance.random() < self._share


class NamesOnly(Everything):
    """Names and sizes are there, no data: as a journal of metadata alone would leave it."""

    def tear(self, write: Write) -> Iterator[Write | Resize]:
        yield Resize(write.offset + len(write.data), is_cut=False)


class DataOnly(Everything):
    """Data is there, names are not."""

    def takes(self, change: Write | Resize | Entries) -> bool:
        return not isinstance(change, Entries)


class Torn(Everything):
    """Of each write some sectors are there; all else is there, or some of it."""

    def __init__(self, chance: random.Random, sector: int, share: float) -> None:
        self._chance = chance
        self._sector = sector
        self._share = share

    def takes(self, change: Write | Resize | Entries) -> bool:
        return self._chance.random() < self._share

    def tear(self, write: Write) -> Iterator[Write | Resize]:
        share = self._chance.choice([0.1, 0.5, 0.9])
        for place, end in _sectors(write, self._sector):
            if self._chance.random() < share:
                begin = place - write.offset
                yield Write(place, write.data[begin : end - write.offset])


def _sectors(write: Write, size: int) -> Iterator[tuple[int, int]]:
    place, end = write.offset, write.offset + len(write.data)
    while place < end:
        border = min((place // size + 1) * size, end)
        yield place, border
        place = border


def chooser(chance: random.Random) -> tuple[str, Chooser]:
    """One way in which a disk may fail, and its name."""
    share = chance.choice([0.2, 0.5, 0.8])
    sector = chance.choice(SECTOR_SIZES)
    return chance.choice(
        [
            ("nothing unsynced", Nothing()),
            ("everything", Everything()),
            (f"{share:.0%} of it", Some(chance, share)),
            (f"{share:.0%} of it", Some(chance, share)),
            ("names only", NamesOnly()),
            ("data only", DataOnly()),
            (f"torn at {sector}", Torn(chance, sector, 1.0)),
            (f"{share:.0%} of it, torn at {sector}", Torn(chance, sector, share)),
        ]
    )


_WRITING = ("write", "writev", "pwrite64", "pwritev", "pwritev2")
_CHANGING = (*_WRITING, "ftruncate", "fallocate", "fsync", "fdatasync")
_UNKNOWN = ("sync_file_range", "msync", "copy_file_range", "sendfile", "dup", "dup2", "dup3")


def _without(one: Write | Resize, newer: Write) -> list[Write | Resize]:
    """What is left of a pending change where a newer write is on the disk."""
    if isinstance(one, Resize):
        return [one]
    begin, end = newer.offset, newer.offset + len(newer.data)
    if one.offset >= end or one.offset + len(one.data) <= begin:
        return [one]
    before = one.data[: max(begin - one.offset, 0)]
    after = one.data[max(end - one.offset, 0) :]
    parts = [Write(one.offset, before, one.is_done), Write(end, after, one.is_done)]
    return [part for part in parts if part.data]


def _number(text: str) -> int:
    return int(text) if text.lstrip("-").isdigit() else -1


def _offset(call: Call, opened: _Open) -> int:
    if call.name in ("pwrite64", "pwritev"):
        return int(call.numbers[-1])
    if call.name == "pwritev2":
        return int(call.numbers[-2])
    return opened.place
