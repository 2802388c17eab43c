"""What a check says while it runs: one JSON object per line, from the child to its parent."""

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


class Part(Enum):
    """The parts of a check, in the order in which they are done."""

    INDEX = "index"
    LOG = "log"
    SEALED = "sealed"
    SHARDS = "shards"


class Began(msgspec.Struct, frozen=True, tag="began"):
    """A part of the check begins."""

    part: Part


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """So much of a part is done."""

    done: int
    total: int


class Finding(msgspec.Struct, frozen=True, tag="finding"):
    """Something is damaged."""

    file: str
    """Relative to the folder that is checked."""
    offset: int | None
    what: str
    queue: str = ""
    """The queue or topic that is quarantined, or will be; empty: the finding is of another kind."""

    def text(self) -> str:
        where = self.file if self.offset is None else f"{self.file}, offset {self.offset}"
        return f"{where}: {self.what}"


class Skipped(msgspec.Struct, frozen=True, tag="skipped"):
    """A part was not done, or not wholly, because of what was found before."""

    what: str


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """What a part has looked at."""

    records: int = 0
    cells: int = 0
    files: int = 0
    rows: int = 0


Message: TypeAlias = Began | Progress | Finding | Skipped | Counted

_encode = msgspec.json.Encoder().encode
decode: Callable[[bytes], Message] = json_decoder(cast("type[Message]", Message)).decode

_PLACE = re.compile(r"(?P<file>[\w./-]+), offset (?P<offset>\d+): (?P<what>.*)", re.DOTALL)


class Report:
    """Tells the parent; each message is on its way when a call returns."""

    def __init__(self) -> None:
        self._told: set[Finding] = set()
        self._progress_at = 0.0
        self.findings = 0

    def tell(self, message: Message) -> None:
        sys.stdout.buffer.write(_encode(message) + b"\n")
        sys.stdout.buffer.flush()

    def progress(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = now
            self.tell(Progress(done, total))

    def found(self, file: str, offset: int | None, what: str, *, queue: str = "") -> None:
        """Tell of damage, once."""
        finding = Finding(file, offset, what, queue)
        if finding not in self._told:
            self._told.add(finding)
            self.findings += 1
            self.tell(finding)

    def found_error(self, error: MillraceError, file: str) -> None:
        """Tell of damage that the engine's own code has met, probably in `file`."""
        # What to do about it is said once, at the end.
        what = error.message.split(". ")[0]
        place = _PLACE.fullmatch(what)
        if place is not None:
            self.found(place["file"], int(place["offset"]), place["what"])
        else:
            self.found(error.field if error.field and "/" in error.field else file, None, what)
