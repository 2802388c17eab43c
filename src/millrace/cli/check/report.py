"""Messages of a check: one JSON object per line, from the child process to its parent."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from enum import Enum
from typing import TypeAlias, cast

import msgspec

from millrace.cli.bounds import PROGRESS_SECONDS
from millrace.decoding import json_decoder
from millrace.errors import MillraceError


class CheckPhase(Enum):
    """Phases of a check, in the order in which they run."""

    INDEX = "index"
    LOG = "log"
    SEALED = "sealed"
    SHARDS = "shards"


class PhaseStarted(msgspec.Struct, frozen=True, tag="began"):
    """A phase has started."""

    part: CheckPhase


class PhaseProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Progress within a phase."""

    done: int
    total: int


class Finding(msgspec.Struct, frozen=True, tag="finding"):
    """A damaged piece of data."""

    file: str
    """Path relative to the checked folder."""
    offset: int | None
    what: str
    queue: str = ""
    """The queue or topic that is quarantined, or will be; empty for other findings."""

    def text(self) -> str:
        where = self.file if self.offset is None else f"{self.file}, offset {self.offset}"
        return f"{where}: {self.what}"


class PhaseSkipped(msgspec.Struct, frozen=True, tag="skipped"):
    """A phase was skipped, wholly or in part, because of earlier findings."""

    what: str


class PhaseCounts(msgspec.Struct, frozen=True, tag="counted"):
    """Number of objects that a phase has checked."""

    records: int = 0
    cells: int = 0
    files: int = 0
    rows: int = 0


CheckMessage: TypeAlias = PhaseStarted | PhaseProgress | Finding | PhaseSkipped | PhaseCounts

_encode = msgspec.json.Encoder().encode
decode: Callable[[bytes], CheckMessage] = json_decoder(
    cast("type[CheckMessage]", CheckMessage)
).decode

_PLACE = re.compile(r"(?P<file>[\w./-]+), offset (?P<offset>\d+): (?P<what>.*)", re.DOTALL)


class CheckReporter:
    """Sends messages to the parent process; each is flushed when a call returns."""

    def __init__(self) -> None:
        self._told: set[Finding] = set()
        self._progress_at = 0.0
        self.findings = 0

    def tell(self, message: CheckMessage) -> None:
        sys.stdout.buffer.write(_encode(message) + b"\n")
        sys.stdout.buffer.flush()

    def progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            self.tell(PhaseProgress(done, total))

    def found(self, file: str, offset: int | None, what: str, *, queue: str = "") -> None:
        """Report damage; a finding is sent once."""
        finding = Finding(file, offset, what, queue)
        if finding not in self._told:
            self._told.add(finding)
            self.findings += 1
            self.tell(finding)

    def found_error(self, error: MillraceError, file: str) -> None:
        """Report damage that the engine's own code raised; `file` is the probable place."""
        # The parent prints a hint once, at the end.
        what = error.message.split(". ")[0]
        place = _PLACE.fullmatch(what)
        if place is not None:
            self.found(place["file"], int(place["offset"]), place["what"])
        else:
            self.found(error.field if error.field and "/" in error.field else file, None, what)
