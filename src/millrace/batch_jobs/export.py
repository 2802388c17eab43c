"""Export: writes a snapshot of a queue to files or a table, with its boundary in the same commit.

Rule 1: an export is a consistent snapshot of the queue.
Rule 2: a repeated export with the same name and place is incremental. The view `latest` is complete
each time, and needs a place of its own.
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
from millrace.batch_jobs.job_context import JobContext
from millrace.client.multi_shard_cursor import open_at
from millrace.core import validate
from millrace.errors import CursorExpired, Exists
from millrace.pipeline.declaration import DeclaredSink
from millrace.pipeline.frames import arrow_schema
from millrace.pipeline.record import SinkRecord
from millrace.pipeline.sink_session import Brought, Patience, SinkSession
from millrace.pipeline.source import Stretch, judge
from millrace.pipeline.staging import stage_frame
from millrace.sinks.base import Held, Sink
from millrace.sinks.boundary import Boundary, Span, begins
from millrace.sinks.lake import Lake
from millrace.spark.options import View

_FLOW = "export"
"""Prefix of an export's flow in its sink: export/NAME."""


class ExportJob(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of an export: source view, sink and columns."""

    name: str
    sink: Sink
    view: View = "changes"
    schema: str = ""
    """Schema of the bodies, as Spark declares columns; empty: bodies are not parsed."""
    format: str = "json"
    """Format of the bodies, with a schema."""
    columns: tuple[str, ...] = ()
    """Columns of the queue's rows; empty: all of them."""


class ExportResult(msgspec.Struct, frozen=True):
    """Result of an export."""

    rows: int
    boundary: Boundary
    """Position up to which the queue was exported."""


def export(site: JobContext, queue: sync.Queue, job: ExportJob) -> ExportResult:
    """Export a snapshot of a queue to a sink.

    Raises:
        Exists: the view is `latest`, and the sink has rows of an earlier snapshot.
        CursorExpired: deletes of a keyed queue were removed since the last export.
        Refused: the sink cannot take such rows, or holds those of another queue.
        Retry: the sink did not answer.
    """
    name = validate.name(job.name, "name")
    patience = Patience(limits.JOB_PATIENCE_SECONDS, Event(), site.say)
    outlet = SinkSession(
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
            return ExportResult(outlet.rows, upto)
        finally:
            outlet.close()


def _whole(sink: Sink) -> Sink:
    """Return the sink with an absolute path: Spark's tasks may run in another folder."""
    return msgspec.structs.replace(sink, path=str(sink.root)) if isinstance(sink, Lake) else sink


def _see_deletes(queue: sync.Queue, name: str, after: Boundary) -> None:
    """Check that no delete since the last export was removed: its key would stay in the sink.

    Raises:
        CursorExpired: deletes were removed by age, or rows were purged.
    """
    [place] = after.places
    # A probe cursor at the last position is refused if rows after it were removed.
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


def _frame(
    site: JobContext, queue: sync.Queue, job: ExportJob, stretch: Stretch, span: Span
) -> DataFrame:
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


def _carry(
    site: JobContext, outlet: SinkSession, span: Span, frame: DataFrame, columns: pa.Schema
) -> None:
    def stage(held: Held) -> Brought:
        with site.asking("to export", "schema"):
            return stage_frame(frame, outlet.sink, held, span, columns)

    outlet.apply(span, stage)
