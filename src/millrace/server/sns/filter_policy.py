"""Filter policies of subscriptions, and the filters that they are in the core.

A policy on the attributes of messages is a filter on their headers, with the types that they were
published with; one on their bodies is a filter under `$body`. What SNS refuses is refused here, in
its words; what is left the core checks.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millrace import limits
from millrace.core import filters
from millrace.core.filter_tests import WORDS
from millrace.errors import Invalid, TooLarge
from millrace.server.aws.fault import Fault
from millrace.server.sns.faults import invalid
from millrace.server.sns.headers import ARRAYS
from millrace.server.sqs.values import TYPES

ATTRIBUTES = "MessageAttributes"
BODY = "MessageBody"
SCOPES = (ATTRIBUTES, BODY)

Filter = dict[str, object]

NOTHING: Filter = {"aws.confirmed": [{"exists": True}]}
"""A filter that lets nothing pass: no message has this header."""


def read_policy(text: str, scope: str, before: str = "") -> Filter:
    """The filter of a policy; an empty one lets everything pass.

    `before` stands in front of what is wrong with it.

    Raises:
        Fault: it is none, or too complex.
    """
    try:
        return _Policy(scope, before).read(text)
    except (Invalid, TooLarge) as error:
        raise _bad(before, error.message) from error


def _bad(before: str, what: str) -> Fault:
    return invalid(f"{before}FilterPolicy: {what}")


class _Policy:
    """A policy that is being read."""

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
        """How many combinations of values there are; each level of a body counts."""
        if depth > limits.FILTER_DEPTH_MAX:
            raise self._bad("Filter policy is too complex")
        for key, value in policy.items():
            if isinstance(value, dict):
                # What is wrong within comes first, as with SNS.
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
        """See that a test is one that SNS knows."""
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
