"""Reads a declaration from a TOML file; errors name the file, line, table and field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from millrace.decoding import convert
from millrace.errors import Invalid
from millrace.pipeline.declaration import (
    SOURCE,
    DeclaredSink,
    Pipeline,
    Run,
    Source,
    Step,
    Wrong,
    check,
    redacting_errors,
)
from millrace.pipeline.variable import ProcessEnvironment
from millrace.server.process.settings_file import ConfigFile, read_file
from millrace.sinks.kinds import misfit

T = TypeVar("T")

_PLACES = {
    "delta": "path",
    "iceberg": "path",
    "parquet": "path",
    "postgres": "url",
    "redis": "url",
    "search": "url",
    "queue": "queue",
}
"""The setting of each sink kind that names its place."""

_OF_SINKS = ("from", "kind", "null_key", "dead_letter")
"""Fields of a sink's table that are not settings of its kind."""

_TABLES = ("name", "source", "sources", "steps", "sinks", "run", "spark")


def read_pipeline(path: Path | str, environ: Mapping[str, str] | None = None) -> Pipeline:
    """Read the pipeline that a file declares, and validate it.

    `environ` has the values of `$NAME` in settings; None takes the environment of this process, as
    `Setting` does.

    Raises:
        Invalid: the file cannot be read or contains an error.
    """
    path = Path(path)
    environ = ProcessEnvironment() if environ is None else environ
    file = read_file(path)
    try:
        pipeline = _parsed(file.values, path.parent)
        with redacting_errors(pipeline, environ):
            check(pipeline, environ)
    except Wrong as error:
        raise _placed(file, error) from None
    return pipeline


def _placed(file: ConfigFile, error: Wrong) -> Invalid:
    keys = tuple(error.table.split(".", 1)) if error.table else ()
    field = error.field or ""
    where = file.where(*keys, field)
    table = f" [{error.table}]" if error.table else ""
    return Invalid(f"{where}:{table} {field}: {error.message}", field=field)


def _parsed(values: Mapping[str, object], folder: Path) -> Pipeline:
    for key in values:
        if key not in _TABLES:
            raise Wrong(
                f"there is no {key!r} in a declaration; there are {', '.join(_TABLES)}",
                table="",
                field=key,
            )
    name = values.get("name")
    if not isinstance(name, str):
        raise Wrong('give the pipeline a name: name = "orders"', table="", field="name")
    if "source" not in values:
        raise Wrong("there is no table [source]", table="source", field="source")
    return Pipeline(
        name=name,
        source=_made(values["source"], Source, "source"),
        sources={
            name: _made(found, Source, f"sources.{name}")
            for name, found in _tables(values, "sources").items()
        },
        steps=tuple(
            _made({**_expecting(found, f"steps.{name}"), "name": name}, Step, f"steps.{name}")
            for name, found in _tables(values, "steps").items()
        ),
        sinks=tuple(
            _sink(name, _table(found, f"sinks.{name}"))
            for name, found in _tables(values, "sinks").items()
        ),
        run=_made(values.get("run", {}), Run, "run"),
        spark=_spark(values),
        folder=str(folder),
    )


def _spark(values: Mapping[str, object]) -> dict[str, str]:
    found = _tables(values, "spark")
    for name, value in found.items():
        if isinstance(value, dict):
            inner = next(iter(value), "master")
            raise Wrong(
                f'names of Spark\'s settings have dots, and stand in quotes: "{name}.{inner}"',
                table="spark",
                field=name,
            )
        if not isinstance(value, str):
            raise Wrong(f'write {value} in quotes, as "{value}"', table="spark", field=name)
    return {name: str(value) for name, value in found.items()}


def _tables(values: Mapping[str, object], name: str) -> dict[str, object]:
    return _table(values.get(name, {}), name)


def _table(found: object, table: str) -> dict[str, object]:
    if not isinstance(found, dict):
        raise Wrong("this is no table", table=table, field=table.rpartition(".")[2])
    return found


def _expecting(found: object, table: str) -> dict[str, object]:
    """Expand a single condition without a name of its own."""
    step = _table(found, table)
    expect = step.get("expect")
    return {**step, "expect": {"expect": expect}} if isinstance(expect, str) else step


def _sink(name: str, found: dict[str, object]) -> DeclaredSink:
    table = f"sinks.{name}"
    found = _spelled_out(found)
    settings = {key: value for key, value in found.items() if key not in _OF_SINKS}
    if "kind" not in found:
        raise Wrong(
            'a sink has a kind, such as kind = "delta", or delta = "/lake/orders" for short',
            table=table,
            field="kind",
        )
    given = {"name": name, "rows": found.get("from", SOURCE), "kind": found["kind"]}
    given |= {key: found[key] for key in ("null_key", "dead_letter") if key in found}
    return _made({**given, "settings": settings}, DeclaredSink, table)


def _spelled_out(found: dict[str, object]) -> dict[str, object]:
    """Expand `delta = "/lake/orders"`, which is short for the kind and its place."""
    for kind, place in _PLACES.items():
        if "kind" not in found and isinstance(found.get(kind), str):
            others = {name: value for name, value in found.items() if name != kind}
            return {"kind": kind, place: found[kind], **others}
    return found


def _made(found: object, kind: type[T], table: str) -> T:
    try:
        return convert(found, kind)
    except msgspec.ValidationError as error:
        field, text = misfit(error, kind)
        raise Wrong(text, table=table, field=field or table) from None
