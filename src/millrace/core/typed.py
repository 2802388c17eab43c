"""Headers whose types are told by another header: what they are as values of JSON.

Rule 1: the header of types is an object of JSON, of names and types. What begins with `Number` is a
number, what begins with `Binary` is passed over, all else is text, also what no type is told of.
Rule 2: the header of arrays is one of names and texts, each an array of JSON, whose elements are
the values of that header. A single value, as `100`, counts as an array of one.
Rule 3: what is not as its type says is not there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millrace.core.filter_tests import number_in
from millrace.core.model import Headers


class Typed(msgspec.Struct, frozen=True):
    """The headers that tell of others."""

    types: str
    arrays: str = ""

    def fields(self, headers: Headers) -> dict[str, object]:
        """The headers of a message as fields of a body, each with the list of its values."""
        own = dict(headers)
        types, arrays = object_in(own.get(self.types)), object_in(own.get(self.arrays))
        types, arrays = types or {}, arrays or {}
        found: dict[str, object] = {}
        for name, value in headers:
            if name in arrays:
                if name not in found:
                    found[name] = _elements(arrays[name])
                continue
            values = found.setdefault(name, [])
            assert isinstance(values, list)
            values += _values(types, name, value)
        return found


def object_in(data: bytes | None) -> dict[str, object] | None:
    """The object of JSON that some bytes are; None: they are none."""
    try:
        found = msgspec.json.decode(data) if data else None
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _values(types: Mapping[str, object], name: str, value: bytes) -> list[object]:
    kind = types.get(name)
    if isinstance(kind, str) and kind.startswith("Binary"):
        return []
    if isinstance(kind, str) and kind.startswith("Number"):
        number = number_in(value)
        return [] if number is None else [number]
    try:
        return [value.decode()]
    except UnicodeDecodeError:
        return []


def _elements(text: object) -> list[object]:
    try:
        found = msgspec.json.decode(text) if isinstance(text, str) else []
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []
    if isinstance(found, dict):
        return []
    return found if isinstance(found, list) else [found]
