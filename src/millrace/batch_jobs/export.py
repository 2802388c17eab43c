"""A snapshot of a queue into files or a table, with the boundary in the same commit.

Rule 1: what is exported is one moment of the queue, whatever comes meanwhile.
Rule 2: an export under the same name, into the same place, goes on where the last one ended. What
shows the latest of each key is whole each time, and needs a place of its own.
"""

from __future__ import annotations

import json
from functools import partial
from secrets import token_hex
from threading import Event

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from millrace import limits, sync
from millrace.batch_jobs.site import Site
from millrace.client.vector import open_at
from millrace.core import check
from millrace.errors import CursorExpired, Exists
from millrace.pipeline.declaration import DeclaredSink
from millrace.pipeline.feed import Stretch, judge
from millrace.pipeline.frames import arrow_schema
from millrace.pipeline.outlet import Brought, Outlet, Patience
from millrace.pipeline.record import SinkRecord
from millrace.pipeline.staging import stage_frame
from millrace.sinks.base import Held, Sink
from millrace.sinks.boundary import Boundary, Span, begins
from millrace.sinks.lake import Lake
from millrace.spark.options import View

_FLOW = "export"
"""Sinks know an export as export/NAME."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """What of a queue goes where."""

    name: str
    sink: Sink
    view: View = "changes"
    schema: str = ""
    """Of the bodies, as Spark declares columns; empty: they are left as they are."""
    format: str = "json"
    """Of the bodies, with a schema."""
    columns: tuple[str, ...] = ()
    """Of the queue's rows; empty: all of them."""


class Exported(msgspec.Struct, frozen=True):
    """What became of an export."""

    rows: int
    boundary: Boundary
    """How far the queue was read."""


def export(site: Site, queue: sync.Queue, job: Export) -> Exported:
    """Bring one moment of a queue into a sink.

    Raises:
        Exists: with the view `latest`, rows of an earlier moment are there.
        CursorExpired: of a keyed queue, deletes have gone since the last export.
        Refused: the sink cannot take such rows, or holds those of another queue.
        Retry: the sink did not answer.
    """
    name = check.name(job.name, "name")
    patience = Patience(limits.JOB_PATIENCE_SECONDS, Event(), site.say)
    outlet = Outlet(
        DeclaredSink(name=name, kind=_FLOW),
        _whole(job.sink),
        _FLOW,
        SinkRecord(name=name, kind=_FLOW),
        patience,
    )
    with queue.snapshot(seconds=limits.JOB_PIN_SECONDS) as snapshot:
        stretch = Stretch(queue, snapshot._twin)
        upto = stretch.upto
        with site.asking("to export", "schema"):
            columns = arrow_schema(_frame(site, queue, job, stretch, Span(upto, upto)))
        try:
            outlet.open(columns)
            after = outlet.boundary
            if after is not None:
                judge(job.name, after, upto)
                if job.view == "changes" and queue.spec().keyed:
                    _see_deletes(queue, job.name, after)
                if job.view == "latest" and after != upto:
                    raise Exists(
                        f"{job.name!r} has the latest of each key already, as of "
                        f"{after.number} messages; export into another place, or, with the view "
                        "changes, into a table that replaces by key",
                        field="view",
                    )
            span = Span(after or begins(upto), upto)
            if after != upto:
                _carry(site, outlet, span, _frame(site, queue, job, stretch, span), columns)
                outlet.clean()
            return Exported(outlet.rows, upto)
        finally:
            outlet.close()


def _whole(sink: Sink) -> Sink:
    """The sink with its whole path: Spark's tasks may work in another folder."""
    return msgspec.structs.replace(sink, path=str(sink.root)) if isinstance(sink, Lake) else sink


def _see_deletes(queue: sync.Queue, name: str, after: Boundary) -> None:
    """See that nothing has gone which tells of what became of keys since: no key may stay in the
    sink because its delete was not seen.

    Raises:
        CursorExpired: deletes have gone by age, or rows were purged.
    """
    [place] = after.places
    # Where rows are gone is told to those who would read on from a place.
    probe = f"{_FLOW}.{token_hex(8)}"
    try:
        cursor = queue._portal.run(partial(open_at, queue._twin, probe, place.seqs, retain=False))
    except CursorExpired as error:
        raise CursorExpired(
            f"deletes that came after the last export {name!r} may be gone ({error.message}); "
            "export under another name into a new place. A queue keeps deletes for keep_deletes: "
            "export more often, or run a pipeline, whose cursor keeps them",
            field="name",
            limit=error.limit,
        ) from error
    queue._portal.run(cursor.delete)


def _frame(site: Site, queue: sync.Queue, job: Export, stretch: Stretch, span: Span) -> DataFrame:
    [after] = span.after.places
    firsts = {str(shard): seq + 1 for shard, seq in enumerate(after.seqs)}
    options = {
        "view": job.view,
        "startingOffsets": json.dumps(firsts),
        "endingSnapshot": stretch.ticket(stretch.whole()),
    }
    if job.schema:
        options |= {"schema": job.schema, "format": job.format}
    if job.columns:
        options["columns"] = ",".join(job.columns)
    return site.read(queue, **options)


def _carry(site: Site, outlet: Outlet, span: Span, frame: DataFrame, columns: pa.Schema) -> None:
    def stage(held: Held) -> Brought:
        with site.asking("to export", "schema"):
            return stage_frame(frame, outlet.sink, held, span, columns)

    outlet.apply(span, stage)
