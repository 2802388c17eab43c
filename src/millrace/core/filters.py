"""Filters: which messages of a topic a subscription wants.

A filter names headers, and for each of them one test or several:

    {"type": ["order", "return"], "region": {"prefix": "eu-"}, "total": {"numeric": [">=", 100]}}

Rule 1: a message passes if every header that is named passes.
Rule 2: a header passes if one of its tests holds for one of its values (it may stand there several
times), or if it is not there and `{"exists": False}` is among its tests.
Rule 3: `"$body"` with a mapping names fields of the body, which is JSON then, in the same way. A
mapping leads to the fields within a field; tests are a list, or one that is no mapping. A field
that is an array has the values of its elements. Each field is judged by itself: one element may
have what one field asks for, another one what another does. A dot in a name separates names, as
with SNS: `a.b` is the field `b` within `a`, and the field that is named `a.b`. A body that is no
object of JSON does not pass.
Rule 4: `"$or"` with a list of at least two mappings, none of which begins with the word of a test,
asks that one of them passes. Otherwise it is the name of a header or field, as any.
Rule 5: `"$typed"` with `types`, `headers` and perhaps `arrays` names headers in `headers`, whose
types stand in the header `types`, and their arrays in `arrays` (`typed.py`): they are judged as
fields of a body are.

Rule 6: the work for a message is bounded, by what is counted and not by the clock: the same message
is judged in the same way everywhere. One that takes more passes, and so does one whose body is too
large to be read: nobody misses what they wanted.

What tests there are, and what they hold for, is in `filter_tests`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Literal, TypeAlias, TypeGuard, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.core import exact, filter_tests
from millrace.core.block import Block
from millrace.core.check import shown
from millrace.core.filter_tests import FIELD, WORDS, Holds, Plain, Value, invalid
from millrace.core.model import Headers, Message
from millrace.core.typed import Typed, object_in
from millrace.errors import Corrupt, Invalid, TooLarge

Flags: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"

Steps: TypeAlias = "Generator[None, None, Flags]"
"""Work that is done step by step."""

_BODY = "$body"
_TYPED = "$typed"
_OR = "$or"

_BYTES_A_TEST = 64
"""So many bytes of a value take about as long as a test of a short one."""


_Source: TypeAlias = 'Literal["headers", "body"] | Typed'
"""Where the values stand."""


class _Path(msgspec.Struct, frozen=True):
    """A path into objects."""

    names: tuple[str, ...]
    """Those of its fields, where no dots count."""
    whole: str = ""
    """All names with dots between them, where any two and more of them may be one field's name."""
    begins: tuple[int, ...] = ()
    """Where each name begins in `whole`, and behind its end."""

    @property
    def count(self) -> int:
        """How many names there are."""
        return len(self.begins) - 1 if self.whole else len(self.names)

    def cost(self, depth: int) -> int:
        """The work of `ways`, in tests of a short value, beyond that of one name."""
        if not self.whole:
            return 0
        left = len(self.whole) - self.begins[depth]
        return (self.count - depth - 1) * (1 + left // (2 * _BYTES_A_TEST))

    def ways(self, value: dict[object, object], depth: int) -> list[tuple[object, int]]:
        """Where it leads on from an object that so many names have led to, and how many names
        there are up to each. Names are joined here: all that a path has would be long."""
        if not self.whole:
            name = self.names[depth]
            return [(value[name], depth + 1)] if name in value else []
        begin, found = self.begins[depth], list[tuple[object, int]]()
        for end in range(depth + 1, len(self.begins)):
            name = self.whole[begin : self.begins[end] - 1]
            if name in value:
                found.append((value[name], end))
        return found


class _Place(msgspec.Struct, frozen=True):
    """What is asked of one header, or of one field of the body."""

    name: str
    """Of the header."""
    path: _Path
    source: _Source
    texts: frozenset[bytes]
    """It passes where a value is one of these: looked up, however many there are."""
    tests: tuple[Holds, ...]
    may_miss: bool
    """It passes where nothing is there."""
    weight: int
    """What the tests cost for each so many bytes of a value."""

    def cost(self, value: Value) -> int:
        """The work of one value, in tests of a short one."""
        size = len(value) if isinstance(value, bytes | str) else 0
        return 1 + len(self.tests) + size // _BYTES_A_TEST * (1 + self.weight)

    def holds(self, value: Value) -> bool:
        """Whether one of the tests holds."""
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
    """Some of it asks for what has to be read first: a body, or headers with types."""


class Filter:
    """A filter that was checked. Treat as frozen."""

    def __init__(self, wanted: _All, text: str) -> None:
        self._wanted = wanted
        self.text = text
        """As it is stored: the same filter has the same text."""

    def passes(self, headers: Headers, body: bytes | None) -> bool:
        """Whether a message with these headers and this body passes, or cannot be judged."""
        return bool(self.mask(Block.of_messages([Message(body, None, headers)]))[0])

    def mask(self, block: Block) -> Flags:
        """Which rows of a block pass, in few calls; no row counts for another."""
        steps = self.judge(block)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast("Flags", end.value)

    def judge(self, block: Block) -> Steps:
        """As `mask`, step by step: between two of them others may have their turn. A step takes
        some milliseconds, whatever is in the block."""
        return _mask(self._wanted, block, np.ones(block.count, np.bool_), _Work())


class _Work:
    """The work since the last step."""

    def __init__(self) -> None:
        self._done = 0

    def is_due(self, cost: int) -> bool:
        """Add to it; whether a step should end here."""
        self._done += cost
        if self._done < limits.FILTER_STEP_WORK:
            return False
        self._done = 0
        return True


class _TooMuch(Exception):
    """A message takes more work than one may."""


class _Message:
    """A message that is judged, with what was read of it and the work that is left for it."""

    def __init__(self, headers: Headers, body: bytes | None) -> None:
        self._headers = headers
        self._body = body
        self._read: dict[_Source, dict[str, object] | None] = {}
        self.left = limits.FILTER_WORK_MAX

    def spend(self, cost: int) -> None:
        """Take note of work.

        Raises:
            _TooMuch: there was too much of it.
        """
        self.left -= cost
        if self.left < 0:
            raise _TooMuch

    def values(self, place: _Place) -> tuple[list[Value], bool]:
        """The values at a place, and whether something is missing there.

        Raises:
            _TooMuch: there are too many to look for.
        """
        if place.source == "headers":
            self.spend(len(self._headers))
            values: list[Value] = [value for name, value in self._headers if name == place.name]
            return values, not values
        fields = self._fields(place.source)
        return ([], False) if fields is None else self._found(fields, place.path)

    def _fields(self, source: _Source) -> dict[str, object] | None:
        """A body, or headers with types, as it is read once; None: it has no fields."""
        if source not in self._read:
            if isinstance(source, Typed):
                self._read[source] = source.fields(self._headers)
            elif len(self._body or b"") > limits.FILTER_BODY_BYTES_MAX:
                raise _TooMuch
            else:
                self._read[source] = object_in(self._body)
        return self._read[source]

    def _found(self, value: object, path: _Path, depth: int = 0) -> tuple[list[Value], bool]:
        """The values of a field, and whether it is missing somewhere; the first names of its path,
        so many, lead to `value`."""
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
                # An object may have `a.b` as well as `b` within `a`: the field is missing if it is
                # missing by all ways. Each takes a name, of which there are few: so does recursion.
                found = [self._found(inner, path, end) for inner, end in ways]
                values += [one for many, _ in found for one in many]
                is_missing |= all(missing for _, missing in found)
            elif isinstance(value, dict):
                is_missing = True
            else:
                values.append(value)  # type: ignore[arg-type]
        return values, is_missing


def _judged(wanted: _All, message: _Message) -> bool:
    """Whether a message passes. One that takes too much work does: it is rather brought to those
    who do not want it than kept from those who do."""
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
    return all(any(_passes(one, message) for one in choice) for choice in wanted.choices)


def _mask(wanted: _All, block: Block, rows: Flags, work: _Work) -> Steps:
    """Which of the rows that are flagged pass."""
    out = rows.copy()
    for place in wanted.places:
        if place.source == "headers":
            out &= yield from _mask_headers(place, block, work)
    if wanted.reads:
        # One message after the other, so that no more than one is in memory as it was read.
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
        found = np.zeros(block.count, np.bool_)
        for one in choice:
            found |= yield from _mask(one, block, out & ~found, work)
        out &= found
    return out


def _mask_headers(place: _Place, block: Block, work: _Work) -> Steps:
    names, values, lists = block.header_names, block.header_values, block.header_lists
    if names is None or values is None or lists is None:
        return np.full(block.count, place.may_miss)
    pairs = len(names.offsets) // 4 - 1
    is_named = pc.equal(names.array(pa.binary(), pairs), pa.scalar(place.name.encode()))
    at = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
    # A row without headers begins where the next one does: the last that begins there has it.
    rows = np.searchsorted(np.frombuffer(lists, np.int32), at, side="right") - 1
    known: dict[bytes, bool] = {}
    held: list[bool] = []
    bounds, data = values.bounds(), memoryview(values.data)
    for begin, end in zip(bounds[at].tolist(), bounds[at + 1].tolist(), strict=True):
        value = bytes(data[begin:end])
        cost = 1
        if value not in known:
            cost = place.cost(value)
            # One that takes too much work passes, as in `_judged`.
            known[value] = cost > limits.FILTER_WORK_MAX or place.holds(value)
        held.append(known[value])
        if work.is_due(min(cost, limits.FILTER_WORK_MAX)):
            yield
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
        reads = any(place.source != "headers" for place in places)
        reads = reads or any(one.reads for choice in choices for one in choice)
        return plain, _All(tuple(places), tuple(choices), reads)

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
        texts = frozenset(plain.encode() for plain in written if isinstance(plain, str))
        others = [(plain, holds) for plain, holds in made if not isinstance(plain, str)]
        held = tuple(holds for _, holds in others if holds is not None)
        weight = sum(filter_tests.weight(plain) for plain, _ in others)
        steps = _path_of(path, has_dots=source == "body")
        may_miss = {"exists": False} in written
        return written, _Place(path[0], steps, source, texts, held, may_miss, weight)


def _path_of(path: tuple[str, ...], *, has_dots: bool) -> _Path:
    """Return where the names of a path lead; `has_dots`: names are separated by dots, too."""
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
    return all(isinstance(one, Mapping) and not any(word in WORDS for word in one) for one in given)


def _too_large(what: str, limit: int) -> TooLarge:
    return TooLarge(f"a filter {what.format(limit)}", field=FIELD, limit=limit)


def reads_bodies(text: str) -> bool:
    """Return whether a filter that is stored as `text` asks for fields of bodies."""
    # Within a text the quotes would be escaped.
    return f'"{_BODY}":' in text


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
