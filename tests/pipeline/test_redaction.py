"""Secrets of declarations, in no message."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millrace import sync
from millrace.errors import Invalid, MillraceError
from millrace.pipeline import (
    DeclaredSink,
    Run,
    Setting,
    read_pipeline,
    run_pipeline,
)
from millrace.pipeline.record import Book
from millrace.sinks.kinds import kind_of
from tests.pipeline.scene import plain

SECRET = "hunter2-secret"


@pytest.mark.parametrize(
    ("kind", "settings", "value"),
    [
        ("search", {"url": "$PLACE", "index": "a"}, f"me:{SECRET}@host:9200"),
        ("search", {"url": "$PLACE", "index": "a"}, f"http://me:x/{SECRET}@host"),
        ("search", {"url": "$PLACE", "index": "a"}, f"http://me@host:{SECRET}"),
        ("postgres", {"url": "$PLACE", "table": "a"}, f"postgres//me:{SECRET}@host"),
        ("redis", {"url": "$PLACE"}, f"redis://:x/{SECRET}@host"),
        ("redis", {"url": "$PLACE"}, f"redis://me@host:{SECRET}"),
        ("redis", {"url": "$PLACE"}, f"me:{SECRET}@host"),
    ],
)
def test_addresses_that_are_wrong_do_not_show_passwords(
    m: sync.Millrace, kind: str, settings: dict[str, object], value: str
) -> None:
    m.queue("orders").publish(b"a", key="a")
    named = DeclaredSink(name="one", kind=kind, settings=settings)
    written = DeclaredSink(name="one", kind=kind, settings={**settings, "url": value})
    for declared, environ in ((named, {"PLACE": value}), (written, {})):
        pipeline = msgspec.structs.replace(plain(declared), run=Run(patience=0))
        with pytest.raises(MillraceError) as caught:
            run_pipeline(pipeline, Setting(millrace=m, environ=environ), once=True)
        record = Book(m).find(pipeline.name)
        assert record is not None
        assert SECRET not in caught.value.message + record.message


def test_variables_are_not_shown_by_checks(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('name = "p"\n[source]\nqueue = "q"\n[sinks.one]\ndelta = "$LAKE"\n')
    with pytest.raises(Invalid, match="is not a folder") as caught:
        read_pipeline(path, {"LAKE": f"s3://bucket/{SECRET}"})
    assert SECRET not in caught.value.message


def test_addresses_of_sinks_do_not_show_passwords() -> None:
    with pytest.raises(Invalid) as caught:
        kind_of(f"//me:{SECRET}@host/db")
    assert SECRET not in caught.value.message
