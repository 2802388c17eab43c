"""The declaration of a pipeline as values, either read from a file or built by a program.

Rule 1: a declaration contains no secret. `$NAME` in a setting refers to an environment variable and
is replaced when the sink is made, not before.

Rule 2: `check` validates everything that needs neither Spark nor a connection.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from millrace import limits
from millrace.errors import Invalid, MillraceError
from millrace.pipeline.variable import filled, hide, names_in
from millrace.sinks.kinds import make_sink
from millrace.sinks.null_key import NullKey
from millrace.spark.session import REMOTE

SOURCE = "source"
"""The view of the first source's rows, in steps."""

View = Literal["changes", "latest", "log"]
OnFail = Literal["fail", "drop", "dead_letter"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PIPELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on the size of one span."""

    rows: int = 0
    """Maximum number of seqs per span; a larger snapshot is split. 0: all rows that are
    available.
    """


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A queue that the pipeline reads."""

    queue: str
    space: str = "default"
    url: str = ""
    """URL of the server; with neither this nor `path`, the caller's server or folder is used."""
    path: str = ""
    """A folder of queues; a relative path is resolved against the declaration's folder."""
    token_file: str = ""
    """File with the token that authenticates the caller; without one, MILLRACE_TOKEN."""
    view: View = "changes"
    schema: str = ""
    """The columns that bodies are parsed into, as the Spark source takes them; empty: bodies stay
    bytes.
    """
    format: Literal["json", "avro", "arrow"] = "json"
    """Format of bodies that are parsed."""
    limit: Limit = Limit()


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A transformation of rows: a view that later steps and sinks read by its name."""

    name: str
    sql: str = ""
    python: str = ""
    """`file.py:function`; the names of its parameters are the views that it takes."""
    expect: Mapping[str, str] = {}
    """Conditions that every row must satisfy, by names that describe the violation."""
    on_fail: OnFail = "fail"
    dead_letter: str = ""
    """The queue for rows that break a condition."""


class DeclaredSink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A destination for the rows of a step."""

    name: str
    rows: str = SOURCE
    """Name of the step, or of the source; `from` in files."""
    kind: str
    settings: Mapping[str, object] = {}
    null_key: NullKey = "refuse"
    """Policy for rows whose key is null, in a sink with a key."""
    dead_letter: str = ""
    """The queue for rows whose key is null."""


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a run."""

    every: float = 0
    """Minimum number of seconds between the starts of two spans."""
    patience: float = limits.PIPELINE_PATIENCE_SECONDS
    """Retry timeout in seconds for an unresponsive sink or server."""
    checkpoint: str = ""
    """The folder of Spark's checkpoint, for stateful steps; a relative path is resolved against the
    declaration's folder.
    """


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A source queue, the steps that transform its rows, and the sinks."""

    name: str
    source: Source
    sources: Mapping[str, Source] = {}
    """Further queues, by the names of their views."""
    steps: tuple[Step, ...] = ()
    sinks: tuple[DeclaredSink, ...]
    run: Run = Run()
    spark: Mapping[str, str] = {}
    """Configuration of the Spark session."""
    folder: str = "."
    """The folder against which relative paths are resolved."""

    def at(self, path: str) -> Path:
        """Resolve a path that is named in the declaration."""
        return Path(self.folder, path)


class Wrong(Invalid):
    """Refuses a field of a declaration; `table` names the table of the file that has it."""

    def __init__(self, message: str, *, table: str, field: str) -> None:
        super().__init__(message, field=field)
        self.table = table


def check(pipeline: Pipeline, environ: Mapping[str, str]) -> None:
    """Validate the declaration, as far as possible without running it.

    Raises:
        Wrong: the first error found.
    """
    if not _PIPELINE_NAME.fullmatch(pipeline.name) or len(pipeline.name) > limits.NAME_CHARS_MAX:
        raise Wrong(
            f"name is {pipeline.name!r}; it is letters, digits, '.', '_' and '-', at most "
            f"{limits.NAME_CHARS_MAX}",
            table="",
            field="name",
        )
    _check_source("source", pipeline.source)
    if pipeline.source.view == "latest":
        raise Wrong(
            "view 'latest' has no changes to carry on; take 'changes', or export a snapshot",
            table="source",
            field="view",
        )
    known = [SOURCE]
    for name, source in pipeline.sources.items():
        _check_name(name, known, f"sources.{name}")
        _check_source(f"sources.{name}", source)
        known.append(name)
    for step in pipeline.steps:
        _check_name(step.name, known, f"steps.{step.name}")
        _check_step(pipeline, step)
        known.append(step.name)
    if not pipeline.sinks:
        raise Wrong("there is no sink; add a table [sinks.NAME]", table="sinks", field="sinks")
    for declared in pipeline.sinks:
        _check_sink(declared, known, environ)
    if pipeline.run.every < 0 or pipeline.run.patience < 0:
        field = "every" if pipeline.run.every < 0 else "patience"
        raise Wrong(f"{field} is less than 0 seconds", table="run", field=field)
    if REMOTE in pipeline.spark and pipeline.run.checkpoint:
        raise Wrong(
            f"a checkpoint is for steps that keep a state, and those do not run through Spark "
            f"Connect ({REMOTE}); name spark.master instead, or drop the checkpoint",
            table="run",
            field="checkpoint",
        )
    if REMOTE in pipeline.spark and "spark.master" in pipeline.spark:
        raise Wrong(
            f"{REMOTE} names a server that has a master of its own; give one of both",
            table="spark",
            field="spark.master",
        )


def _check_name(name: str, known: list[str], table: str) -> None:
    if not _NAME.fullmatch(name):
        raise Wrong(
            f"{name!r} is no name of a view: letters, digits and '_', no digit first",
            table=table,
            field="name",
        )
    if name.lower() in map(str.lower, known):
        raise Wrong(
            f"there is a view {name!r} already, or one that differs by case alone",
            table=table,
            field="name",
        )


def _check_source(table: str, source: Source) -> None:
    if not source.queue:
        raise Wrong("queue is empty; name the queue that is read", table=table, field="queue")
    if source.url and source.path:
        raise Wrong("give url or path, not both", table=table, field="url")
    if source.url and not source.url.startswith(("http://", "https://", "$")):
        raise Wrong(f"write http://{source.url.rpartition('://')[2]}", table=table, field="url")
    if source.limit.rows < 0:
        raise Wrong("limit.rows is less than 0", table=table, field="limit")


def _check_step(pipeline: Pipeline, step: Step) -> None:
    table = f"steps.{step.name}"
    if bool(step.sql) == bool(step.python):
        raise Wrong("give sql or python, and one of them only", table=table, field="sql")
    if step.python:
        _check_function(pipeline, step.python, table)
    for name, condition in step.expect.items():
        if not condition.strip():
            raise Wrong(f"the condition {name!r} is empty", table=table, field="expect")
    if step.on_fail == "dead_letter" and not step.dead_letter:
        raise Wrong(
            'on_fail is dead_letter; name the queue by dead_letter = "…"',
            table=table,
            field="dead_letter",
        )
    if step.dead_letter and (step.on_fail != "dead_letter" or not step.expect):
        raise Wrong(
            'dead_letter is for conditions in expect, with on_fail = "dead_letter"',
            table=table,
            field="dead_letter",
        )


def _check_function(pipeline: Pipeline, text: str, table: str) -> None:
    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise Wrong(f"python is {text!r}, not file.py:function", table=table, field="python")
    path = pipeline.at(file)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise Wrong(
            f"{path} cannot be read: {error.strerror or error}", table=table, field="python"
        ) from None
    except (SyntaxError, ValueError) as error:
        raise Wrong(f"{path} is no Python: {error}", table=table, field="python") from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body):
        raise Wrong(f"{path} has no function {name!r}", table=table, field="python")


def _check_sink(declared: DeclaredSink, known: list[str], environ: Mapping[str, str]) -> None:
    table = f"sinks.{declared.name}"
    if not _PIPELINE_NAME.fullmatch(declared.name):
        raise Wrong(f"{declared.name!r} is no name of a sink", table=table, field="name")
    if declared.rows not in known:
        raise Wrong(
            f"from is {declared.rows!r}; there are {', '.join(known)}", table=table, field="from"
        )
    try:
        sink = make_sink(declared.kind, filled(declared.settings, environ))
    except Invalid as error:
        raise Wrong(error.message, table=table, field=error.field or "settings") from None
    if declared.null_key == "dead_letter" and not declared.dead_letter:
        raise Wrong(
            'null_key is dead_letter; name the queue by dead_letter = "…"',
            table=table,
            field="dead_letter",
        )
    if declared.dead_letter and declared.null_key != "dead_letter":
        raise Wrong(
            'dead_letter is for rows without a key, with null_key = "dead_letter"',
            table=table,
            field="dead_letter",
        )
    if declared.null_key == "dead_letter" and not sink.key:
        raise Wrong(
            "null_key is for sinks with a key; this one only adds rows",
            table=table,
            field="null_key",
        )


# --- Redaction: removes values of variables and passwords from a pipeline's messages -------------


def redact(pipeline: Pipeline, environ: Mapping[str, str], text: str) -> str:
    """Return the text without the values of variables that the declaration names."""
    sources = (pipeline.source, *pipeline.sources.values())
    named = [one for source in sources for one in (source.url, source.path, source.token_file)]
    return hide(text, names_in([named, *(sink.settings for sink in pipeline.sinks)]), environ)


@contextmanager
def redacting_errors(pipeline: Pipeline, environ: Mapping[str, str]) -> Iterator[None]:
    """Redact secrets in errors that are raised within the context."""
    try:
        yield
    except MillraceError as error:
        error.message = redact(pipeline, environ, error.message)
        error.args = (error.message, *error.args[1:])
        raise
