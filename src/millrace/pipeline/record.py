"""The book of pipelines: the keyed log `millrace/pipelines`, beside the queues that they read.

A run writes down what it runs and how far its sinks are, for those who look on and for the next
run, which learns from it whether the declaration was changed.

Rule 1: how far a sink is, is the sink's to say. What stands here is only ever older.
Rule 2: no line holds a secret: settings stand here as they are declared, variables unread.
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
    """A sink, as it was last known."""

    name: str
    kind: str
    rows: str = ""
    """The view that it takes."""
    method: str = ""
    """How rows get there: append, upsert."""
    hash: str = ""
    """Of all that decides what is in it."""
    generation: int = 0
    """How often it was begun anew."""
    start: Boundary | None = None
    """Where this generation began; None: at the beginning."""
    suffix: str = ""
    """Of the place that is filled beside the one that is declared."""
    boundary: Boundary | None = None
    brought: int = 0
    """Rows that the run has brought."""

    def flow(self, pipeline: str) -> str:
        """What the sink knows it by."""
        mark = f"~{self.generation}" if self.generation else ""
        return f"{pipeline}/{self.name}{mark}"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline, as it was last known."""

    pipeline: str
    space: str
    queue: str
    views: tuple[str, ...] = ()
    """Further sources and steps, in their order."""
    state: State = "stopped"
    message: str = ""
    run: str = ""
    host: str = ""
    pid: int = 0
    started_ms: int = 0
    told_ms: int = 0
    sinks: tuple[SinkRecord, ...] = ()

    def sink(self, name: str) -> SinkRecord | None:
        """The sink of this name."""
        return next((sink for sink in self.sinks if sink.name == name), None)


_decoder = json_decoder(Record)


def read_record(body: bytes) -> Record | None:
    """A line of the book; None: whoever may publish there has written what is none."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError:
        return None


class Book:
    """Reads and writes the records of one Millrace."""

    def __init__(self, m: sync.Millrace) -> None:
        self._millrace = m

    def _queue(self) -> sync.Queue:
        return self._millrace.queue(QUEUE, space=SPACE, keyed=True, retention="log")

    def all(self) -> list[Record]:
        """Every pipeline that has ever run here, by name."""
        return sorted(self._read(), key=lambda record: record.pipeline)

    def find(self, pipeline: str) -> Record | None:
        """A pipeline; None: it has never run here."""
        return next((record for record in self._read() if record.pipeline == pipeline), None)

    def write(self, record: Record) -> Record:
        """Write it down; returns it as it was written."""
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
    """The record of a run that begins now."""
    return msgspec.structs.replace(
        record,
        state="running",
        message="",
        run=secrets.token_hex(4),
        host=socket.gethostname(),
        pid=os.getpid(),
        started_ms=time.time_ns() // 1_000_000,
    )
