"""Rows that become dead letters: they break a condition, or their key is null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from millrace.client import dead_letter_headers
from millrace.client.reserved import is_reserved
from millrace.pipeline.declaration import SOURCE, DeclaredSink, Pipeline
from millrace.sinks.null_key import null_keys

_BAD = ":bad"
_KEYLESS = ":keyless"


_PAIR = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_FIELDS: list[pa.Field[pa.DataType]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", pa.list_(pa.field("element", _PAIR))),
]
LETTERS = pa.schema(_FIELDS)
"""Schema of dead letters that are made without Spark."""


def bad_rows(step: str) -> str:
    """Return the name of the rows of a step that break a condition."""
    return f"{step}{_BAD}"


def keyless_rows(sink: str) -> str:
    """Return the name of the rows for a sink whose key is null."""
    return f"{sink}{_KEYLESS}"


def view_of(pipeline: Pipeline, rows: str) -> str:
    """Return the view that holds the rows, or held them before they became dead letters."""
    for sink in pipeline.sinks:
        if rows == keyless_rows(sink.name):
            return sink.rows
    return rows.removesuffix(_BAD)


def is_dead(rows: str) -> bool:
    """Return True if the name is of rows that become dead letters."""
    return rows.endswith((_BAD, _KEYLESS))


def dead_letter_sinks(pipeline: Pipeline, home: dict[str, object]) -> Iterator[DeclaredSink]:
    """Yield the dead-letter sinks, one for each step and each sink that declares one; `home` has
    the settings of the source's server or folder.
    """
    found = [
        (f"{step.name}.dead", bad_rows(step.name), step.dead_letter) for step in pipeline.steps
    ]
    found += [
        (f"{sink.name}.keyless", keyless_rows(sink.name), sink.dead_letter)
        for sink in pipeline.sinks
    ]
    for name, rows, target in found:
        if target:
            space, _, queue = target.rpartition("/")
            settings = {**home, "queue": f"{space or pipeline.source.space}/{queue}"}
            yield DeclaredSink(name=name, rows=rows, kind="queue", settings=settings)


def told_of(pipeline: Pipeline, *, view: str, sink: str = "") -> dict[str, str]:
    """Return the headers that every dead letter of a view carries."""
    source = pipeline.source
    told = {dead_letter_headers.PIPELINE: pipeline.name}
    if view != SOURCE:
        told[dead_letter_headers.STEP] = view
    if sink:
        told[dead_letter_headers.SINK] = sink
    return {**told, dead_letter_headers.QUEUE: f"{source.space}/{source.queue}"}


def null_key_text(names: Sequence[str]) -> str:
    """Return the reason given in a dead letter whose key columns `names` are null."""
    return f"null key: {', '.join(names)}"


def keyless_letters(
    batches: Iterable[pa.RecordBatch], key: Sequence[str], told: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Make dead letters of a source's rows whose key is null."""
    for batch in batches:
        mask = null_keys(batch, key)
        if mask is not None:
            lines = [_letter(row, key, told) for row in batch.filter(mask).to_pylist()]
            yield pa.RecordBatch.from_pylist(lines, LETTERS)


def _letter(
    row: Mapping[str, object], key: Sequence[str], told: Mapping[str, str]
) -> dict[str, object]:
    wrong = null_key_text([name for name in key if row[name] is None])
    own = {
        **told,
        dead_letter_headers.BROKEN: wrong,
        dead_letter_headers.SHARD: str(row["shard"]),
        dead_letter_headers.SEQ: str(row["seq"]),
    }
    body = row["value"]
    if body is None:
        own[dead_letter_headers.OP] = dead_letter_headers.DELETE.decode()
    pairs = [{"key": name, "value": text.encode()} for name, text in own.items()]
    return {
        "key": row["key"],
        "value": b"" if body is None else body,
        "headers": [*_kept(row["headers"]), *pairs],
    }


def _kept(headers: object) -> list[dict[str, object]]:
    pairs = headers if isinstance(headers, list) else []
    return [
        pair
        for pair in pairs
        if not is_reserved(str(pair["key"])) and pair["key"] not in dead_letter_headers.OF_PIPELINES
    ]
