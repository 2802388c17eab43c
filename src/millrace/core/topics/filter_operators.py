"""Filter operators: conditions on a single value of a header or body field.

A value is a header's, as bytes, or a JSON value of the body: a text, a number, true, false or null.

Rule 1: text is compared as UTF-8, byte by byte.
Rule 2: a header has no type. Its value is a number if it can be parsed as one, and true, false or
null if it is that word. In a body a number is a number, and `"5"` is none.
Rule 3: numbers are compared to five decimal places, as with SNS.
Rule 4: equal conditions have one canonical form, however they were given.

The operators are those of SNS: a text, a number, true, false or null (exact match), `prefix`,
`suffix`, `equals-ignore-case`, `wildcard`, `numeric`, `cidr`, `exists`, and `anything-but` with one
or several of the others.
"""

from __future__ import annotations

import ipaddress
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from millrace import limits
from millrace.core import plain_types
from millrace.core.validate import shown
from millrace.errors import Invalid, TooLarge

Value: TypeAlias = "bytes | str | int | float | bool | None"
"""Bytes are a header's value; all others are of a body."""

Holds = Callable[[Value], bool]
"""A predicate: returns True if the condition holds for a value."""

Plain: TypeAlias = "str | int | float | bool | list[Plain] | dict[str, Plain] | None"
"""The canonical form of a condition."""

FIELD = "filter"
WORDS = (
    "prefix",
    "suffix",
    "equals-ignore-case",
    "wildcard",
    "numeric",
    "cidr",
    "exists",
    "anything-but",
)

_NUMBER = re.compile(rb"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_BYTES_MAX = 64
_ADDRESS_BYTES_MAX = 64
_CASELESS_WEIGHT = 4
_LETTERS_A_WEIGHT = 8
_DIGITS = 5
"""Decimal places that count when numbers are compared, as with SNS."""

_WHOLE_FROM = 2.0**52
"""Numbers from here on have no decimal places. Rounding those with 300 digits takes 20 µs each,
a hundred times as long as a condition."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def invalid(what: str) -> Invalid:
    return Invalid(f"the filter {what}", field=FIELD)


def read(test: object, where: str) -> tuple[Plain, Holds | None]:
    """Parse a condition; returns its canonical form, and its predicate (None: the value is
    missing).

    Raises:
        Invalid, TooLarge: it is no condition; the error says `where`.
    """
    if isinstance(test, Mapping):
        return _worded(test, where)
    if test is None or isinstance(test, bool):
        return test, _word_of_json(test)
    number = _number(test)
    if number is not None:
        return number, _numeric([("=", number)])
    wanted = _text(test, where)
    data = wanted.encode()
    return wanted, _of_text(lambda value: value == data)


def count(tests: list[object]) -> int:
    """Return the number of conditions, those within `anything-but` included."""
    total = len(tests)
    for test in tests:
        inner = test.get("anything-but") if isinstance(test, Mapping) else None
        if isinstance(inner, Mapping):
            total += sum(
                len(inner_tests)
                for inner_tests in inner.values()
                if isinstance(inner_tests, list | tuple)
            )
        elif isinstance(inner, list | tuple):
            total += count(list(inner))
    return total


def weight(plain: Plain) -> int:
    """Return the approximate cost of a condition for each 64 bytes of a value."""
    if not isinstance(plain, dict):
        return 1
    [(word, given)] = plain.items()
    if word == "anything-but" and isinstance(given, list):
        return sum(weight(test) for test in given)
    if word == "wildcard" and isinstance(given, str):
        # The search for a piece may take as many comparisons at each place as it has letters.
        return sum(1 + len(piece) // _LETTERS_A_WEIGHT for piece in given.split("*"))
    return _CASELESS_WEIGHT if word == "equals-ignore-case" else 1


# --- Operators -----------------------------------------------------------------------------------


def _worded(test: Mapping[object, object], where: str) -> tuple[Plain, Holds | None]:
    if len(test) != 1:
        raise invalid(f"has a test with {len(test)} words for {where}; give each its own")
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
        case "wildcard":
            pattern = _text(given, where)
            return {"wildcard": pattern}, _wildcard(pattern, where)
        case "numeric":
            bounds = _bounds(given, where)
            return {"numeric": [part for bound in bounds for part in bound]}, _numeric(bounds)
        case "cidr":
            network = _network(given, where)
            return {"cidr": str(network)}, _within(network)
        case "exists":
            if not isinstance(given, bool):
                raise invalid(f"has 'exists' {shown(given)} for {where}, not true or false")
            return {"exists": given}, (lambda _: True) if given else None
        case "anything-but":
            return _anything_but(given, where)
        case _:
            raise invalid(
                f"has the word {shown(word)} for {where}; there are {', '.join(WORDS[:-1])} and "
                f"{WORDS[-1]}"
            )


def _anything_but(given: object, where: str) -> tuple[Plain, Holds]:
    tests = _spread(given)
    if not tests:
        raise invalid(f"has 'anything-but' nothing for {where}")
    if any(_is_word(test, "exists") or _is_word(test, "anything-but") for test in tests):
        raise invalid(f"has 'anything-but' with another such word for {where}")
    made = [read(test, where) for test in tests]
    inner = [holds for _, holds in made if holds is not None]
    written: list[Plain] = [plain for plain, _ in made]
    if all(isinstance(plain, str) for plain in written):
        texts = frozenset(str(plain).encode() for plain in written)
        return {"anything-but": written}, lambda value: _data(value) not in texts
    return {"anything-but": written}, lambda value: not any(holds(value) for holds in inner)


def _data(value: Value) -> bytes | None:
    """Return a text as it is compared; None: the value is no text."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else None


def _spread(given: object) -> list[object]:
    """Return the conditions one by one: an operator may be given once for several texts."""
    if isinstance(given, list | tuple):
        return list(given)
    if isinstance(given, Mapping) and len(given) == 1:
        [(word, texts)] = given.items()
        if isinstance(texts, list | tuple) and word != "numeric":
            return [{word: text} for text in texts]
    return [given]


def _is_word(test: object, word: str) -> bool:
    return isinstance(test, Mapping) and word in test


# --- Text ----------------------------------------------------------------------------------------


def _of_text(holds: Callable[[bytes], bool]) -> Holds:
    def found(value: Value) -> bool:
        if isinstance(value, bytes):
            return holds(value)
        return isinstance(value, str) and holds(value.encode())

    return found


def _beginning(data: bytes) -> Holds:
    return _of_text(lambda value: value.startswith(data))


def _ending(data: bytes) -> Holds:
    return _of_text(lambda value: value.endswith(data))


def _caseless(text: str) -> Holds:
    wanted = text.casefold()

    def holds(value: bytes) -> bool:
        try:
            return value.decode().casefold() == wanted
        except UnicodeDecodeError:
            return False

    return _of_text(holds)


def _wildcard(pattern: str, where: str) -> Holds:
    """Return the predicate of a pattern, in which each star matches any text; `\\*` is a star,
    `\\\\` a backslash."""
    pieces = _pieces(pattern, where)
    stars = len(pieces) - 1
    if stars > limits.FILTER_STARS_MAX:
        raise TooLarge(
            f"a wildcard of a filter has up to {limits.FILTER_STARS_MAX} stars; one for {where} "
            f"has {stars}",
            field=FIELD,
            limit=limits.FILTER_STARS_MAX,
        )
    if not stars:
        whole = pieces[0]
        return _of_text(lambda value: value == whole)
    first, *middle, last = pieces

    def holds(value: bytes) -> bool:
        # The first match of each piece leaves most to the next ones: no backtracking is needed.
        at, end = len(first), len(value) - len(last)
        if at > end or not value.startswith(first) or not value.endswith(last):
            return False
        for piece in middle:
            position = value.find(piece, at, end)
            if position < 0:
                return False
            at = position + len(piece)
        return True

    return _of_text(holds)


def _pieces(pattern: str, where: str) -> list[bytes]:
    """Return the texts between the stars."""
    pieces = [""]
    letters = iter(pattern)
    is_star = False
    for letter in letters:
        if letter == "*":
            if is_star:
                raise invalid(f"has two stars in a row in a wildcard for {where}")
            pieces.append("")
        elif letter == "\\":
            escaped = next(letters, "")
            if escaped not in ("*", "\\"):
                raise invalid(f"has a backslash before neither star nor backslash for {where}")
            pieces[-1] += escaped
        else:
            pieces[-1] += letter
        is_star = letter == "*"
    return [piece.encode() for piece in pieces]


def _text(value: object, where: str) -> str:
    text = plain_types.text(value)
    data = plain_types.data(value) if text is None else None
    if data is not None:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = None
    if text is None or not is_utf8(text):
        raise invalid(f"has {shown(value)} for {where}, which is neither text nor a number")
    return text


def is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- Numbers, addresses, true, false and null ----------------------------------------------------


def _number(value: object) -> int | float | None:
    if isinstance(value, bool):
        return None
    whole = plain_types.whole(value)
    if whole is not None:
        return whole if abs(whole) < 2**63 else None
    number = plain_types.number(value)
    return number if number is not None and math.isfinite(number) else None


def _bounds(given: object, where: str) -> list[tuple[str, int | float]]:
    """Parse one comparison, or a lower and an upper bound."""
    parts = list(given) if isinstance(given, list | tuple) else []
    bounds: list[tuple[str, int | float]] = []
    for sign, value in zip(parts[::2], parts[1::2], strict=False):
        number = _number(value)
        plain = plain_types.text(sign)
        if plain in _COMPARE and number is not None:
            bounds.append((plain, number))
    signs = [sign for sign, _ in bounds]
    is_range = len(signs) == 2 and signs[0] in (">", ">=") and signs[1] in ("<", "<=")
    if 2 * len(bounds) != len(parts) or not (len(signs) == 1 or is_range):
        raise invalid(
            f"has 'numeric' {shown(given)} for {where}; it is one comparison as ['>=', 5], or a "
            "range as ['>', 0, '<=', 5]"
        )
    return bounds


def _numeric(bounds: Sequence[tuple[str, int | float]]) -> Holds:
    rounded = [(_COMPARE[sign], _rounded(bound)) for sign, bound in bounds]

    def holds(value: Value) -> bool:
        number = number_in(value) if isinstance(value, bytes) else value
        if isinstance(number, bool) or not isinstance(number, int | float):
            return False
        number = _rounded(number)
        return all(compare(number, bound) for compare, bound in rounded)

    return holds


def _rounded(number: int | float) -> int | float:
    """Return a number rounded for comparison."""
    if isinstance(number, float) and abs(number) < _WHOLE_FROM:
        return round(number, _DIGITS)
    return number


def number_in(value: bytes) -> int | float | None:
    """Return the number in a header's value; None: it is no number."""
    if len(value) > _NUMBER_BYTES_MAX:
        return None
    match = _NUMBER.fullmatch(value)
    if match is None:
        return None
    is_whole = match.group(1) is None and match.group(2) is None
    return int(value) if is_whole else float(value)


def _network(given: object, where: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    text = plain_types.text(given) or ""
    try:
        if text.count("/") != 1 or not text.isascii():
            raise ValueError(text)
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise invalid(
            f"has 'cidr' {shown(given)} for {where}; it is a network as '10.0.0.0/8'"
        ) from error


def _within(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> Holds:
    def holds(value: bytes) -> bool:
        if len(value) > _ADDRESS_BYTES_MAX:
            return False
        try:
            return ipaddress.ip_address(value.decode("ascii")) in network
        except ValueError:
            return False

    return _of_text(holds)


def _word_of_json(wanted: object) -> Holds:
    word = b"null" if wanted is None else b"true" if wanted is True else b"false"
    return lambda value: value == word if isinstance(value, bytes) else value is wanted
