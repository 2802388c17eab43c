"""Rigs of sinks on real servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millrace.errors import Refused
from millrace.sinks.base import PUT, Readable, Sink
from millrace.testing.check_sink import CHECKS, Rig, Row

Check = Callable[[Rig], None]

every_check = pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])


class ReadRig:
    """A sink that is read back by itself."""

    def __init__(self, sink: Sink, eyes: Readable, *, is_early: bool = False) -> None:
        self._sink = sink
        self._eyes = eyes
        self._is_early = is_early

    @property
    def sink(self) -> Sink:
        return self._sink

    @property
    def is_early(self) -> bool:
        return self._is_early

    def rows(self) -> list[Row]:
        if self._sink.key:
            return self._read(["key", "value"])
        try:
            return self._read(["key", "value", "op"])
        except Refused:
            # Rows came without it.
            return self._read(["key", "value"])

    def _read(self, columns: list[str]) -> list[Row]:
        lines = [line for batch in self._eyes.rows(columns) for line in batch.to_pylist()]
        return [
            Row(
                text(line["key"]),
                None if line["value"] is None else text(line["value"]),
                str(line.get("op") or PUT),
            )
            for line in lines
        ]

    def close(self) -> None:
        self._sink.close()


def text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
