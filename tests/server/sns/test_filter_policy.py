"""Filter policies: which filters they are, and what SNS refuses in which words."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.topics import filters
from millrace.core.topics.filter_operators import WORDS
from millrace.server.aws.fault import Fault
from millrace.server.sns.filter_policy import ATTRIBUTES, BODY, NOTHING, SCOPES, read_policy


def test_a_policy_is_a_filter_of_its_scope() -> None:
    policy = {"kind": ["order", {"prefix": "x"}], "$or": [{"a": [1]}, {"b": [None]}]}
    typed = {"types": "aws.types", "arrays": "aws.arrays", "headers": policy}
    assert read_policy(json.dumps(policy), ATTRIBUTES) == {"$typed": typed}
    assert read_policy(json.dumps(policy), BODY) == {"$body": policy}
    for empty in ("", "{}"):
        assert read_policy(empty, ATTRIBUTES) == {}


def test_nothing_lets_nothing_pass() -> None:
    found = filters.parse(NOTHING)
    assert found is not None
    assert not found.passes((("kind", b"order"),), b"{}")


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ([], "Filter policy must be a JSON object"),
        ({"a": "x"}, '"a" must be an object or an array'),
        ({"a": []}, "Empty arrays are not allowed"),
        ({name: ["x"] for name in "abcdef"}, "Filter policy can not have more than 5 keys"),
        ({"a": list(range(15)), "b": list(range(11))}, "Filter policy is too complex"),
        ({"a": [["x"]]}, "Match value must be String, number, true, false, or null"),
        ({"a": [{"begins": "x"}]}, "Unrecognized match type begins"),
        ({"a": [{"prefix": "x", "suffix": "y"}]}, "Only one key allowed in match expression"),
        ({"a": [{"prefix": 5}]}, "prefix match pattern must be a string"),
        ({"a": [{"wildcard": 5}]}, "wildcard match pattern must be a string"),
        ({"a": [{"exists": 1}]}, "exists match pattern must be either true or false."),
        ({"a": [{"numeric": []}]}, "Invalid member in numeric match: ]"),
        ({"a": [{"numeric": 5}]}, "Invalid member in numeric match: ]"),
        ({"a": [{"numeric": [5]}]}, "Invalid member in numeric match: 5"),
        ({"a": [{"numeric": ["~", 5]}]}, "Unrecognized numeric range operator: ~"),
        ({"a": [{"numeric": ["="]}]}, "Value of equals must be numeric"),
        ({"a": [{"numeric": ["<", "5"]}]}, "Value of < must be numeric"),
        ({"a": [{"numeric": ["<", 5, ">", 1]}]}, "Too many elements in numeric expression"),
        ({"a": [{"numeric": [">", 5, 6, 7]}]}, "Bad value in numeric range: 6"),
        ({"a": [{"numeric": [">", 5, ">", 7]}]}, "Bad numeric range operator: >"),
        ({"a": [{"numeric": [">", 5, "<", 5]}]}, "Bottom must be less than top"),
        (
            {"a": [{"numeric": [">", 5, "<", 7, "<", 8]}]},
            "Too many terms in numeric range expression",
        ),
        ({"a": [{"cidr": 5}]}, "prefix match pattern must be a string"),
        ({"a": [{"cidr": "10.0.0.0"}]}, "Malformed CIDR, one '/' required"),
        ({"a": [{"cidr": "10.0.0.0/x"}]}, "Malformed CIDR, mask bits must be an integer"),
        ({"a": [{"cidr": "ten/8"}]}, "Nonstandard IP address: ten"),
        ({"a": [{"anything-but": []}]}, "Empty arrays are not allowed"),
        ({"a": [{"anything-but": {"numeric": 5}}]}, "Unsupported anything-but pattern: numeric"),
        ({"a": [{"anything-but": [{"prefix": "x"}]}]}, "Unsupported anything-but pattern: prefix"),
        ({"a": [{"wildcard": "a**b"}]}, "the filter has two stars in a row"),
    ],
    ids=str,
)
def test_a_bad_policy_is_refused(policy: object, text: str) -> None:
    with pytest.raises(Fault) as refused:
        read_policy(json.dumps(policy), BODY, "Attributes Reason: ")
    fault = refused.value
    assert (fault.query, fault.status) == ("InvalidParameter", 400)
    assert fault.message.startswith(f"Invalid parameter: Attributes Reason: FilterPolicy: {text}")


def test_values_of_a_body_count_by_how_deep_they_are() -> None:
    values = ["a", "b", "c", "d"]
    fits = {"a": {"b": {"c": values}}, "d": {"e": values[:3]}}
    assert read_policy(json.dumps(fits), BODY)
    complex = {"a": {"b": {"c": values}}, "d": {"e": values}, "f": {"g": values[:2]}}
    with pytest.raises(Fault) as refused:
        read_policy(json.dumps(complex), BODY)
    assert refused.value.message == "Invalid parameter: FilterPolicy: Filter policy is too complex"
    deep: object = ["x"]
    for _ in range(40):
        deep = {"a": deep}
    with pytest.raises(Fault):
        read_policy(json.dumps(deep), BODY)


def test_choices_are_added_not_multiplied() -> None:
    many = [str(number) for number in range(70)]
    assert read_policy(json.dumps({"$or": [{"a": many}, {"b": many}]}), ATTRIBUTES)
    with pytest.raises(Fault):
        read_policy(json.dumps({"a": many, "b": many}), ATTRIBUTES)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*WORDS, "$or", "$body", "a", ""]), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "$or"]), JSON), st.sampled_from(SCOPES))
def test_any_policy_is_a_filter_or_refused(policy: dict[str, object], scope: str) -> None:
    found: object = policy
    with suppress(Fault):
        found = read_policy(json.dumps(policy), scope)
        assert (filters.text(found) != "") is bool(policy)
    assert isinstance(found, dict)


def test_as_many_values_as_sns_allows_fit() -> None:
    policy = {"a": [str(number) for number in range(150)], **{name: ["x"] for name in "bcde"}}
    assert read_policy(json.dumps(policy), ATTRIBUTES)
