"""Plain values of subclasses, without running any of their code."""

from __future__ import annotations

import enum

import numpy as np
import pytest

from millrace.core import plain_types


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
        (plain_types.text(Word.ONE), "one"),
        (plain_types.text(np.str_("one")), "one"),
        (plain_types.text("one"), "one"),
        (plain_types.text(b"one"), None),
        (plain_types.whole(Number.ONE), 1),
        (plain_types.whole(1), 1),
        (plain_types.whole(True), None),
        (plain_types.whole(1.0), None),
        (plain_types.number(np.float64(1.5)), 1.5),
        (plain_types.number(Number.ONE), 1),
        (plain_types.number(float("nan")), None),
        (plain_types.number(False), None),
        (plain_types.data(Data(b"one")), b"one"),
        (plain_types.data(b"one"), b"one"),
        (plain_types.data(bytearray(b"one")), None),
    ],
)
def test_plain_values(found: object, plain: object) -> None:
    assert found == plain
    assert type(found) is type(plain)
