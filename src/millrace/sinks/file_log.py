"""A log of files, for folders that have none: which files count, and how far flows are.

It is a folder of small JSON files. Entry n is `<n>.json`, twenty digits; what it says is added to
what those before it said. Now and then all of it is summed up in `all-<n>.json`, so that who opens
it reads one of those and the few entries that follow.

Rule 1: an entry is made with its name, whole, if nobody has made one of that name: so the next
number is a fence that two can never pass together.
Rule 2: an entry at or below a sum counts only if it was in it: who was asleep so long that their
number was cleaned away finds that out, and takes back what they wrote.
"""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.decoding import decode_json
from millrace.errors import Retry
from millrace.sinks.boundary import Boundary
from millrace.sinks.lake import FlowState
from millrace.sinks.parts import PRIVATE, Part, drop_old, write_alone

FOLDER = "log"


class Entry(msgspec.Struct, frozen=True):
    """What one commit, or one opening, says."""

    flow: str
    fence: int
    boundary: Boundary | None
    files: tuple[Part, ...] = ()
    schema: str = ""
    """Of the table from here on, as Arrow writes it, in base64; empty: as before."""


class Sum(msgspec.Struct, frozen=True):
    """All entries up to one."""

    number: int = 0
    flows: dict[str, FlowState] = {}
    files: tuple[Part, ...] = ()
    schema: str = ""

    def columns(self) -> pa.Schema | None:
        """Of the table; None: there is none yet."""
        if not self.schema:
            return None
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))


def schema_text(schema: pa.Schema) -> str:
    """As an entry says it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def read_log(root: Path) -> Sum:
    """What the log says now; an empty one says nothing.

    Raises:
        Retry: it was cleaned while it was read, again and again.
    """
    folder = root / PRIVATE / FOLDER
    for _ in range(limits.LAKE_COMMIT_TRIES):
        names = {path.name for path in folder.glob("*.json")}
        try:
            return _read(folder, names)
        except FileNotFoundError:
            continue
    raise Retry(f"the log of {root} changes all the time; try again", field="path")


def _read(folder: Path, names: set[str]) -> Sum:
    found = Sum()
    sums = sorted(name for name in names if name.startswith("all-"))
    if sums:
        found = decode_json((folder / sums[-1]).read_bytes(), Sum)
    number, flows, schema = found.number, dict(found.flows), found.schema
    files = list(found.files)
    while _name(number + 1) in names:
        number += 1
        entry = decode_json((folder / _name(number)).read_bytes(), Entry)
        flows[entry.flow] = FlowState(entry.fence, entry.boundary)
        files += entry.files
        schema = entry.schema or schema
    return Sum(number, flows, tuple(files), schema)


def add_entry(root: Path, found: Sum, entry: Entry) -> bool:
    """Make an entry the next one after what was read, for good; False: others were first, and
    nothing was done.
    """
    folder = root / PRIVATE / FOLDER
    number = found.number + 1
    path = folder / _name(number)
    if not write_alone(path, msgspec.json.encode(entry)):
        return False
    if any(name >= _sum_name(number) for name in _sums(folder)):
        # Others are past it; whether they took it in is told by how far they say the flow is.
        now = read_log(root).flows.get(entry.flow)
        if now != FlowState(entry.fence, entry.boundary):
            path.unlink(missing_ok=True)
            return False
    if number % limits.LAKE_CHECKPOINT_COMMITS == 0:
        now_said = read_log(root)
        write_alone(folder / _sum_name(now_said.number), msgspec.json.encode(now_said))
    return True


def clean_log(root: Path, now_seconds: float) -> None:
    """Delete entries and sums that a later sum holds, where they are old enough."""
    folder = root / PRIVATE / FOLDER
    sums = _sums(folder)
    if not sums:
        return
    last = sums[-1].removeprefix("all-")
    entries = sorted(path.name for path in folder.glob("[0-9]*.json"))
    passed = [name for name in entries if name <= last] + sums[:-1]
    drop_old((folder / name for name in passed), now_seconds)
    drop_old(folder.glob(".*.draft"), now_seconds)


def _sums(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("all-*.json"))


def _name(number: int) -> str:
    return f"{number:020d}.json"


def _sum_name(number: int) -> str:
    return f"all-{number:020d}.json"
