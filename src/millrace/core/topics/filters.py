"""Filter policies of subscriptions: parsing and evaluation.

A filter names headers, each with one condition or several:

    {"type": ["order", "return"], "region": {"prefix": "eu-"}, "total": {"numeric": [">=", 100]}}

Rule 1: a message passes if every named header passes.
Rule 2: a header passes if one of its conditions holds for one of its values (it may occur several
times), or if it is missing and `{"exists": False}` is among its conditions.
Rule 3: `"$body"` with a mapping names fields of a JSON body in the same way. A mapping leads to
nested fields; conditions are a list, or a single one that is no mapping. A field that is an array
has the values of its elements. Each field is evaluated by itself: different elements may satisfy
different fields. A dot in a name separates names, as with SNS: `a.b` is the field `b` within `a`,
and the field that is named `a.b`. A body that is no JSON object does not pass.
Rule 4: `"$or"` with a list of at least two mappings, none of which begins with the name of an
operator, passes if one of them does. Otherwise it is a usual name of a header or field.
Rule 5: `"$typed"` with `types`, `headers` and perhaps `arrays` names headers in `headers`, whose
types are in the header `types`, and their arrays in `arrays` (see the end of this file): they are
evaluated like fields of a body.

Rule 6: the work per message is bounded, by a count and not by the clock: equal messages are judged
equally everywhere. A message that exceeds the bound passes, and so does one whose body is too large
to parse: no subscriber misses a message that it wanted.

The conditions themselves are in `filter_operators`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Literal, TypeAlias, TypeGuard, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.core import plain_types
from millrace.core.format.block import Block
from millrace.core.model import Headers, NewMessage
from millrace.core.topics import filter_operators
from millrace.core.topics.filter_operators import (
    FIELD,
    WORDS,
    Holds,
    Plain,
    Value,
    invalid,
    number_in,
)
from millrace.core.validate import shown
from millrace.errors import Corrupt, Invalid, TooLarge

Flags: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"

Steps: TypeAlias = "Generator[None, None, Flags]"
"""Work that yields between steps."""

_BODY = "$body"
_TYPED = "$typed"
_OR = "$or"

_BYTES_A_TEST = 64
"""Bytes of a value that take about as long as a condition on a short value."""


_Source: TypeAlias = 'Literal["headers", "body"] | Typed'
"""The source of the values."""


class _Path(msgspec.Struct, frozen=True):
    """A path of names into nested objects."""

    names: tuple[str, ...]
    """Names of nested fields, if dots in names have no meaning."""
    whole: str = ""
    """All names joined by dots, if any two or more of them may be one field's name."""
    begins: tuple[int, ...] = ()
    """Offset of each name in `whole`, and the offset after its end."""

    @property
    def count(self) -> int:
        """Number of names of the path."""
        return len(self.begins) - 1 if self.whole else len(self.names)

    def cost(self, depth: int) -> int:
        """Return the work of `ways` beyond that of one name, in conditions on a short value."""
        if not self.whole:
            return 0
        left = len(self.whole) - self.begins[depth]
        return (self.count - depth - 1) * (1 + left // (2 * _BYTES_A_TEST))

    def ways(self, value: dict[object, object], depth: int) -> list[tuple[object, int]]:
        """Return (value, depth) for each continuation of the path below an object at `depth`
        names. Names are joined here: all spellings of a path would be a long list."""
        if not self.whole:
            name = self.names[depth]
            return [(value[name], depth + 1)] if name in value else []
        begin, fields = self.begins[depth], list[tuple[object, int]]()
        for end in range(depth + 1, len(self.begins)):
            name = self.whole[begin : self.begins[end] - 1]
            if name in value:
                fields.append((value[name], end))
        return fields


class _Place(msgspec.Struct, frozen=True):
    """The conditions on one header, or on one field of the body."""

    name: str
    """Name of the header."""
    path: _Path
    source: _Source
    texts: frozenset[bytes]
    """It passes if a value is one of these: a lookup, however many there are."""
    tests: tuple[Holds, ...]
    may_miss: bool
    """It passes if there is no value."""
    weight: int
    """Cost of the conditions for each 64 bytes of a value."""

    def cost(self, value: Value) -> int:
        """Return the work of one value, in conditions on a short one."""
        size = len(value) if isinstance(value, bytes | str) else 0
        return 1 + len(self.tests) + size // _BYTES_A_TEST * (1 + self.weight)

    def holds(self, value: Value) -> bool:
        """Return True if one of the conditions holds."""
        if self.texts:
            data = value.encode() if isinstance(value, str) else value
            if isinstance(data, bytes) and data in self.texts:
                return True
        return any(test(value) for test in self.tests)


class _All(msgspec.Struct, frozen=True):
    """Places that must all pass; and of each of the choices one."""

    places: tuple[_Place, ...]
    choices: tuple[tuple[_All, ...], ...]
    reads: bool
    """Some conditions need parsing first: of a body, or of headers with types."""


class Filter:
    """A validated filter. Treat as frozen."""

    def __init__(self, wanted: _All, text: str) -> None:
        self._wanted = wanted
        self.text = text
        """The stored form: equal filters have equal texts."""

    def passes(self, headers: Headers, body: bytes | None) -> bool:
        """Return True if a message with these headers and this body passes, or exceeds the bound
        of work."""
        return bool(self.mask(Block.of_messages([NewMessage(body, None, headers)]))[0])

    def mask(self, block: Block) -> Flags:
        """Return the mask of the rows of a block that pass, in few calls; each row has its own
        bound of work."""
        steps = self.judge(block)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast("Flags", end.value)

    def judge(self, block: Block) -> Steps:
        """Evaluate as `mask`, in steps of a few milliseconds, whatever the block contains;
        between them others can run."""
        return _mask(self._wanted, block, np.ones(block.count, np.bool_), _Work())


class _Work:
    """The work since the last step."""

    def __init__(self) -> None:
        self._done = 0

    def is_due(self, cost: int) -> bool:
        """Add to the work; returns True if a step should end here."""
        self._done += cost
        if self._done < limits.FILTER_STEP_WORK:
            return False
        self._done = 0
        return True


class _TooMuch(Exception):
    """A message exceeds its bound of work."""


class _Message:
    """A message under evaluation: its parsed parts, and the work left for it."""

    def __init__(self, headers: Headers, body: bytes | None) -> None:
        self._headers = headers
        self._body = body
        self._read: dict[_Source, dict[str, object] | None] = {}
        self.left = limits.FILTER_WORK_MAX

    def spend(self, cost: int) -> None:
        """Add to the message's work.

        Raises:
            _TooMuch: it exceeds the bound.
        """
        self.left -= cost
        if self.left < 0:
            raise _TooMuch

    def values(self, place: _Place) -> tuple[list[Value], bool]:
        """Return the values at a place, and whether something is missing there.

        Raises:
            _TooMuch: there are too many to search.
        """
        if place.source == "headers":
            self.spend(len(self._headers))
            values: list[Value] = [value for name, value in self._headers if name == place.name]
            return values, not values
        fields = self._fields(place.source)
        return ([], False) if fields is None else self._found(fields, place.path)

    def _fields(self, source: _Source) -> dict[str, object] | None:
        """Return the fields of a body or of typed headers, parsed once; None: there are none."""
        if source not in self._read:
            if isinstance(source, Typed):
                self._read[source] = source.fields(self._headers)
            elif len(self._body or b"") > limits.FILTER_BODY_BYTES_MAX:
                raise _TooMuch
            else:
                self._read[source] = json_object(self._body)
        return self._read[source]

    def _found(self, value: object, path: _Path, depth: int = 0) -> tuple[list[Value], bool]:
        """Return the values of a field, and whether it is missing somewhere; the first `depth`
        names of its path lead to `value`."""
        values: list[Value] = []
        is_missing = False
        left: list[tuple[object, int]] = [(value, depth)]
        while left:
            value, depth = left.pop()
            if isinstance(value, list):
                self.spend(len(value))
                is_missing |= not value
                left.extend((element, depth) for element in value)
            elif depth < path.count:
                if not isinstance(value, dict):
                    is_missing = True
                    continue
                self.spend(path.cost(depth))
                ways = path.ways(value, depth)
                if len(ways) < 2:
                    is_missing |= not ways
                    left.extend(ways)
                    continue
                # An object may have `a.b` as well as `b` within `a`: the field is missing only if
                # it is missing by all spellings. Recursion consumes a name each time, of which
                # there are few.
                inner_results = [self._found(inner, path, end) for inner, end in ways]
                values += [
                    inner_value for inner_values, _ in inner_results for inner_value in inner_values
                ]
                is_missing |= all(missing for _, missing in inner_results)
            elif isinstance(value, dict):
                is_missing = True
            else:
                values.append(value)  # type: ignore[arg-type]
        return values, is_missing


def _judged(wanted: _All, message: _Message) -> bool:
    """Return True if a message passes. One that exceeds the bound of work passes: an unwanted
    message is better than a missing one."""
    try:
        return _passes(wanted, message)
    except _TooMuch:
        return True


def _passes(wanted: _All, message: _Message) -> bool:
    for place in wanted.places:
        values, is_missing = message.values(place)
        if is_missing and place.may_miss:
            continue
        for value in values:
            message.spend(place.cost(value))
            if place.holds(value):
                break
        else:
            return False
    return all(any(_passes(option, message) for option in choice) for choice in wanted.choices)


def _mask(wanted: _All, block: Block, rows: Flags, work: _Work) -> Steps:
    """Return the mask of the flagged rows that pass; yields between steps of work."""
    out = rows.copy()
    for place in wanted.places:
        if place.source == "headers":
            out &= yield from _mask_headers(place, block, work)
    if wanted.reads:
        # One message after the other, so that at most one parsed message is in memory.
        places = tuple(place for place in wanted.places if place.source != "headers")
        left = _All(places, wanted.choices, reads=True)
        for at in np.flatnonzero(out).tolist():
            body = block.bodies.value(at)
            message = _Message(block.headers_of(at), body)
            out[at] = _judged(left, message)
            read = len(body or b"") // _BYTES_A_TEST
            if work.is_due(1 + read + limits.FILTER_WORK_MAX - max(message.left, 0)):
                yield
        return out
    for choice in wanted.choices:
        passed = np.zeros(block.count, np.bool_)
        for option in choice:
            passed |= yield from _mask(option, block, out & ~passed, work)
        out &= passed
    return out


def _mask_headers(place: _Place, block: Block, work: _Work) -> Steps:
    names, values, lists = block.header_names, block.header_values, block.header_lists
    if names is None or values is None or lists is None:
        return np.full(block.count, place.may_miss)
    pairs = len(names.offsets) // 4 - 1
    is_named = pc.equal(names.array(pa.binary(), pairs), pa.scalar(place.name.encode()))
    at = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
    # A row without headers begins where the next row does: the last of those has the headers.
    rows = np.searchsorted(np.frombuffer(lists, np.int32), at, side="right") - 1
    judged: dict[bytes, bool] = {}
    held: list[bool] = []
    bounds, data = values.bounds(), memoryview(values.data)
    for begin, end in zip(bounds[at].tolist(), bounds[at + 1].tolist(), strict=True):
        value = bytes(data[begin:end])
        cost = 1
        if value not in judged:
            cost = place.cost(value)
            # A message that exceeds the bound of work passes, as in `_judged`.
            judged[value] = cost > limits.FILTER_WORK_MAX or place.holds(value)
        held.append(judged[value])
        if work.is_due(min(cost, limits.FILTER_WORK_MAX)):
            yield
    out = np.full(block.count, place.may_miss)
    out[rows] = False
    out[rows[np.array(held, np.bool_)]] = True
    return out


# --- Parsing -------------------------------------------------------------------------------------


def parse(value: object) -> Filter | None:
    """Parse a filter; None if it lets everything pass.

    Raises:
        Invalid, TooLarge: it is no filter, or too large; the error says where.
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
    """The parser of a filter, with its limits of conditions and depth."""

    def __init__(self) -> None:
        self._tests_left = limits.FILTER_TESTS_MAX
        self._depth_left = limits.FILTER_DEPTH_MAX

    def read(
        self, value: Mapping[object, object], path: tuple[str, ...], source: _Source
    ) -> tuple[dict[str, Plain], _All]:
        """Parse a mapping; returns its canonical form and its conditions."""
        if not value:
            raise invalid("has an empty mapping, which asks for nothing")
        if not self._depth_left:
            raise _too_large("is nested up to {} times", limits.FILTER_DEPTH_MAX)
        self._depth_left -= 1
        plain: dict[str, Plain] = {}
        places: list[_Place] = []
        choices: list[tuple[_All, ...]] = []
        for key, given in sorted(value.items(), key=lambda item: str(plain_types.text(item[0]))):
            name = plain_types.text(key)
            if not name or not filter_operators.is_utf8(name):
                raise invalid(f"names the header {shown(key)}, which is no text")
            if name == _OR and _is_choice(given):
                made = [self.read(option, path, source) for option in given]
                plain[name] = [written for written, _ in made]
                choices.append(tuple(option for _, option in made))
            elif isinstance(given, Mapping) and (inner := self._within(name, given, path, source)):
                plain[name], conditions = inner
                places.extend(conditions.places)
                choices.extend(conditions.choices)
            else:
                plain[name], place = self._place(given, (*path, name), source)
                places.append(place)
        self._depth_left += 1
        reads = any(place.source != "headers" for place in places)
        reads = reads or any(option.reads for choice in choices for option in choice)
        return plain, _All(tuple(places), tuple(choices), reads)

    def _within(
        self, name: str, given: Mapping[object, object], path: tuple[str, ...], source: _Source
    ) -> tuple[Plain, _All] | None:
        """Parse a mapping of nested fields; None: it is a condition."""
        if source == "body":
            return self.read(given, (*path, name), "body")
        if source != "headers" or name not in (_BODY, _TYPED):
            return None
        if name == _BODY:
            return self.read(given, (), "body")
        types, arrays = (
            plain_types.text(given.get("types")),
            plain_types.text(given.get("arrays", "")),
        )
        headers = given.get("headers")
        allowed = ("types", "arrays", "headers")
        if not types or arrays is None or not isinstance(headers, Mapping):
            raise invalid(f"has {_TYPED!r} without the names of headers as types, or headers")
        if any(key not in allowed for key in given):
            raise invalid(f"has {_TYPED!r} with something else than {', '.join(allowed)}")
        plain, conditions = self.read(headers, (), Typed(types, arrays))
        stored: dict[str, Plain] = {"headers": plain, "types": types}
        return (stored | {"arrays": arrays} if arrays else stored), conditions

    def _place(self, given: object, path: tuple[str, ...], source: _Source) -> tuple[Plain, _Place]:
        where = f"{'field' if source == 'body' else 'header'} {shown('.'.join(path))}"
        tests = list(given) if isinstance(given, list | tuple) else [given]
        if not tests:
            raise invalid(f"has no test for {where}")
        self._tests_left -= filter_operators.count(tests)
        if self._tests_left < 0:
            raise _too_large("has up to {} tests", limits.FILTER_TESTS_MAX)
        made = [filter_operators.read(test, where) for test in tests]
        written = [plain for plain, _ in made]
        texts = frozenset(plain.encode() for plain in written if isinstance(plain, str))
        predicates = [(plain, holds) for plain, holds in made if not isinstance(plain, str)]
        held = tuple(holds for _, holds in predicates if holds is not None)
        weight = sum(filter_operators.weight(plain) for plain, _ in predicates)
        steps = _path_of(path, has_dots=source == "body")
        may_miss = {"exists": False} in written
        return written, _Place(path[0], steps, source, texts, held, may_miss, weight)


def _path_of(path: tuple[str, ...], *, has_dots: bool) -> _Path:
    """Return the path of some names; `has_dots`: dots within them separate names, too."""
    whole = ".".join(path)
    if not has_dots or len(whole) > limits.FILTER_PATH_CHARS_MAX:
        return _Path(path)
    begins = [0]
    for name in whole.split("."):
        begins.append(begins[-1] + len(name) + 1)
    if len(begins) - 1 > limits.FILTER_PATH_NAMES_MAX:
        return _Path(path)
    return _Path((), whole, tuple(begins))


def _is_choice(given: object) -> TypeGuard[Sequence[Mapping[object, object]]]:
    if not isinstance(given, list | tuple) or len(given) < 2:
        return False
    return all(
        isinstance(option, Mapping) and not any(word in WORDS for word in option)
        for option in given
    )


def _too_large(what: str, limit: int) -> TooLarge:
    return TooLarge(f"a filter {what.format(limit)}", field=FIELD, limit=limit)


def reads_bodies(text: str) -> bool:
    """Return True if the stored filter has conditions on fields of bodies."""
    # Within a text the quotes would be escaped.
    return f'"{_BODY}":' in text


def load(text: str) -> Filter | None:
    """Decode the stored form of a filter.

    Raises:
        Corrupt: it is no filter.
    """
    try:
        return parse(msgspec.json.decode(text)) if text else None
    except (msgspec.DecodeError, Invalid, TooLarge) as error:
        raise Corrupt(f"a stored filter cannot be read: {error}") from error


def text(value: object) -> str:
    """Validate a program's filter, and return its stored form."""
    parsed = parse(value)
    return parsed.text if parsed is not None else ""


# --- Typed headers: their JSON values, by the types in another header ---
# Rule 1: the header of types is a JSON object of names and types. A type that begins with `Number`
# is a number, values of types that begin with `Binary` are skipped, all others are text, also those
# without a type.
# Rule 2: the header of arrays is a JSON object of names and texts, each a JSON array, whose
# elements are the values of that header. A single value, as `100`, counts as an array of one.
# Rule 3: a value that does not match its type counts as missing.


class Typed(msgspec.Struct, frozen=True):
    """The headers with types and arrays of other headers."""

    types: str
    arrays: str = ""

    def fields(self, headers: Headers) -> dict[str, object]:
        """Return the headers of a message as fields of a body, each with the list of its values."""
        own = dict(headers)
        types, arrays = json_object(own.get(self.types)), json_object(own.get(self.arrays))
        types, arrays = types or {}, arrays or {}
        fields: dict[str, object] = {}
        for name, value in headers:
            if name in arrays:
                if name not in fields:
                    fields[name] = _elements(arrays[name])
                continue
            values = fields.setdefault(name, [])
            assert isinstance(values, list)
            values += _values(types, name, value)
        return fields


def json_object(data: bytes | None) -> dict[str, object] | None:
    """Return the JSON object in some bytes; None: they are none."""
    try:
        decoded = msgspec.json.decode(data) if data else None
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


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
        decoded = msgspec.json.decode(text) if isinstance(text, str) else []
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []
    if isinstance(decoded, dict):
        return []
    return decoded if isinstance(decoded, list) else [decoded]
