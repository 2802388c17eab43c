"""Settings that do not fit are told what would."""

from __future__ import annotations

import msgspec
import pytest

from millrace.sinks.console import Console
from millrace.sinks.kinds import misfit
from millrace.sinks.queue import QueueSink


@pytest.mark.parametrize(
    ("found", "kind", "field", "said"),
    [
        ({"from": 1}, Console, "from", "there is no setting 'from'; did you mean 'form'?"),
        ({"x": 1}, Console, "x", "there is no setting 'x'; there are rows, form, width"),
        ({"form": "tables"}, Console, "form", "'tables' is none of lines, table"),
        ({"rows": 0}, Console, "rows", "Expected `int` >= 1"),
        ({"rows": "x"}, Console, "rows", "it is text in quotes, and should be a whole number"),
        ({"form": {}}, Console, "form", "it is a table, and should be text in quotes"),
        ({}, QueueSink, "queue", "the setting 'queue' is missing"),
        ({"x": 1}, dict[str, str], "", "Expected `str`, got `int`"),
    ],
)
def test_what_is_said(found: object, kind: type[object], field: str, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(found, kind)
    name, text = misfit(caught.value, kind)
    assert text == said
    assert not field or name == field
