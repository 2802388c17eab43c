"""Plain values of subclasses, without running any of their code."""

from __future__ import annotations

import enum

import numpy as np
import pytest

from millrace.core import exact


class Word(enum.StrEnum):
    ONE = "one"


class Number(enum.IntEnum):
    ONE = 1


class Data(bytes):
    def __bytes__(self) -> bytes:
        raise RuntimeError


@pytest.mark.parametrize(
    ("found", "plain"),
    [
        (exact.text(Word.ONE), "one"),
        (exact.text(np.str_("one")), "one"),
        (exact.text("one"), "one"),
        (exact.text(b"one"), None),
        (exact.whole(Number.ONE), 1),
        (exact.whole(1), 1),
        (exact.whole(True), None),
        (exact.whole(1.0), None),
        (exact.number(np.float64(1.5)), 1.5),
        (exact.number(Number.ONE), 1),
        (exact.number(float("nan")), None),
        (exact.number(False), None),
        (exact.data(Data(b"one")), b"one"),
        (exact.data(b"one"), b"one"),
        (exact.data(bytearray(b"one")), None),
    ],
)
def test_plain_values(found: object, plain: object) -> None:
    assert found == plain
    assert type(found) is type(plain)
