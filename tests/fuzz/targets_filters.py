"""Filters of subscriptions, and messages that are judged by them."""

from __future__ import annotations

import ipaddress
import re
from random import Random
from typing import Any

import msgspec

from millrace import limits
from millrace.core.format.block import Block
from millrace.core.model import Headers, NewMessage
from millrace.core.topics import filters
from millrace.core.topics.filter_operators import number_in
from millrace.errors import Invalid, TooLarge
from millrace.server.aws.fault import Fault
from millrace.server.sns.filter_policy import read_policy

_NAMES = ("a", "b", "a.b", "$body", "$or", "", "exists")
_WORDS = ("", "x", "xy", "X", "5", "5.0", "-1", "1e3", "true", "null", "10.0.0.7", "é", "x*y")
_TESTED = (
    "prefix",
    "suffix",
    "equals-ignore-case",
    "wildcard",
    "numeric",
    "cidr",
    "exists",
    "anything-but",
    "unknown",
)


def fuzz_filters(rng: Random) -> None:
    """Judge messages by a filter: block and single message agree, and so does a naive judge."""
    policy = {rng.choice(_NAMES): _tests(rng, 3) for _ in range(rng.randint(1, 4))}
    body = _value(rng, 4)
    if rng.random() < 0.05:
        body = {rng.choice(_NAMES): [_value(rng, 1)] * rng.randint(1, 60_000)}
    data = msgspec.json.encode(body)
    if rng.random() < 0.1:
        data = bytes(rng.choice(data) for _ in range(min(len(data), 200)))
    _judge_policy(policy, data)
    wanted: object = rng.choice([policy, {"$body": policy}, {"a": _tests(rng, 1), "$body": policy}])
    headers: Headers = tuple(
        (rng.choice(_NAMES), rng.choice(_WORDS).encode()) for _ in range(rng.randint(0, 4))
    )
    try:
        found = filters.parse(wanted)
    except (Invalid, TooLarge) as error:
        if error.field != "filter":
            raise AssertionError("an error without its field") from error
        return
    if found is None:
        return
    again = filters.load(found.text)
    assert again is not None
    rows = [NewMessage(data, None, headers), NewMessage(b"{}"), NewMessage(data)]
    flags = again.mask(Block.of_messages(rows))
    for flag, row in zip(flags, rows, strict=True):
        assert flag == found.passes(row.headers, row.body)
        if len(row.body or b"") < 2_000:
            # Small enough to be within every bound.
            assert flag == _passes(msgspec.json.decode(found.text), row.headers, row.body or b"")


def _judge_policy(policy: object, data: bytes) -> None:
    """Read it as SNS does, and have it judge a body."""
    for scope in ("MessageBody", "MessageAttributes"):
        try:
            made = read_policy(msgspec.json.encode(policy).decode(), scope)
        except Fault:
            continue
        found = filters.parse(made)
        if found is not None:
            found.passes((("a", b"x"), ("aws.types", data)), data)


# --- What is drawn -------------------------------------------------------------------------------


def _tests(rng: Random, depth: int) -> object:
    kind = rng.random()
    if depth and kind < 0.2:
        return {rng.choice(_NAMES): _tests(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    if depth and kind < 0.3:
        return [
            {rng.choice(_NAMES): _tests(rng, depth - 1) for _ in range(rng.randint(1, 2))}
            for _ in range(rng.randint(1, 3))
        ]
    if kind < 0.33:
        return [{"wildcard": "*".join(rng.choices(_WORDS, k=5))}] * rng.randint(1, 300)
    return [_test(rng, 1) for _ in range(rng.randint(0, 4))]


def _test(rng: Random, depth: int) -> object:
    if rng.random() < 0.5:
        return _scalar(rng)
    word = rng.choice(_TESTED)
    if word == "anything-but" and depth:
        inner = [_test(rng, 0) for _ in range(rng.randint(0, 3))]
        return {word: rng.choice([inner, _test(rng, 0)])}
    if word == "exists":
        return {word: rng.random() < 0.5}
    if word == "numeric":
        signs = ("=", "<", ">", "<=", ">=", "!")
        bounds: list[object] = [rng.choice(signs), rng.randint(-5, 5)]
        return {word: bounds + ([rng.choice(signs), 9] if rng.random() < 0.5 else [])}
    if word == "cidr":
        return {word: rng.choice(["10.0.0.0/8", "10.0.0.0", "::/0", "x/8"])}
    return {word: rng.choice([rng.choice(_WORDS), "x*", "*y", "x\\*y", "**", _scalar(rng)])}


def _scalar(rng: Random) -> object:
    numbers = (rng.randint(-5, 2000), 5.0, 1e300, 2**63)
    return rng.choice([*_WORDS, *numbers, True, False, None])


def _value(rng: Random, depth: int) -> object:
    kind = rng.random()
    if depth and kind < 0.4:
        return {rng.choice(_NAMES): _value(rng, depth - 1) for _ in range(rng.randint(0, 4))}
    if depth and kind < 0.6:
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    return _scalar(rng)


# --- A naive judge -------------------------------------------------------------------------------


def _passes(wanted: dict[str, object], headers: Headers, body: bytes) -> bool:
    """Whether a message passes a filter, as it is written down."""
    for name, given in wanted.items():
        if name == "$or" and isinstance(given, list) and _is_choice(given):
            if not any(_passes(one, headers, body) for one in given if isinstance(one, dict)):
                return False
            continue
        if name == "$body" and isinstance(given, dict):
            fields = _object(body)
            if fields is None or not _fields_pass(given, (), fields):
                return False
            continue
        assert isinstance(given, list)
        values: list[object] = [value for header, value in headers if header == name]
        if not _holds_one(given, values, is_missing=not values):
            return False
    return True


def _is_choice(given: list[object]) -> bool:
    return len(given) > 1 and all(
        isinstance(one, dict) and not any(word in _TESTED[:-1] for word in one) for one in given
    )


def _fields_pass(wanted: dict[str, object], path: tuple[str, ...], fields: object) -> bool:
    for name, given in wanted.items():
        if name == "$or" and isinstance(given, list) and _is_choice(given):
            found = any(isinstance(one, dict) and _fields_pass(one, path, fields) for one in given)
        elif isinstance(given, dict):
            found = _fields_pass(given, (*path, name), fields)
        else:
            assert isinstance(given, list)
            values, is_missing = _at(fields, (*path, name))
            found = _holds_one(given, values, is_missing=is_missing)
        if not found:
            return False
    return True


def _at(value: object, path: tuple[str, ...]) -> tuple[list[object], bool]:
    if isinstance(value, list):
        parts = [_at(one, path) for one in value]
        return [one for found, _ in parts for one in found], not value or any(m for _, m in parts)
    if not path:
        return ([], True) if isinstance(value, dict) else ([value], False)
    if isinstance(value, dict) and path[0] in value:
        return _at(value[path[0]], path[1:])
    return [], True


def _holds_one(tests: list[object], values: list[object], *, is_missing: bool) -> bool:
    if is_missing and {"exists": False} in tests:
        return True
    return any(_holds(test, value) for test in tests for value in values)


def _holds(test: Any, value: object) -> bool:
    text = value if isinstance(value, bytes) else None
    if isinstance(value, str):
        text = value.encode()
    if test is None or isinstance(test, bool):
        word = {None: b"null", True: b"true", False: b"false"}[test]
        return value == word if isinstance(value, bytes) else value is test
    if isinstance(test, int | float):
        return _number(value) == test
    if isinstance(test, str):
        return text == test.encode()
    assert isinstance(test, dict)
    [(word, given)] = test.items()
    if word == "exists":
        return bool(given)
    if word == "anything-but":
        return not any(_holds(one, value) for one in given)
    if word == "numeric":
        number = _number(value)
        pairs = list(zip(given[::2], given[1::2], strict=True))
        return number is not None and all(_compares(number, sign, b) for sign, b in pairs)
    if text is None:
        return False
    if word == "cidr":
        try:
            return ipaddress.ip_address(text.decode("ascii")) in ipaddress.ip_network(given)
        except ValueError:
            return False
    if word == "prefix":
        return text.startswith(given.encode())
    if word == "suffix":
        return text.endswith(given.encode())
    if word == "equals-ignore-case":
        return bool(text.decode().casefold() == given.casefold())
    assert word == "wildcard"
    pattern = re.sub(r"\\([*\\])|(\*)|([^*\\]+)", _piece, given)
    return re.fullmatch(pattern.encode(), text, re.DOTALL) is not None


def _piece(found: re.Match[str]) -> str:
    return ".*" if found[2] else re.escape(found[1] or found[3])


def _number(value: object) -> int | float | None:
    if isinstance(value, bytes):
        return number_in(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _compares(number: float, sign: str, bound: float) -> bool:
    ways = {
        "=": number == bound,
        "<": number < bound,
        "<=": number <= bound,
        ">": number > bound,
        ">=": number >= bound,
    }
    return ways[sign]


def _object(data: bytes) -> dict[str, object] | None:
    assert len(data) < limits.FILTER_BODY_BYTES_MAX
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
