"""Sinks by name and by address."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import Invalid
from millrace.sinks.kinds import make_sink, parse_sink
from millrace.sinks.parquet import Parquet


def test_a_relative_path_is_within_the_folder() -> None:
    assert make_sink("parquet", {"path": "lake"}, "/data") == Parquet(path="/data/lake")
    assert make_sink("parquet", {"path": "/lake"}, "/data") == Parquet(path="/lake")
    here = Path.cwd() / "lake"
    assert parse_sink("parquet:lake") == Parquet(path=str(here))


@pytest.mark.parametrize(
    ("address", "field"),
    [("lake", "into"), ("nowhere:/lake", "kind"), ("parquet:/lake?colour=red", "colour")],
)
def test_what_is_no_sink_is_refused(address: str, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_sink(address)
    assert caught.value.field == field


def test_a_misspelt_kind_is_told_which_there_are() -> None:
    with pytest.raises(Invalid, match=r"no module parket; there are console, .*parquet"):
        parse_sink("parket:out")
