"""Queues, declarations and sinks for the tests of pipelines."""

from __future__ import annotations

from pathlib import Path

from millrace import sync
from millrace.pipeline import DeclaredSink, Limit, Pipeline, Progress, Setting, run_pipeline
from millrace.pipeline.declaration import Source
from tests.pipeline.ledger import Ledger

KIND = "tests.pipeline.ledger:Ledger"


def ledger_at(folder: Path, name: str, *, key: tuple[str, ...] = ()) -> tuple[DeclaredSink, Ledger]:
    """A ledger, declared and in hand."""
    settings: dict[str, object] = {"path": str(folder / f"{name}.db"), "key": list(key)}
    path = str(folder / f"{name}.db")
    return DeclaredSink(name=name, kind=KIND, settings=settings), Ledger(path=path, key=key)


def plain(*sinks: DeclaredSink, limit: int = 0, name: str = "orders") -> Pipeline:
    """A pipeline without steps."""
    source = Source(queue="orders", limit=Limit(rows=limit))
    return Pipeline(name=name, source=source, sinks=sinks)


def run_once(pipeline: Pipeline, m: sync.Millrace) -> list[Progress]:
    """Carry all that is there; returns what was told."""
    told: list[Progress] = []
    run_pipeline(pipeline, Setting(millrace=m), once=True, tell=told.append)
    return told
