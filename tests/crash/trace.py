"""System calls of a process that change files, recorded by strace and read back.

Every call is told twice, when it begins and when it ends, because threads overlap: a sync covers
the writes that had ended before it began, and no others.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.timeouts import scaled

CALLS = (
    "openat,open,creat,close,dup,dup2,dup3,lseek,pwrite64,pwritev,pwritev2,write,writev,"
    "fdatasync,fsync,sync_file_range,msync,rename,renameat,renameat2,unlink,unlinkat,link,linkat,"
    "mkdir,mkdirat,rmdir,ftruncate,truncate,fallocate,copy_file_range,sendfile"
)
"""Those that the model knows, and those that it would have to know if anyone made them."""

STRING_BYTES_MAX = 64 * 1024 * 1024
"""Longer data would be cut off; nobody writes as much at once."""

RECORD_SECONDS_MAX = scaled(120)
"""A recorded program that takes longer is taken to hang."""

_CALL = re.compile(r"(\d+) +(\w+)\((.*)", re.DOTALL)
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)", re.DOTALL)
_RESULT = re.compile(r"\) += (-?\d+|0x[0-9a-f]+|\?)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_UNFINISHED = "<unfinished ...>"


@dataclass(slots=True)
class Call:
    """One system call."""

    name: str
    numbers: list[str]
    """The arguments that are not strings, as they were written."""
    strings: list[bytes]
    result: int = -1
    """What it returned; -1 where it failed or never returned."""
    span: tuple[int, int] = field(default=(0, 0))


@dataclass(frozen=True, slots=True)
class Moment:
    """A call begins or ends."""

    call: Call
    is_end: bool


class NoTrace(Exception):
    """System calls cannot be recorded here: there is no strace, or it may not trace."""


def record(command: Sequence[str], given: bytes, output: Path, folder: Path) -> list[Moment]:
    """Run the command to its end and return what it did; `given` is its standard input.

    Raises:
        NoTrace: this machine has no strace, or forbids it.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise NoTrace("strace is not installed")
    options = ["-f", "-xx", "-s", str(STRING_BYTES_MAX), "-e", f"trace={CALLS}"]
    done = subprocess.run(
        [strace, *options, "-o", str(output), *command],
        cwd=folder,
        input=given,
        capture_output=True,
        timeout=RECORD_SECONDS_MAX,
        check=False,
    )
    said = done.stderr.decode(errors="replace")
    if done.returncode != 0 and "ptrace" in said:
        raise NoTrace(said)
    if done.returncode != 0:
        sys.stderr.write(said)
        raise subprocess.CalledProcessError(done.returncode, list(command))
    with output.open(encoding="ascii") as lines:
        return list(moments(lines))


def moments(lines: Iterator[str]) -> Iterator[Moment]:
    """The beginnings and ends of calls, in the order in which they were recorded."""
    open_calls: dict[str, tuple[Call, str]] = {}
    for line in lines:
        if match := _RESUMED.match(line):
            thread, _, rest = match.groups()
            call, begun = open_calls.pop(thread)
            _complete(call, begun + rest)
            yield Moment(call, is_end=True)
        elif match := _CALL.match(line):
            thread, name, rest = match.groups()
            call = Call(name, [], [])
            if (place := rest.rfind(_UNFINISHED)) >= 0:
                begun = rest[:place]
                _complete(call, begun)
                open_calls[thread] = (call, begun)
                yield Moment(call, is_end=False)
            else:
                _complete(call, rest)
                yield Moment(call, is_end=False)
                yield Moment(call, is_end=True)


def _complete(call: Call, text: str) -> None:
    """Read arguments and result, as far as the text has them."""
    call.strings = [bytes.fromhex(hexes.replace("\\x", "")) for hexes in _STRING.findall(text)]
    bare = _STRING.sub("", text)
    arguments, _, _ = bare.partition(")")
    call.numbers = [part.strip() for part in arguments.split(",")]
    result = _RESULT.search(bare)
    if result is not None and result[1] != "?":
        call.result = int(result[1], 0)
