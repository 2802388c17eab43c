"""Plain values of what a program passes.

Subclasses (an enum of texts, numpy's own strings) may do anything in their methods, and cannot be
written into a batch. What a command is made of is exactly `str`, `int`, `float` or `bytes`; none of
the program's own code is run to find it.
"""

from __future__ import annotations


def text(value: object) -> str | None:
    """The text, or None if it is none."""
    if type(value) is str:
        return value
    return str.__str__(value) if isinstance(value, str) else None


def whole(value: object) -> int | None:
    """The whole number, or None if it is none; True and False are none."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return int.__int__(value)


def number(value: object) -> int | float | None:
    """The number, or None if it is none; what is not a number by name is none."""
    if isinstance(value, float):
        plain = float.__float__(value)
        return plain if plain == plain else None
    return whole(value)


def data(value: object) -> bytes | None:
    """The bytes, or None if they are none."""
    if type(value) is bytes:
        return value
    return b"".join((value,)) if isinstance(value, bytes) else None
