"""Filters on headers: which messages of a topic a subscription wants.

A filter names headers, and for each of them one test or several:

    {"type": ["order", "return"], "region": {"prefix": "eu-"}, "total": {"numeric": [">=", 100]}}

Rule 1: a message passes if every header that is named passes.
Rule 2: a header passes if one of its tests holds for one of its values (it may stand there several
times), or if it is not there and `{"exists": False}` is among its tests.
Rule 3: text is compared as UTF-8, byte by byte. A value is a number if it is written as one.

The words are those of SNS: a text or a number (exactly that), `prefix`, `suffix`,
`equals-ignore-case`, `numeric`, `exists`, and `anything-but` with one of the others or several.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.core import exact
from millrace.core.block import Block
from millrace.core.check import shown
from millrace.core.model import Headers
from millrace.errors import Corrupt, Invalid, TooLarge

Holds = Callable[[bytes], bool]
"""Whether a test holds for a value."""

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain]"
"""A test as it is written down."""

Flags: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"

_FIELD = "filter"
_NUMBER = re.compile(rb"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_BYTES_MAX = 64
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class _Header(msgspec.Struct, frozen=True):
    """What is asked of one header."""

    name: str
    tests: tuple[Holds, ...]
    may_miss: bool
    """It passes where the header is not there."""

    def passes(self, values: Sequence[bytes]) -> bool:
        if not values:
            return self.may_miss
        return any(test(value) for value in values for test in self.tests)


class Filter:
    """A filter that was checked. Treat as frozen."""

    def __init__(self, headers: tuple[_Header, ...], text: str) -> None:
        self._headers = headers
        self.text = text
        """As it is stored: the same filter has the same text."""

    def passes(self, headers: Headers) -> bool:
        """Whether a message with these headers passes."""
        return all(
            header.passes([value for name, value in headers if name == header.name])
            for header in self._headers
        )

    def mask(self, block: Block) -> Flags:
        """Which rows of a block pass: as `passes` for each, in few calls."""
        out = np.ones(block.count, np.bool_)
        for header in self._headers:
            out &= _mask(header, block)
        return out


def _mask(header: _Header, block: Block) -> Flags:
    names, values, lists = block.header_names, block.header_values, block.header_lists
    if names is None or values is None or lists is None:
        return np.full(block.count, header.may_miss)
    pairs = len(names.offsets) // 4 - 1
    is_named = pc.equal(names.array(pa.binary(), pairs), pa.scalar(header.name.encode()))
    at = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
    # A row without headers begins where the next one does: the last that begins there has it.
    rows = np.searchsorted(np.frombuffer(lists, np.int32), at, side="right") - 1
    known: dict[bytes, bool] = {}
    held: list[bool] = []
    bounds, data = values.bounds(), memoryview(values.data)
    for begin, end in zip(bounds[at].tolist(), bounds[at + 1].tolist(), strict=True):
        value = bytes(data[begin:end])
        if value not in known:
            known[value] = any(test(value) for test in header.tests)
        held.append(known[value])
    out = np.full(block.count, header.may_miss)
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
        raise _invalid(f"is {shown(value)}, not a mapping of headers to tests")
    if not value:
        return None
    plain: dict[str, Plain] = {}
    headers: list[_Header] = []
    left = limits.FILTER_TESTS_MAX
    for key, given in value.items():
        name = exact.text(key)
        if not name or not _is_utf8(name):
            raise _invalid(f"names the header {shown(key)}, which is no text")
        tests = list(given) if isinstance(given, list | tuple) else [given]
        if not tests:
            raise _invalid(f"has no test for header {shown(name)}")
        left -= _count(tests)
        if left < 0:
            raise TooLarge(
                f"a filter has up to {limits.FILTER_TESTS_MAX} tests",
                field=_FIELD,
                limit=limits.FILTER_TESTS_MAX,
            )
        made = [_test(test, f"header {shown(name)}") for test in tests]
        plain[name] = [written for written, _ in made]
        held = tuple(holds for _, holds in made if holds is not None)
        headers.append(_Header(name, held, {"exists": False} in plain[name]))  # type: ignore[operator]
    headers.sort(key=lambda header: header.name)
    text = msgspec.json.encode(dict(sorted(plain.items()))).decode()
    if len(text.encode()) > limits.FILTER_BYTES_MAX:
        raise TooLarge(
            f"the filter has {len(text.encode())} bytes, up to {limits.FILTER_BYTES_MAX} are "
            "allowed",
            field=_FIELD,
            limit=limits.FILTER_BYTES_MAX,
        )
    return Filter(tuple(headers), text)


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


def _invalid(what: str) -> Invalid:
    return Invalid(f"the filter {what}", field=_FIELD)


def _count(tests: list[object]) -> int:
    """How many tests there are, those within `anything-but` too."""
    inner = [test.get("anything-but") for test in tests if isinstance(test, Mapping)]
    return len(tests) + sum(len(test) for test in inner if isinstance(test, list | tuple))


def _is_word(test: object, word: str) -> bool:
    return isinstance(test, Mapping) and word in test


def _test(test: object, where: str) -> tuple[Plain, Holds | None]:
    """A test as it is written down, and what it asks of a value; None: that there is none."""
    if isinstance(test, Mapping):
        return _worded(test, where)
    number = _number(test)
    if number is not None:
        return number, _numeric([("=", number)])
    wanted = _text(test, where)
    data = wanted.encode()
    return wanted, lambda value: value == data


def _worded(test: Mapping[object, object], where: str) -> tuple[Plain, Holds | None]:
    if len(test) != 1:
        raise _invalid(f"has a test with {len(test)} words for {where}; give each its own")
    [(word, given)] = test.items()
    match word:
        case "prefix":
            begin = _text(given, where)
            return {"prefix": begin}, _beginning(begin.encode())
        case "suffix":
            end = _text(given, where)
            return {"suffix": end}, _ending(end.encode())
        case "equals-ignore-case":
            same = _text(given, where)
            return {"equals-ignore-case": same}, _caseless(same)
        case "numeric":
            bounds = _bounds(given, where)
            return {"numeric": [part for bound in bounds for part in bound]}, _numeric(bounds)
        case "exists":
            if not isinstance(given, bool):
                raise _invalid(f"has 'exists' {shown(given)} for {where}, not true or false")
            return {"exists": given}, (lambda _: True) if given else None
        case "anything-but":
            return _anything_but(given, where)
        case _:
            raise _invalid(
                f"has the word {shown(word)} for {where}; there are prefix, suffix, "
                "equals-ignore-case, numeric, exists and anything-but"
            )


def _anything_but(given: object, where: str) -> tuple[Plain, Holds]:
    tests = list(given) if isinstance(given, list | tuple) else [given]
    if not tests:
        raise _invalid(f"has 'anything-but' nothing for {where}")
    if any(_is_word(test, "exists") or _is_word(test, "anything-but") for test in tests):
        raise _invalid(f"has 'anything-but' with another such word for {where}")
    made = [_test(test, where) for test in tests]
    inner = [holds for _, holds in made if holds is not None]
    written: list[Plain] = [plain for plain, _ in made]
    return {"anything-but": written}, lambda value: not any(holds(value) for holds in inner)


def _beginning(data: bytes) -> Holds:
    return lambda value: value.startswith(data)


def _ending(data: bytes) -> Holds:
    return lambda value: value.endswith(data)


def _caseless(text: str) -> Holds:
    wanted = text.casefold()

    def holds(value: bytes) -> bool:
        try:
            return value.decode().casefold() == wanted
        except UnicodeDecodeError:
            return False

    return holds


def _text(value: object, where: str) -> str:
    found = exact.text(value)
    data = exact.data(value) if found is None else None
    if data is not None:
        try:
            found = data.decode()
        except UnicodeDecodeError:
            found = None
    if found is None or not _is_utf8(found):
        raise _invalid(f"has {shown(value)} for {where}, which is neither text nor a number")
    return found


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(value: object) -> int | float | None:
    if isinstance(value, bool):
        return None
    whole = exact.whole(value)
    if whole is not None:
        return whole if abs(whole) < 2**63 else None
    number = exact.number(value)
    return number if number is not None and math.isfinite(number) else None


def _bounds(given: object, where: str) -> list[tuple[str, int | float]]:
    """One comparison, or a lower and an upper bound."""
    parts = list(given) if isinstance(given, list | tuple) else []
    bounds: list[tuple[str, int | float]] = []
    for sign, value in zip(parts[::2], parts[1::2], strict=False):
        number = _number(value)
        plain = exact.text(sign)
        if plain in _COMPARE and number is not None:
            bounds.append((plain, number))
    signs = [sign for sign, _ in bounds]
    is_range = len(signs) == 2 and signs[0] in (">", ">=") and signs[1] in ("<", "<=")
    if 2 * len(bounds) != len(parts) or not (len(signs) == 1 or is_range):
        raise _invalid(
            f"has 'numeric' {shown(given)} for {where}; it is one comparison as ['>=', 5], or a "
            "range as ['>', 0, '<=', 5]"
        )
    return bounds


def _numeric(bounds: Sequence[tuple[str, int | float]]) -> Holds:
    def holds(value: bytes) -> bool:
        if len(value) > _NUMBER_BYTES_MAX:
            return False
        found = _NUMBER.fullmatch(value)
        if found is None:
            return False
        is_whole = found.group(1) is None and found.group(2) is None
        number = int(value) if is_whole else float(value)
        return all(_COMPARE[sign](number, bound) for sign, bound in bounds)

    return holds
