"""Filters: which messages of a topic a subscription wants.

A filter names headers, and for each of them one test or several:

    {"type": ["order", "return"], "region": {"prefix": "eu-"}, "total": {"numeric": [">=", 100]}}

Rule 1: a message passes if every header that is named passes.
Rule 2: a header passes if one of its tests holds for one of its values (it may stand there several
times), or if it is not there and `{"exists": False}` is among its tests.
Rule 3: `"$body"` with a mapping names fields of the body, which is JSON then, in the same way. A
mapping leads to the fields within a field; tests are a list, or one that is no mapping. A field
that is an array has the values of its elements. Each field is judged by itself: one element may
have what one field asks for, another one what another does. A body that is no object of JSON does
not pass.
Rule 4: `"$or"` with a list of at least two mappings, none of which begins with the word of a test,
asks that one of them passes. Otherwise it is the name of a header or field, as any.
Rule 5: `"$typed"` with `types`, `headers` and perhaps `arrays` names headers in `headers`, whose
types stand in the header `types`, and their arrays in `arrays` (`typed.py`): they are judged as
fields of a body are.

What tests there are, and what they hold for, is in `filter_tests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeGuard

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.core import exact, filter_tests
from millrace.core.block import Block
from millrace.core.check import shown
from millrace.core.filter_tests import FIELD, WORDS, Holds, Plain, Value, invalid
from millrace.core.model import Headers
from millrace.core.typed import Typed, object_in
from millrace.errors import Corrupt, Invalid, TooLarge

Flags: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"

_BODY = "$body"
_TYPED = "$typed"
_OR = "$or"


_Source: TypeAlias = 'Literal["headers", "body"] | Typed'
"""Where the values stand."""


class _Place(msgspec.Struct, frozen=True):
    """What is asked of one header, or of one field of the body."""

    path: tuple[str, ...]
    source: _Source
    tests: tuple[Holds, ...]
    may_miss: bool
    """It passes where nothing is there."""

    def passes(self, values: Sequence[Value], *, is_missing: bool) -> bool:
        if is_missing and self.may_miss:
            return True
        return any(test(value) for value in values for test in self.tests)


class _All(msgspec.Struct, frozen=True):
    """Places that must all pass; and of each of the choices one."""

    places: tuple[_Place, ...]
    choices: tuple[tuple[_All, ...], ...]


class Filter:
    """A filter that was checked. Treat as frozen."""

    def __init__(self, wanted: _All, text: str) -> None:
        self._wanted = wanted
        self.text = text
        """As it is stored: the same filter has the same text."""

    def passes(self, headers: Headers, body: bytes | None) -> bool:
        """Whether a message with these headers and this body passes."""
        documents: dict[_Source, _Document] = {}

        def document(source: _Source) -> _Document:
            if source not in documents:
                documents[source] = _document(source, headers, body)
            return documents[source]

        return _passes(self._wanted, headers, document)

    def mask(self, block: Block) -> Flags:
        """Which rows of a block pass: as `passes` for each, in few calls."""
        documents: dict[tuple[int, _Source], _Document] = {}
        return _mask(self._wanted, block, np.ones(block.count, np.bool_), documents)


class _Document(NamedTuple):
    """What has fields: a body, or headers with types; None: it has none."""

    fields: dict[str, object] | None

    def passes(self, place: _Place) -> bool:
        if self.fields is None:
            return False
        values, is_missing = _found(self.fields, place.path)
        return place.passes(values, is_missing=is_missing)


def _document(source: _Source, headers: Headers, body: bytes | None) -> _Document:
    """What is read once, where something in it is asked for."""
    return _Document(source.fields(headers) if isinstance(source, Typed) else object_in(body))


def _found(fields: dict[str, object], path: tuple[str, ...]) -> tuple[list[Value], bool]:
    """The values of a field, and whether it is missing somewhere."""
    values: list[Value] = []
    is_missing = False
    left: list[tuple[object, int]] = [(fields, 0)]
    while left:
        value, depth = left.pop()
        if isinstance(value, list):
            is_missing |= not value
            left.extend((element, depth) for element in value)
        elif depth < len(path):
            if isinstance(value, dict) and path[depth] in value:
                left.append((value[path[depth]], depth + 1))
            else:
                is_missing = True
        elif isinstance(value, dict):
            is_missing = True
        else:
            values.append(value)  # type: ignore[arg-type]
    return values, is_missing


def _passes(wanted: _All, headers: Headers, document: Callable[[_Source], _Document]) -> bool:
    for place in wanted.places:
        if place.source != "headers":
            if not document(place.source).passes(place):
                return False
        else:
            values = [value for name, value in headers if name == place.path[0]]
            if not place.passes(values, is_missing=not values):
                return False
    return all(any(_passes(one, headers, document) for one in choice) for choice in wanted.choices)


def _mask(
    wanted: _All, block: Block, rows: Flags, documents: dict[tuple[int, _Source], _Document]
) -> Flags:
    """Which of the rows that are flagged pass."""
    out = rows.copy()
    for place in wanted.places:
        if place.source == "headers":
            out &= _mask_headers(place, block)
    for place in wanted.places:
        source = place.source
        if source == "headers":
            continue
        for at in np.flatnonzero(out).tolist():
            if (at, source) not in documents:
                with_headers = isinstance(source, Typed)
                headers = block.headers_of(at) if with_headers else ()
                body = None if with_headers else block.bodies.value(at)
                documents[at, source] = _document(source, headers, body)
            out[at] = documents[at, source].passes(place)
    for choice in wanted.choices:
        found = np.zeros(block.count, np.bool_)
        for one in choice:
            found |= _mask(one, block, out & ~found, documents)
        out &= found
    return out


def _mask_headers(place: _Place, block: Block) -> Flags:
    names, values, lists = block.header_names, block.header_values, block.header_lists
    if names is None or values is None or lists is None:
        return np.full(block.count, place.may_miss)
    pairs = len(names.offsets) // 4 - 1
    is_named = pc.equal(names.array(pa.binary(), pairs), pa.scalar(place.path[0].encode()))
    at = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
    # A row without headers begins where the next one does: the last that begins there has it.
    rows = np.searchsorted(np.frombuffer(lists, np.int32), at, side="right") - 1
    known: dict[bytes, bool] = {}
    held: list[bool] = []
    bounds, data = values.bounds(), memoryview(values.data)
    for begin, end in zip(bounds[at].tolist(), bounds[at + 1].tolist(), strict=True):
        value = bytes(data[begin:end])
        if value not in known:
            known[value] = any(test(value) for test in place.tests)
        held.append(known[value])
    out = np.full(block.count, place.may_miss)
    out[rows] = False
    out[rows[np.array(held, np.bool_)]] = True
    return out


# --- Reading -------------------------------------------------------------------------------------


def parse(value: object) -> Filter | None:
    """The filter that a program names; None if it lets everything pass.

    Raises:
        Invalid, TooLarge: it is none, or too large; the error says where.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise invalid(f"is {shown(value)}, not a mapping of headers to tests")
    if not value:
        return None
    plain, wanted = _Reading().read(value, (), "headers")
    text = msgspec.json.encode(plain).decode()
    if len(text.encode()) > limits.FILTER_BYTES_MAX:
        raise TooLarge(
            f"the filter has {len(text.encode())} bytes, up to {limits.FILTER_BYTES_MAX} are "
            "allowed",
            field=FIELD,
            limit=limits.FILTER_BYTES_MAX,
        )
    return Filter(wanted, text)


class _Reading:
    """A filter that is being read: so many tests may still come, so deep."""

    def __init__(self) -> None:
        self._tests_left = limits.FILTER_TESTS_MAX
        self._depth_left = limits.FILTER_DEPTH_MAX

    def read(
        self, value: Mapping[object, object], path: tuple[str, ...], source: _Source
    ) -> tuple[dict[str, Plain], _All]:
        """What a mapping asks for, as it is written down and as it is judged."""
        if not value:
            raise invalid("has an empty mapping, which asks for nothing")
        if not self._depth_left:
            raise _too_large("is nested up to {} times", limits.FILTER_DEPTH_MAX)
        self._depth_left -= 1
        plain: dict[str, Plain] = {}
        places: list[_Place] = []
        choices: list[tuple[_All, ...]] = []
        for key, given in sorted(value.items(), key=lambda item: str(exact.text(item[0]))):
            name = exact.text(key)
            if not name or not filter_tests.is_utf8(name):
                raise invalid(f"names the header {shown(key)}, which is no text")
            if name == _OR and _is_choice(given):
                made = [self.read(one, path, source) for one in given]
                plain[name] = [written for written, _ in made]
                choices.append(tuple(one for _, one in made))
            elif isinstance(given, Mapping) and (inner := self._within(name, given, path, source)):
                plain[name], found = inner
                places.extend(found.places)
                choices.extend(found.choices)
            else:
                plain[name], place = self._place(given, (*path, name), source)
                places.append(place)
        self._depth_left += 1
        return plain, _All(tuple(places), tuple(choices))

    def _within(
        self, name: str, given: Mapping[object, object], path: tuple[str, ...], source: _Source
    ) -> tuple[Plain, _All] | None:
        """What a mapping asks of the places that it leads to; None: it is a test."""
        if source == "body":
            return self.read(given, (*path, name), "body")
        if source != "headers" or name not in (_BODY, _TYPED):
            return None
        if name == _BODY:
            return self.read(given, (), "body")
        types, arrays = exact.text(given.get("types")), exact.text(given.get("arrays", ""))
        headers = given.get("headers")
        known = ("types", "arrays", "headers")
        if not types or arrays is None or not isinstance(headers, Mapping):
            raise invalid(f"has {_TYPED!r} without the names of headers as types, or headers")
        if any(key not in known for key in given):
            raise invalid(f"has {_TYPED!r} with something else than {', '.join(known)}")
        plain, found = self.read(headers, (), Typed(types, arrays))
        told: dict[str, Plain] = {"headers": plain, "types": types}
        return (told | {"arrays": arrays} if arrays else told), found

    def _place(self, given: object, path: tuple[str, ...], source: _Source) -> tuple[Plain, _Place]:
        where = f"{'field' if source == 'body' else 'header'} {shown('.'.join(path))}"
        tests = list(given) if isinstance(given, list | tuple) else [given]
        if not tests:
            raise invalid(f"has no test for {where}")
        self._tests_left -= filter_tests.count(tests)
        if self._tests_left < 0:
            raise _too_large("has up to {} tests", limits.FILTER_TESTS_MAX)
        made = [filter_tests.read(test, where) for test in tests]
        written = [plain for plain, _ in made]
        held = tuple(holds for _, holds in made if holds is not None)
        return written, _Place(path, source, held, {"exists": False} in written)


def _is_choice(given: object) -> TypeGuard[Sequence[Mapping[object, object]]]:
    if not isinstance(given, list | tuple) or len(given) < 2:
        return False
    return all(isinstance(one, Mapping) and not any(word in WORDS for word in one) for one in given)


def _too_large(what: str, limit: int) -> TooLarge:
    return TooLarge(f"a filter {what.format(limit)}", field=FIELD, limit=limit)


def load(text: str) -> Filter | None:
    """The filter that is stored as `text`.

    Raises:
        Corrupt: it is none.
    """
    try:
        return parse(msgspec.json.decode(text)) if text else None
    except (msgspec.DecodeError, Invalid, TooLarge) as error:
        raise Corrupt(f"a stored filter cannot be read: {error}") from error


def text(value: object) -> str:
    """The filter that a program names, checked, as it is stored."""
    found = parse(value)
    return found.text if found is not None else ""
