"""The sinks of the pipelines that are killed: how they are declared, and what is in them."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, cast

import msgspec
import pyarrow as pa

from millrace.pipeline import DeclaredSink, read_pipeline
from millrace.pipeline.source import COLUMNS
from millrace.sinks.base import Readable, Sink
from millrace.sinks.kinds import make_sink
from tests.pipeline.scene import KIND
from tests.services.postgres import Postgres
from tests.services.redis import Redis
from tests.services.search import Search

Pair = tuple[str, str | None]
"""The key and value of a row."""

LIGHT = ("ledger", "delta", "parquet", "queue")
"""Kinds that need no server of their own."""

KINDS = (*LIGHT, "iceberg", "postgres", "redis", "search")

STEP = ("shard", "seq", "key", "value", "op")
"""The columns that a step leaves."""

EARLY = ("search",)
"""Kinds whose rows may be seen before their span is whole."""

_KEYED = {
    "ledger": 'kind = "{ledger}"\npath = "{folder}/{name}.db"\nkey = ["key"]',
    "delta": 'kind = "delta"\npath = "{folder}/{name}.delta"\nmode = "upsert"\nkey = ["key"]\n'
    "lanes = 2",
    "iceberg": 'kind = "iceberg"\npath = "{folder}/{name}.iceberg"\ntable = "shop.{name}"\n'
    'mode = "upsert"\nkey = ["key"]\nlanes = 2',
    "postgres": 'kind = "postgres"\nurl = "{postgres}"\ntable = "{name}"\nkey = ["key"]',
    "redis": 'kind = "redis"\nurl = "{redis}"\nname = "{name}:{{key}}"',
    "search": 'kind = "search"\nurl = "{search}"\nindex = "{name}"',
    "queue": 'kind = "queue"\n{home}\nqueue = "{name}-copy"\nkey = ["key"]',
}

_ADDED = {
    "ledger": 'kind = "{ledger}"\npath = "{folder}/{name}.db"',
    "delta": 'kind = "delta"\npath = "{folder}/{name}.delta"',
    "parquet": 'kind = "parquet"\npath = "{folder}/{name}.files"',
    "iceberg": 'kind = "iceberg"\npath = "{folder}/{name}.iceberg"\ntable = "shop.{name}"',
    "postgres": 'kind = "postgres"\nurl = "{postgres}"\ntable = "{name}"',
    "queue": 'kind = "queue"\n{home}\nqueue = "{name}-copy"',
}


class Home(Protocol):
    """Where the queues are."""

    @property
    def place(self) -> str:
        """A url, or a folder."""
        ...

    def setting(self) -> str:
        """The same in the declaration of a sink."""
        ...


@contextmanager
def serving(kinds: Iterable[str]) -> Iterator[Mapping[str, str]]:
    """The servers that these kinds need, by kind; they end with the context."""
    found: dict[str, str] = {}
    with ExitStack() as stack:
        if "postgres" in kinds:
            found["postgres"] = stack.enter_context(Postgres()).new_database()
        if "redis" in kinds:
            found["redis"] = f"{stack.enter_context(Redis()).url}/0"
        if "search" in kinds:
            found["search"] = stack.enter_context(Search()).url
        yield found


def declare(
    path: Path,
    kinds: Iterable[str],
    home: Home,
    servers: Mapping[str, str],
    *,
    head: str,
    view: str,
    keyed: bool,
) -> None:
    """Write a declaration: a head, and every sink of these kinds that rows like these can go to."""
    name, known = path.stem, _KEYED if keyed else _ADDED
    words = {"folder": path.parent, "name": name, "ledger": KIND, "home": home.setting()}
    lines = [head]
    for kind in kinds:
        if kind in known:
            text = known[kind].format(**words, **servers)
            lines.append(f'[sinks.{kind}]\nfrom = "{view}"\n{text}')
    path.write_text("\n".join(lines))


def make_empty(path: Path, *, steps: bool) -> None:
    """Make the tables of a declaration, so that they can be read before anything came."""
    names = [name for name in COLUMNS.names if not steps or name in STEP]
    schema = pa.schema([COLUMNS.field(name) for name in names])
    for declared in read_pipeline(path, os.environ).sinks:
        sink = make_sink(declared.kind, declared.settings, path.parent)
        sink.open(f"{path.stem}/{declared.name}", schema)
        sink.close()


def rows_of(path: Path) -> Iterator[tuple[str, list[Pair]]]:
    """What is in the sinks of a declaration, by kind and sorted."""
    for declared in read_pipeline(path, os.environ).sinks:
        sink = make_sink(declared.kind, declared.settings, path.parent)
        try:
            yield declared.name, sorted(_read(declared, sink), key=str)
        finally:
            sink.close()


def _read(declared: DeclaredSink, sink: Sink) -> Iterator[Pair]:
    columns = ["key", "value"] if sink.key else ["key", "value", "op"]
    for batch in cast("Readable", sink).rows(columns):
        for row in batch.to_pylist():
            key, value = (_text(declared.kind, row[name]) for name in ("key", "value"))
            yield key or "", None if row.get("op") == "delete" else value


def _text(kind: str, value: object) -> str | None:
    if kind == "search" and isinstance(value, str):
        return b64decode(value).decode()
    if isinstance(value, bytes):
        return value.decode()
    return None if value is None else msgspec.convert(value, str)
