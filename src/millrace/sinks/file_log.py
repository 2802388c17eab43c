"""A transaction log of files, for folders without one: the committed files and the state of flows.

It is a folder of small JSON files. Entry n is `<n>.json`, with twenty digits, and extends the
entries before it. At intervals a checkpoint `all-<n>.json` summarizes them, so that a reader needs
only the newest checkpoint and the few entries that follow.

Rule 1: an entry is created atomically under its name, if that name does not exist: so the next
number is a fence that only one of two writers can pass.

Rule 2: an entry at or below a checkpoint counts only if the checkpoint includes it: a writer that
was suspended until its number was cleaned away detects this, and removes its entry.
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
from millrace.sinks.parts import (
    PRIVATE,
    PartFile,
    drop_old,
    write_alone,
)

FOLDER = "log"


class LogEntry(msgspec.Struct, frozen=True):
    """The content of one commit, or of one opening of a flow."""

    flow: str
    fence: int
    boundary: Boundary | None
    files: tuple[PartFile, ...] = ()
    schema: str = ""
    """The table's schema from here on, serialized by Arrow, in base64; empty: unchanged."""


class Sum(msgspec.Struct, frozen=True):
    """The sum of all entries up to one: a checkpoint of the log."""

    number: int = 0
    flows: dict[str, FlowState] = {}
    files: tuple[PartFile, ...] = ()
    schema: str = ""

    def columns(self) -> pa.Schema | None:
        """Return the columns of the table, or None if it has none yet."""
        if not self.schema:
            return None
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))


def schema_text(schema: pa.Schema) -> str:
    """Serialize a schema as entries store it."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def read_log(root: Path) -> Sum:
    """Read the present state of the log; an empty log gives an empty state.

    Raises:
        Retry: it was cleaned during each of several attempts to read it.
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
        entry = decode_json((folder / _name(number)).read_bytes(), LogEntry)
        flows[entry.flow] = FlowState(entry.fence, entry.boundary)
        files += entry.files
        schema = entry.schema or schema
    return Sum(number, flows, tuple(files), schema)


def add_entry(root: Path, found: Sum, entry: LogEntry) -> bool:
    """Create an entry durably as the next one after the state `found`; return False, with nothing
    done, if another writer was first.
    """
    folder = root / PRIVATE / FOLDER
    number = found.number + 1
    path = folder / _name(number)
    if not write_alone(path, msgspec.json.encode(entry)):
        return False
    if any(name >= _sum_name(number) for name in _sums(folder)):
        # A checkpoint is past this entry; the flow's state in the log shows if the entry is
        # included.
        now = read_log(root).flows.get(entry.flow)
        if now != FlowState(entry.fence, entry.boundary):
            path.unlink(missing_ok=True)
            return False
    if number % limits.LAKE_CHECKPOINT_COMMITS == 0:
        now_said = read_log(root)
        write_alone(folder / _sum_name(now_said.number), msgspec.json.encode(now_said))
    return True


def clean_log(root: Path, now_seconds: float) -> None:
    """Delete entries and checkpoints that a later checkpoint includes, if they are old enough."""
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
