"""The model of a disk that loses power, on calls written by hand."""

from __future__ import annotations

import random

from tests.crash.disk_model import (
    DataOnly,
    DiskModel,
    Everything,
    NamesOnly,
    Nothing,
    Some,
    State,
    Torn,
)
from tests.crash.trace import Moment, moments


def line(text: str, *strings: bytes) -> str:
    """A line as strace writes it: strings in hexadecimal digits."""
    for string in strings:
        text = text.replace("%", '"' + "".join(f"\\x{byte:02x}" for byte in string) + '"', 1)
    return text


def taken(*lines: str) -> DiskModel:
    model = DiskModel("/data")
    for moment in moments(iter(lines)):
        model.take(moment)
    return model


CREATE = line("7 openat(AT_FDCWD, %, O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC, 0600) = 3", b"/data/file")
WRITE = line("7 pwrite64(3, %, 3, 2) = 3", b"abc")
SYNC = "7 fdatasync(3) = 0"
OPEN_FOLDER = line("7 openat(AT_FDCWD, %, O_RDONLY|O_DIRECTORY) = 4", b"/data")
SYNC_FOLDER = "7 fsync(4) = 0"


def states(model: DiskModel) -> tuple[State, State]:
    return model.state(Nothing()), model.state(Everything())


def test_a_file_needs_two_syncs() -> None:
    assert states(taken(CREATE, WRITE)) == ({}, {"file": b"\0\0abc"})
    assert states(taken(CREATE, WRITE, SYNC)) == ({}, {"file": b"\0\0abc"})
    named = [CREATE, OPEN_FOLDER, SYNC_FOLDER]
    assert states(taken(*named, WRITE)) == ({"file": b""}, {"file": b"\0\0abc"})
    assert states(taken(*named, WRITE, SYNC)) == ({"file": b"\0\0abc"}, {"file": b"\0\0abc"})


def test_a_sync_covers_what_had_ended_before_it_began() -> None:
    named = [CREATE, OPEN_FOLDER, SYNC_FOLDER]
    begun = line("8 pwrite64(3, %, 3, 2 <unfinished ...>", b"abc")
    ended = "8 <... pwrite64 resumed>) = 3"
    lines = [*named, begun, "7 fdatasync(3 <unfinished ...>", ended]
    model = taken(*lines, "7 <... fdatasync resumed>) = 0")
    assert states(model) == ({"file": b""}, {"file": b"\0\0abc"})
    lines = [*named, begun, ended, "7 fdatasync(3 <unfinished ...>"]
    assert states(taken(*lines))[0] == {"file": b""}, "it takes effect when it ends"


def test_a_synced_descriptor_covers_its_own_writes_alone() -> None:
    named = [CREATE, OPEN_FOLDER, SYNC_FOLDER]
    reopen = line("7 openat(AT_FDCWD, %, O_WRONLY|O_DSYNC|O_CLOEXEC) = 5", b"/data/file")
    model = taken(*named, WRITE, reopen, line("7 pwrite64(5, %, 1, 0) = 1", b"x"))
    assert states(model) == ({"file": b"x"}, {"file": b"x\0abc"})


def test_what_a_synced_descriptor_overwrote_does_not_come_back() -> None:
    named = [CREATE, OPEN_FOLDER, SYNC_FOLDER]
    reopen = line("7 openat(AT_FDCWD, %, O_WRONLY|O_DSYNC|O_CLOEXEC) = 5", b"/data/file")
    model = taken(*named, WRITE, reopen, line("7 pwrite64(5, %, 1, 3) = 1", b"x"))
    assert states(model) == ({"file": b"\0\0\0x"}, {"file": b"\0\0axc"})


def test_what_a_killed_process_was_writing_is_covered_by_the_next_sync() -> None:
    named = [CREATE, OPEN_FOLDER, SYNC_FOLDER]
    model = taken(*named, line("7 pwrite64(3, %, 3, 2 <unfinished ...>", b"abc"))
    model.forget_process()
    reopen = line("8 openat(AT_FDCWD, %, O_RDWR) = 3", b"/data/file")
    for moment in moments(iter([reopen, line("8 pwrite64(3, %, 1, 3) = 1", b"x")])):
        model.take(moment)
    assert states(model) == ({"file": b""}, {"file": b"\0\0axc"})
    for moment in moments(iter(["8 fdatasync(3) = 0"])):
        model.take(moment)
    assert states(model) == ({"file": b"\0\0axc"}, {"file": b"\0\0axc"})


def test_vectors_and_places() -> None:
    lines = [
        CREATE,
        line(
            "7 pwritev2(3, [{iov_base=%, iov_len=2}, {iov_base=%, iov_len=1}], 2, 1, 0) = 3",
            b"ab",
            b"c",
        ),
        "7 lseek(3, 6, SEEK_SET) = 6",
        line("7 writev(3, [{iov_base=%, iov_len=1}, {iov_base=%, iov_len=1}], 2) = 2", b"d", b"e"),
        line("7 write(3, %, 1) = 1", b"f"),
    ]
    assert taken(*lines).state(Everything()) == {"file": b"\0abc\0\0def"}


def test_a_failed_call_changes_nothing() -> None:
    lines = [
        CREATE,
        line("7 pwrite64(3, %, 1, 0) = -1 ENOSPC (No space left on device)", b"x"),
        line("7 unlink(%) = -1 ENOENT (No such file or directory)", b"/data/other"),
    ]
    assert taken(*lines).state(Everything()) == {"file": b""}


def test_names_change_together_and_may_be_lost() -> None:
    named = [CREATE, WRITE, SYNC, OPEN_FOLDER, SYNC_FOLDER]
    rename = line("7 rename(%, %) = 0", b"/data/file", b"/data/new")
    assert states(taken(*named, rename)) == ({"file": b"\0\0abc"}, {"new": b"\0\0abc"})
    unlink = line("7 unlink(%) = 0", b"/data/file")
    assert states(taken(*named, unlink)) == ({"file": b"\0\0abc"}, {})
    assert states(taken(*named, unlink, SYNC_FOLDER)) == ({}, {})


def test_folders() -> None:
    lines = [
        line("7 mkdir(%, 0777) = 0", b"/data/sub"),
        line("7 openat(AT_FDCWD, %, O_RDWR|O_CREAT, 0600) = 3", b"/data/sub/file"),
        "7 fallocate(3, 0, 0, 4) = 0",
    ]
    model = taken(*lines)
    assert states(model) == ({}, {"sub": None, "sub/file": bytes(4)})


def test_some_of_it() -> None:
    named = [CREATE, OPEN_FOLDER, SYNC_FOLDER]
    model = taken(*named, *(line(f"7 pwrite64(3, %, 1, {at}) = 1", b"x") for at in range(40)))
    chance = random.Random(1)
    content = model.state(Some(chance, 0.5))["file"]
    assert content is not None
    assert 5 < content.count(b"x") < 35
    assert model.state(NamesOnly())["file"] == bytes(40)
    unnamed = taken(CREATE, WRITE)
    assert unnamed.state(DataOnly()) == {}


def test_a_write_is_torn_at_sectors() -> None:
    named = [CREATE, OPEN_FOLDER, SYNC_FOLDER]
    model = taken(*named, line("7 pwrite64(3, %, 2000, 100) = 2000", b"x" * 2000))
    for seed in range(20):
        content = model.state(Torn(random.Random(seed), 512, 1.0))["file"] or b""
        for begin in range(0, 2100, 512):
            sector = content[max(begin, 100) : min(begin + 512, 2100)]
            assert sector.strip(b"x") == b"" or sector.strip(b"\0") == b""


def test_what_is_outside_or_worthless_is_left_out() -> None:
    lines = [
        line("7 openat(AT_FDCWD, %, O_RDWR|O_CREAT, 0600) = 3", b"/elsewhere/file"),
        line("7 pwrite64(3, %, 3, 2) = 3", b"abc"),
        line("7 openat(AT_FDCWD, %, O_RDWR|O_CREAT, 0600) = 4", b"/data/lock"),
        line("7 pwrite64(4, %, 3, 2) = 3", b"abc"),
    ]
    assert taken(*lines).state(Everything()) == {}


def test_moments_come_in_pairs() -> None:
    lines = [
        line("7 pwrite64(3, %, 3, 2 <unfinished ...>", b"abc"),
        "8 fdatasync(4) = 0",
        "7 <... pwrite64 resumed>) = 3",
        "7 +++ exited with 0 +++",
    ]
    found: list[Moment] = list(moments(iter(lines)))
    assert [(moment.call.name, moment.is_end) for moment in found] == [
        ("pwrite64", False),
        ("fdatasync", False),
        ("fdatasync", True),
        ("pwrite64", True),
    ]
    assert found[0].call.strings == [b"abc"]
    assert found[-1].call.result == 3
