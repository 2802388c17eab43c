"""Conversion of a program's values to exact `str`, `int`, `float` or `bytes`.

Subclasses (string enums, numpy's own strings) may do anything in their methods, and cannot be
written into a batch. Commands are made of exact built-in types only, and the conversion runs none
of the program's own code.
"""

from __future__ import annotations


def text(value: object) -> str | None:
    """Return the text as an exact `str`, or None if it is no text."""
    if type(value) is str:
        return value
    return str.__str__(value) if isinstance(value, str) else None


def whole(value: object) -> int | None:
    """Return the integer as an exact `int`, or None if it is none; bool is not accepted."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int.__int__(value)


def number(value: object) -> int | float | None:
    """Return the number as an exact `int` or `float`, or None if it is none or NaN."""
    if isinstance(value, float):
        plain = float.__float__(value)
        return plain if plain == plain else None
    return whole(value)


def data(value: object) -> bytes | None:
    """Return the bytes as exact `bytes`, or None if they are none."""
    if type(value) is bytes:
        return value
    return b"".join((value,)) if isinstance(value, bytes) else None
