"""Filter policies of subscriptions, and their translation to filters of the core.

A policy with the scope MessageAttributes becomes a filter on headers that takes attribute types
into account; one with the scope MessageBody becomes a filter under `$body`. Errors that SNS reports
are raised here with its messages; the core validates the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millrace import limits
from millrace.core.topics import filters
from millrace.core.topics.filter_operators import WORDS
from millrace.errors import Invalid, TooLarge
from millrace.server.aws.fault import Fault
from millrace.server.aws.message_attributes import TYPES
from millrace.server.aws.topic_headers import ARRAYS
from millrace.server.sns.faults import invalid

ATTRIBUTES = "MessageAttributes"
BODY = "MessageBody"
SCOPES = (ATTRIBUTES, BODY)

Filter = dict[str, object]

NOTHING: Filter = {"aws.confirmed": [{"exists": True}]}
"""A filter that matches nothing: no message has this header."""


def read_policy(text: str, scope: str, before: str = "") -> Filter:
    """Parse a filter policy; an empty one matches everything.

    `before` is the prefix of error messages.

    Raises:
        Fault: the policy is invalid or too complex.
    """
    try:
        return _Policy(scope, before).read(text)
    except (Invalid, TooLarge) as error:
        raise _bad(before, error.message) from error


def _bad(before: str, what: str) -> Fault:
    return invalid(f"{before}FilterPolicy: {what}")


class _Policy:
    """Parser and validator of one filter policy."""

    def __init__(self, scope: str, before: str) -> None:
        self._scope = scope
        self._before = before

    def read(self, text: str) -> Filter:
        if not text:
            return {}
        try:
            policy = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._bad("failed to parse JSON.") from error
        if not isinstance(policy, dict):
            raise self._bad("Filter policy must be a JSON object")
        if not policy:
            return {}
        if len(policy) > limits.SNS_POLICY_KEYS_MAX:
            raise self._bad(
                f"Filter policy can not have more than {limits.SNS_POLICY_KEYS_MAX} keys"
            )
        if self._combinations(policy, 1, 1) > limits.SNS_POLICY_COMBINATIONS_MAX:
            raise self._bad("Filter policy is too complex")
        typed = {"types": TYPES, "arrays": ARRAYS, "headers": policy}
        found: Filter = {"$body": policy} if self._scope == BODY else {"$typed": typed}
        filters.parse(found)
        return found

    def _bad(self, what: str) -> Fault:
        return _bad(self._before, what)

    def _combinations(self, policy: Mapping[str, object], depth: int, so_far: int) -> int:
        """Return the number of combinations of values, each weighted with its depth in a body."""
        if depth > limits.FILTER_DEPTH_MAX:
            raise self._bad("Filter policy is too complex")
        for key, value in policy.items():
            if isinstance(value, dict):
                # Errors of inner levels are reported first, as by SNS.
                so_far = self._combinations(value, depth + 1, so_far)
                if self._scope == ATTRIBUTES:
                    raise invalid(
                        f"{self._before}Filter policy scope MessageAttributes does not support "
                        "nested filter policy"
                    )
            elif not isinstance(value, list):
                raise self._bad(f'"{key}" must be an object or an array')
            elif not value:
                raise self._bad("Empty arrays are not allowed")
            elif key == "$or" and _is_choice(value):
                so_far = sum(self._combinations(one, depth, so_far) for one in value)
            else:
                for test in value:
                    self._see(test)
                so_far *= len(value) * depth
        return so_far

    def _see(self, test: object) -> None:
        """Validate one match expression."""
        if isinstance(test, list):
            raise self._bad("Match value must be String, number, true, false, or null")
        if not isinstance(test, dict):
            return
        if len(test) != 1:
            raise self._bad("Only one key allowed in match expression")
        [(word, value)] = test.items()
        if word not in WORDS:
            raise self._bad(f"Unrecognized match type {word}")
        if word in ("prefix", "suffix", "equals-ignore-case", "wildcard"):
            if not isinstance(value, str):
                raise self._bad(f"{word} match pattern must be a string")
        elif word == "exists":
            if not isinstance(value, bool):
                raise self._bad("exists match pattern must be either true or false.")
        elif word == "numeric":
            self._see_numeric(value)
        elif word == "cidr":
            self._see_cidr(value)
        else:
            self._see_anything_but(value)

    def _see_anything_but(self, value: object) -> None:
        if isinstance(value, list):
            if not value:
                raise self._bad("Empty arrays are not allowed")
            for one in value:
                if isinstance(one, dict):
                    raise self._bad(f"Unsupported anything-but pattern: {next(iter(one), None)}")
                self._see(one)
        elif isinstance(value, dict):
            for word, given in value.items():
                if word not in ("prefix", "suffix", "equals-ignore-case", "wildcard"):
                    raise self._bad(f"Unsupported anything-but pattern: {word}")
                texts = given if isinstance(given, list) and given else [given]
                if not all(isinstance(text, str) for text in texts):
                    raise self._bad(f"{word} match pattern must be a string")

    def _see_cidr(self, value: object) -> None:
        if not isinstance(value, str):
            raise self._bad("prefix match pattern must be a string")
        address, slash, bits = value.partition("/")
        if not slash or "/" in bits:
            raise self._bad("Malformed CIDR, one '/' required")
        if not (bits.isascii() and bits.isdigit()):
            raise self._bad("Malformed CIDR, mask bits must be an integer")
        try:
            filters.parse({"address": {"cidr": value}})
        except Invalid as error:
            raise self._bad(f"Nonstandard IP address: {address}") from error

    def _see_numeric(self, value: object) -> None:
        if not isinstance(value, list) or not value:
            raise self._bad("Invalid member in numeric match: ]")
        sign, *rest = value
        if not isinstance(sign, str):
            raise self._bad(f"Invalid member in numeric match: {sign}")
        if sign not in ("<", "<=", "=", ">", ">="):
            raise self._bad(f"Unrecognized numeric range operator: {sign}")
        low = self._number(sign, rest)
        if len(rest) < 2:
            return
        if sign not in (">", ">="):
            raise self._bad("Too many elements in numeric expression")
        upper, *rest = rest[1:]
        if not isinstance(upper, str):
            raise self._bad(f"Bad value in numeric range: {upper}")
        if upper not in ("<", "<="):
            raise self._bad(f"Bad numeric range operator: {upper}")
        if self._number(upper, rest) <= low:
            raise self._bad("Bottom must be less than top")
        if len(rest) > 1:
            raise self._bad("Too many terms in numeric range expression")

    def _number(self, sign: str, rest: list[object]) -> float:
        found = rest[0] if rest else None
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self._bad(f"Value of {'equals' if sign == '=' else sign} must be numeric")
        return found


def _is_choice(value: list[object]) -> bool:
    return len(value) > 1 and all(
        isinstance(one, dict) and not any(word in one for word in WORDS) for one in value
    )
