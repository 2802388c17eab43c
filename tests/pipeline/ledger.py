"""A sink in a SQLite file: transactional, and there for every process that asks."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec
import pyarrow as pa

from millrace.errors import Retry, Stale
from millrace.sinks.base import DELETE, OP, PUT, Held, Task
from millrace.sinks.boundary import Boundary, Span, goes_on
from millrace.sinks.lane import check_key

Line = dict[str, object]

_TABLES = """
    create table if not exists flows (flow text primary key, fence integer, boundary text);
    create table if not exists staged (part text, line text);
    create table if not exists lines (id text, line text);
"""


class Ledger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows as JSON, added or by their key; `mode` is there to be changed."""

    path: str
    key: tuple[str, ...] = ()
    lanes: int = 0
    mode: str = ""

    def check(self, schema: pa.Schema) -> None:
        check_key(schema, self.key)

    def open(self, flow: str, schema: pa.Schema) -> Held:
        with closing(self._connect()) as db, db:
            db.execute("begin immediate")
            db.execute("insert or ignore into flows values (?, 0, null)", (flow,))
            db.execute("update flows set fence = fence + 1 where flow = ?", (flow,))
            fence, text = self._flow(db, flow)
        return Held(flow, fence, None if text is None else Boundary.of_text(text))

    def stage(self, task: Task, batches: Iterable[pa.RecordBatch]) -> bytes:
        lines = [line for batch in batches for line in _lines(batch)]
        with closing(self._connect()) as db, db:
            self._fenced(db, task.held)
            db.executemany(
                "insert into staged values (?, ?)",
                ((task.part, json.dumps(line, default=_shown)) for line in lines),
            )
        return task.part.encode()

    def commit(self, held: Held, span: Span, staged: Sequence[bytes]) -> Held:
        with closing(self._connect()) as db, db:
            db.execute("begin immediate")
            boundary = self._fenced(db, held)
            if goes_on(boundary, span):
                lines = [line for part in staged for line in self._staged(db, part.decode())]
                for line in sorted(lines, key=lambda line: cast("int", line.get("seq", 0))):
                    self._apply(db, line)
                boundary = span.upto
                db.execute(
                    "update flows set boundary = ? where flow = ?", (boundary.text(), held.flow)
                )
            db.executemany(
                "delete from staged where part = ?", ((part.decode(),) for part in staged)
            )
        return msgspec.structs.replace(held, boundary=boundary)

    def clean(self, held: Held) -> None:
        """Tests look at what is left."""

    def close(self) -> None:
        """Nothing is kept open."""

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        lines = [{name: _raw(line.get(name)) for name in columns} for line in self.lines()]
        if lines:
            yield pa.RecordBatch.from_pylist(lines)

    def lines(self) -> list[Line]:
        """What is in it."""
        with closing(self._connect()) as db:
            found = db.execute("select line from lines").fetchall()
        return [json.loads(text) for (text,) in found]

    def boundary(self, flow: str) -> Boundary | None:
        """How far a flow is."""
        with closing(self._connect()) as db:
            _, text = self._flow(db, flow)
        return None if text is None else Boundary.of_text(text)

    def fence(self, flow: str) -> int:
        """How often a flow was opened."""
        with closing(self._connect()) as db:
            fence, _ = self._flow(db, flow)
        return fence

    def _connect(self) -> sqlite3.Connection:
        if Path(f"{self.path}.down").exists():
            raise Retry(f"{self.path} is down", field="path")
        db = sqlite3.connect(self.path, timeout=30)
        db.executescript(_TABLES)
        return db

    def _flow(self, db: sqlite3.Connection, flow: str) -> tuple[int, str | None]:
        found = db.execute("select fence, boundary from flows where flow = ?", (flow,)).fetchone()
        return found or (0, None)

    def _fenced(self, db: sqlite3.Connection, held: Held) -> Boundary | None:
        fence, text = self._flow(db, held.flow)
        if fence != held.fence:
            raise Stale(f"flow {held.flow!r} was opened again since", field="fence")
        return None if text is None else Boundary.of_text(text)

    def _staged(self, db: sqlite3.Connection, part: str) -> list[Line]:
        found = db.execute("select line from staged where part = ?", (part,)).fetchall()
        return [json.loads(text) for (text,) in found]

    def _apply(self, db: sqlite3.Connection, line: Line) -> None:
        id = json.dumps([line[name] for name in self.key]) if self.key else None
        if id is not None:
            db.execute("delete from lines where id = ?", (id,))
            if line.get(OP, PUT) == DELETE:
                return
        db.execute("insert into lines values (?, ?)", (id, json.dumps(line)))


def _lines(batch: pa.RecordBatch) -> list[Line]:
    return cast("list[Line]", batch.to_pylist())


def _shown(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _raw(value: object) -> object:
    """Texts as bytes: whether it was a text is not known any more."""
    return value.encode() if isinstance(value, str) else value
