"""The registry of pipelines: the keyed log `millrace/pipelines`, in the Millrace of their queues.

A run records its declaration and the boundaries of its sinks, for monitoring and for the next run,
which detects changes of the declaration by it.

Rule 1: the sink's own boundary is authoritative. A recorded boundary may be older, never newer.

Rule 2: no record contains a secret: settings are stored as declared, with variables unexpanded.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator
from typing import Literal

import msgspec

from millrace import sync
from millrace.decoding import json_decoder
from millrace.errors import NotFound
from millrace.sinks.boundary import Boundary

SPACE, QUEUE = "millrace", "pipelines"

State = Literal["running", "stopped", "failed", "rewound"]


class SinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The last known state of a sink."""

    name: str
    kind: str
    rows: str = ""
    """The view that it takes."""
    method: str = ""
    """How rows are written: append or upsert."""
    hash: str = ""
    """Hash of everything that determines its rows (`plan_hash`)."""
    generation: int = 0
    """Number of times it was restarted."""
    start: Boundary | None = None
    """The boundary at which this generation began; None: the beginning."""
    suffix: str = ""
    """Suffix of the place that is filled instead of the declared one."""
    boundary: Boundary | None = None
    brought: int = 0
    """Number of rows that the run has written."""

    def flow(self, pipeline: str) -> str:
        """Return the name under which the sink stores its boundary."""
        mark = f"~{self.generation}" if self.generation else ""
        return f"{pipeline}/{self.name}{mark}"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The last known state of a pipeline."""

    pipeline: str
    space: str
    queue: str
    views: tuple[str, ...] = ()
    """Further sources and steps, in order."""
    state: State = "stopped"
    message: str = ""
    run: str = ""
    host: str = ""
    pid: int = 0
    started_ms: int = 0
    told_ms: int = 0
    sinks: tuple[SinkRecord, ...] = ()

    def sink(self, name: str) -> SinkRecord | None:
        """Return the sink of this name, or None."""
        return next((sink for sink in self.sinks if sink.name == name), None)


_decoder = json_decoder(Record)


def read_record(body: bytes) -> Record | None:
    """Decode a record; return None if it is invalid, since anyone with publish rights can write
    there.
    """
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError:
        return None


class Book:
    """Reads and writes the pipeline records of one Millrace."""

    def __init__(self, m: sync.Millrace) -> None:
        self._millrace = m

    def _queue(self) -> sync.Queue:
        return self._millrace.queue(QUEUE, space=SPACE, keyed=True, retention="log")

    def all(self) -> list[Record]:
        """Return the records of all pipelines that ever ran here, by name."""
        return sorted(self._read(), key=lambda record: record.pipeline)

    def find(self, pipeline: str) -> Record | None:
        """Return the record of a pipeline, or None if it has never run here."""
        return next((record for record in self._read() if record.pipeline == pipeline), None)

    def write(self, record: Record) -> Record:
        """Publish the record; return it with the time of writing."""
        told = msgspec.structs.replace(record, told_ms=time.time_ns() // 1_000_000)
        self._queue().publish(msgspec.json.encode(told), key=told.pipeline)
        return told

    def _read(self) -> Iterator[Record]:
        try:
            queue = self._millrace.find(QUEUE, space=SPACE)
        except NotFound:
            return
        with queue.snapshot() as snapshot:
            for row in snapshot.rows():
                record = None if row.body is None else read_record(row.body)
                if record is not None:
                    yield record


def begun(record: Record) -> Record:
    """Return the record of a run that begins now."""
    return msgspec.structs.replace(
        record,
        state="running",
        message="",
        run=secrets.token_hex(4),
        host=socket.gethostname(),
        pid=os.getpid(),
        started_ms=time.time_ns() // 1_000_000,
    )
