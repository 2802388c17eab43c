"""Filters: which messages pass, which filters are refused; blocks are judged as single messages
are."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core.format.block import Block
from millrace.core.model import Headers, NewMessage
from millrace.core.topics import filters
from millrace.errors import Corrupt, Invalid, TooLarge

PASSES: list[tuple[dict[str, object], Headers, bool]] = [
    ({"type": "order"}, (("type", b"order"),), True),
    ({"type": b"order"}, (("type", b"order"),), True),
    ({"type": "order"}, (("type", b"Order"),), False),
    ({"type": "order"}, (("type", b"orders"),), False),
    ({"type": "order"}, (), False),
    ({"type": ["order", "return"]}, (("type", b"return"),), True),
    ({"type": ["order", "return"]}, (("type", b"refund"),), False),
    ({"type": "order"}, (("type", b"return"), ("type", b"order")), True),
    ({"type": "order", "to": "eu"}, (("type", b"order"), ("to", b"eu")), True),
    ({"type": "order", "to": "eu"}, (("type", b"order"), ("to", b"us")), False),
    ({"to": {"prefix": "eu-"}}, (("to", b"eu-west"),), True),
    ({"to": {"prefix": "eu-"}}, (("to", b"us-eu-"),), False),
    ({"to": {"suffix": "-west"}}, (("to", b"eu-west"),), True),
    ({"to": {"suffix": "-west"}}, (("to", b"eu-west-1"),), False),
    ({"to": {"equals-ignore-case": "EU"}}, (("to", b"eU"),), True),
    ({"to": {"equals-ignore-case": "EU"}}, (("to", b"\xff"),), False),
    ({"to": {"exists": True}}, (("to", b""),), True),
    ({"to": {"exists": True}}, (("from", b""),), False),
    ({"to": {"exists": False}}, (("from", b""),), True),
    ({"to": {"exists": False}}, (("to", b""),), False),
    ({"to": [{"exists": False}, "eu"]}, (("to", b"eu"),), True),
    ({"to": [{"exists": False}, "eu"]}, (("to", b"us"),), False),
    ({"to": {"anything-but": "eu"}}, (("to", b"us"),), True),
    ({"to": {"anything-but": "eu"}}, (("to", b"eu"),), False),
    ({"to": {"anything-but": "eu"}}, (), False),
    ({"to": {"anything-but": ["eu", "us"]}}, (("to", b"eu"), ("to", b"us")), False),
    ({"to": {"anything-but": ["eu", "us"]}}, (("to", b"eu"), ("to", b"ap")), True),
    ({"to": {"anything-but": {"prefix": "eu-"}}}, (("to", b"eu-west"),), False),
    ({"to": {"anything-but": {"numeric": [">", 5]}}}, (("to", b"5"),), True),
    ({"n": 5}, (("n", b"5"),), True),
    ({"n": 5}, (("n", b"5.0"),), True),
    ({"n": 5}, (("n", b"05"),), True),
    ({"n": 5}, (("n", b"five"),), False),
    ({"n": "5"}, (("n", b"5.0"),), False),
    ({"n": {"numeric": ["=", 5]}}, (("n", b"5e0"),), True),
    ({"n": {"numeric": [">", 5]}}, (("n", b"5"),), False),
    ({"n": {"numeric": [">=", 5]}}, (("n", b"5"),), True),
    ({"n": {"numeric": ["<", 5]}}, (("n", b"-7.25"),), True),
    ({"n": {"numeric": ["<=", 5]}}, (("n", b"5.01"),), False),
    ({"n": {"numeric": [">", 0, "<=", 5]}}, (("n", b"0"),), False),
    ({"n": {"numeric": [">", 0, "<=", 5]}}, (("n", b"5"),), True),
    ({"n": {"numeric": [">", 2**62]}}, (("n", str(2**62 + 1).encode()),), True),
    ({"n": {"numeric": [">", 0]}}, (("n", b"1" * 65),), False),
    ({"n": 100.123456789}, (("n", b"100.1234567"),), True),
    ({"n": 100.123456789}, (("n", b"100.1234"),), False),
    ({"n": {"numeric": [">", 0]}}, (("n", b"1e999"),), True),
    ({"n": {"anything-but": [0.1]}}, (("n", b"0.1000001"),), False),
    ({"n": {"numeric": [">", 0]}}, (("n", b" 1"),), False),
    ({"n": {"numeric": [">", 0]}}, (("n", "\u0661".encode()),), False),
    ({"to": {"wildcard": "eu-*-1"}}, (("to", b"eu-west-1"),), True),
    ({"to": {"wildcard": "eu-*-1"}}, (("to", b"eu-1"),), False),
    ({"to": {"wildcard": "eu-*-1"}}, (("to", b"eu--1"),), True),
    ({"to": {"wildcard": "*"}}, (("to", b""),), True),
    ({"to": {"wildcard": "*ab*ab*"}}, (("to", b"xabyabz"),), True),
    ({"to": {"wildcard": "*ab*ab*"}}, (("to", b"xabz"),), False),
    ({"to": {"wildcard": "a*ba"}}, (("to", b"aba"),), True),
    ({"to": {"wildcard": "ab*ba"}}, (("to", b"aba"),), False),
    ({"to": {"wildcard": "a\\*b"}}, (("to", b"a*b"),), True),
    ({"to": {"wildcard": "a\\*b"}}, (("to", b"axb"),), False),
    ({"to": {"wildcard": "a\\\\*"}}, (("to", b"a\\b"),), True),
    ({"ip": {"cidr": "10.0.0.0/24"}}, (("ip", b"10.0.0.255"),), True),
    ({"ip": {"cidr": "10.0.0.7/24"}}, (("ip", b"10.0.0.255"),), True),
    ({"ip": {"cidr": "10.0.0.0/24"}}, (("ip", b"10.0.1.0"),), False),
    ({"ip": {"cidr": "10.0.0.0/24"}}, (("ip", b"ten"),), False),
    ({"ip": {"cidr": "10.0.0.0/24"}}, (("ip", b"\xff"),), False),
    ({"ip": {"cidr": "10.0.0.0/24"}}, (("ip", b"::1"),), False),
    ({"ip": {"cidr": "2001:db8::/32"}}, (("ip", b"2001:db8::5"),), True),
    ({"f": True}, (("f", b"true"),), True),
    ({"f": False}, (("f", b"true"),), False),
    ({"f": [None]}, (("f", b"null"),), True),
    ({"f": [None]}, (("f", b""),), False),
    ({"to": {"anything-but": {"prefix": ["eu-", "us-"]}}}, (("to", b"us-1"),), False),
    ({"to": {"anything-but": {"suffix": "-1"}}}, (("to", b"us-1"),), False),
    ({"to": {"anything-but": {"wildcard": ["a*c", "b*"]}}}, (("to", b"axd"),), True),
    ({"to": {"anything-but": {"equals-ignore-case": "EU"}}}, (("to", b"eu"),), False),
    ({"n": {"anything-but": [5, "x"]}}, (("n", b"5.0"),), False),
    ({"$or": [{"a": "1"}, {"b": "2"}]}, (("b", b"2"),), True),
    ({"$or": [{"a": "1"}, {"b": "2"}]}, (("a", b"2"), ("b", b"1")), False),
    ({"c": "3", "$or": [{"a": "1"}, {"b": "2"}]}, (("b", b"2"),), False),
    ({"$or": [{"a": "1", "b": "2"}, {"$or": [{"c": 1}, {"d": 1}]}]}, (("d", b"1"),), True),
    ({"$or": ["x", "y"]}, (("$or", b"y"),), True),
    ({"$or": [{"prefix": "x"}, {"suffix": "y"}]}, (("$or", b"xz"),), True),
    ({"$body": ["y"]}, (("$body", b"y"),), True),
]


@pytest.mark.parametrize(("wanted", "headers", "passes"), PASSES)
def test_passes(wanted: dict[str, object], headers: Headers, passes: object) -> None:
    found = filters.parse(wanted)
    assert found is not None
    assert found.passes(headers, b"x") is passes
    block = Block.of_messages(
        [NewMessage(b"x", None, headers), NewMessage(b"y", None, (("z", b""),))]
    )
    assert found.mask(block).tolist()[0] is passes
    stored = filters.load(found.text)
    assert stored is not None
    assert stored.passes(headers, b"x") is passes
    assert stored.text == found.text


@pytest.mark.parametrize("wanted", [None, {}])
def test_an_empty_filter_lets_everything_pass(wanted: object) -> None:
    assert filters.parse(wanted) is None
    assert filters.text(wanted) == ""
    assert filters.load("") is None


BAD: list[object] = [
    5,
    "type",
    [("type", "order")],
    {5: "order"},
    {"": "order"},
    {"\ud800": "order"},
    {"type": []},
    {"type": {}},
    {"type": b"\xff"},
    {"type": "\ud800"},
    {"type": {"prefix": "a", "suffix": "b"}},
    {"type": {"prefix": 5}},
    {"type": {"begins": "a"}},
    {"type": {5: "a"}},
    {"type": {"exists": "yes"}},
    {"type": {"anything-but": []}},
    {"type": {"anything-but": {"exists": True}}},
    {"type": {"anything-but": {"anything-but": "a"}}},
    {"type": float("nan")},
    {"type": float("inf")},
    {"type": 2**70},
    {"type": {"numeric": 5}},
    {"type": {"numeric": []}},
    {"type": {"numeric": [">"]}},
    {"type": {"numeric": ["~", 5]}},
    {"type": {"numeric": [">", "5"]}},
    {"type": {"numeric": [">", True]}},
    {"type": {"numeric": ["<", 5, ">", 0]}},
    {"type": {"numeric": [">", 0, "<", 5, "<", 6]}},
    {"type": {"wildcard": 5}},
    {"type": {"wildcard": "a**b"}},
    {"type": {"wildcard": "a\\b"}},
    {"type": {"wildcard": "a\\"}},
    {"type": {"cidr": "10.0.0.0"}},
    {"type": {"cidr": "10.0.0.0/33"}},
    {"type": {"cidr": "10.0.0/24"}},
    {"type": {"cidr": 10}},
    {"type": {"cidr": "\u0661.0.0.0/8"}},
    {"type": {"anything-but": {"prefix": []}}},
    {"type": {"anything-but": {"exists": [True]}}},
    {"type": {"anything-but": {"begins": ["a"]}}},
    {"$or": [{"a": "x"}]},
    {"$or": [{"a": "x"}, {}]},
    {"$or": [{"a": "x"}, {"prefix": "y"}]},
    {"$or": [{"a": "x"}, "y"]},
    {"$body": {}},
    {"$body": {"a": {}}},
    {"$body": {"a": []}},
    {"$body": {"a": [{"begins": "x"}]}},
    {"$body": {"": "x"}},
]

BODIES: list[tuple[dict[str, object], bytes | None, bool]] = [
    ({"kind": "order"}, b'{"kind": "order"}', True),
    ({"kind": ["card", "order"]}, b'{"kind": "order", "more": {}}', True),
    ({"kind": "order"}, b'{"kind": "card"}', False),
    ({"kind": "order"}, b"{}", False),
    ({"kind": "order"}, b'["order"]', False),
    ({"kind": "order"}, b'"order"', False),
    ({"kind": "order"}, b'{"kind": "order"', False),
    ({"kind": "order"}, b"\xff", False),
    ({"kind": "order"}, b"", False),
    ({"kind": "order"}, None, False),
    ({"kind": {"exists": ["x"]}}, b'{"kind": {"exists": "x"}}', True),
    ({"kind": [{"exists": False}]}, b"no JSON", False),
    ({"kind": [{"exists": False}]}, b"{}", True),
    ({"kind": [{"exists": False}]}, b'{"kind": null}', False),
    ({"kind": [{"exists": False}]}, b'{"kind": []}', True),
    ({"kind": [{"exists": True}]}, b'{"kind": null}', True),
    ({"kind": [{"exists": True}]}, b'{"kind": {"a": 1}}', False),
    ({"kind": [None]}, b'{"kind": null}', True),
    ({"kind": [None]}, b'{"kind": "null"}', False),
    ({"kind": [True]}, b'{"kind": true}', True),
    ({"kind": [True]}, b'{"kind": 1}', False),
    ({"kind": [1]}, b'{"kind": true}', False),
    ({"kind": ["true"]}, b'{"kind": true}', False),
    ({"n": [5]}, b'{"n": 5.0}', True),
    ({"n": [5]}, b'{"n": "5"}', False),
    ({"n": ["5"]}, b'{"n": 5}', False),
    ({"n": [{"numeric": [">", 5]}]}, b'{"n": 5.5}', True),
    ({"n": [{"prefix": "5"}]}, b'{"n": 5}', False),
    ({"n": [{"anything-but": ["5"]}]}, b'{"n": 5}', True),
    ({"n": [{"anything-but": [5]}]}, b'{"n": 5}', False),
    ({"a": {"b": {"c": ["x"]}}}, b'{"a": {"b": {"c": "x"}}}', True),
    ({"a": {"b": {"c": ["x"]}}}, b'{"a": {"b": "x"}}', False),
    ({"a": {"b": ["x"]}, "c": ["y"]}, b'{"a": {"b": "x"}, "c": "z"}', False),
    ({"tags": ["x"]}, b'{"tags": ["y", "x"]}', True),
    ({"tags": ["x"]}, b'{"tags": [["y"], ["x"]]}', True),
    ({"tags": ["x"]}, b'{"tags": ["y"]}', False),
    ({"a": {"b": ["x"]}}, b'{"a": [{"b": "y"}, {"b": "x"}]}', True),
    ({"a": {"b": ["x"], "c": ["y"]}}, b'{"a": [{"b": "x"}, {"c": "y"}]}', True),
    ({"$or": [{"a": ["x"]}, {"b": ["y"]}]}, b'{"b": "y"}', True),
    ({"$or": [{"a": ["x"]}, {"b": ["y"]}]}, b'{"a": "y"}', False),
    ({"a": {"$or": [{"b": ["x"]}, {"c": ["y"]}]}}, b'{"a": {"c": "y"}}', True),
    ({"a": {"$or": [{"b": ["x"]}, {"c": ["y"]}]}}, b'{"c": "y"}', False),
    ({"a.b": ["x"]}, b'{"a": {"b": "x"}}', True),
    ({"a.b": ["x"]}, b'{"a.b": "x"}', True),
    ({"a": {"b": ["x"]}}, b'{"a.b": "x"}', True),
    ({"a.b": ["x"]}, b'{"a": {"c": "x"}, "b": "x"}', False),
    ({"a.b": ["x"]}, b'{"a": "x"}', False),
    ({"a.b.c": ["x"]}, b'{"a": {"b": {"c": "x"}}}', True),
    ({"a.b.c": ["x"]}, b'{"a.b": {"c": "x"}}', True),
    ({"a.b.c": ["x"]}, b'{"a": {"b.c": "x"}}', True),
    ({"a": {"b.c": ["x"]}}, b'{"a.b": [{"c": "y"}, {"c": "x"}]}', True),
    ({"a.b": ["x"]}, b'{"a.b": "y", "a": {"b": "x"}}', True),
    ({"a.b": [{"exists": False}]}, b'{"a.b": "y", "a": {}}', False),
    ({"a.b": [{"exists": False}]}, b'{"a.b": {}, "a": {}}', True),
    ({"a.b": [{"exists": False}]}, b'{"a": {"b": "y"}}', False),
    ({"a.b": [{"exists": False}]}, b'{"a": [{"b": "y"}, {}]}', True),
    ({"a..b": ["x"]}, b'{"a": {"": {"b": "x"}}}', True),
    ({".": ["x"]}, b'{"": {"": "x"}}', True),
    ({".".join("a" * 32): ["x"]}, b'{"a":' * 32 + b'"x"' + b"}" * 32, True),
    # Dots of a longer path are parts of names.
    ({".".join("a" * 33): ["x"]}, b'{"a":' * 33 + b'"x"' + b"}" * 33, False),
    ({".".join("a" * 33): ["x"]}, b'{"' + b".".join([b"a"] * 33) + b'": "x"}', True),
    ({"a": {".".join("a" * 33): ["x"]}}, b'{"a": {"' + b".".join([b"a"] * 33) + b'": "x"}}', True),
    ({"a." + "b" * 1100: ["x"]}, b'{"a": {"' + b"b" * 1100 + b'": "x"}}', False),
    ({"a." + "b" * 1100: ["x"]}, b'{"a.' + b"b" * 1100 + b'": "x"}', True),
    ({"n": [0.1]}, b'{"n": 0.1000049}', True),
    ({"n": [0.1]}, b'{"n": 0.10002}', False),
    ({"n": [{"numeric": [">", 5]}]}, b'{"n": 5.000001}', False),
    ({"n": [{"numeric": [">", 5]}]}, b'{"n": 5.00001}', True),
    ({"n": [{"numeric": ["<=", 5]}]}, b'{"n": 5.000001}', True),
    ({"n": [{"numeric": [">", 9007199254740992]}]}, b'{"n": 9007199254740993}', True),
    ({"n": [{"numeric": [">", 0]}]}, b'{"n": 1e308}', True),
    ({"a": ["x"]}, b'{"a": "x", "b": ' + b"[" * 5000 + b"]" * 5000 + b"}", False),
]


@pytest.mark.parametrize(("wanted", "body", "passes"), BODIES)
def test_what_is_in_a_body(wanted: dict[str, object], body: bytes | None, passes: object) -> None:
    found = filters.parse({"$body": wanted})
    assert found is not None
    assert found.passes((), body) is passes
    block = Block.of_messages([NewMessage(body, b"k"), NewMessage(b"{}", b"k")])
    assert found.mask(block).tolist()[0] is passes
    stored = filters.load(found.text)
    assert stored is not None
    assert (stored.passes((), body), stored.text) == (passes, found.text)


def test_headers_and_body_may_both_be_asked_for() -> None:
    found = filters.parse({"kind": "order", "$body": {"n": [1]}})
    assert found is not None
    assert found.passes((("kind", b"order"),), b'{"n": 1}')
    assert not found.passes((), b'{"n": 1}')
    assert not found.passes((("kind", b"order"),), b'{"n": 2}')
    either = filters.parse({"$or": [{"kind": "order"}, {"$body": {"n": [1]}}]})
    assert either is not None
    assert either.passes((), b'{"n": 1}')
    assert either.passes((("kind", b"order"),), b"no JSON")
    assert not either.passes((), b"no JSON")


TYPES = ("types", b'{"number":"Number","int":"Number.int","data":"Binary","list":"String.Array"}')
ARRAYS = ("arrays", b'{"list":"[\\"a\\",5,true,null]"}')
OF_TYPES: Headers = (
    ("text", b"5"),
    ("number", b"5"),
    ("int", b"7.50"),
    ("data", b"a"),
    ("list", b"a"),
    ("list", b"5"),
    TYPES,
    ARRAYS,
)


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        ({"text": ["5"]}, True),
        ({"text": [5]}, False),
        ({"text": [{"numeric": [">", 1]}]}, False),
        ({"text": [{"anything-but": [5]}]}, True),
        ({"number": [5]}, True),
        ({"number": ["5"]}, False),
        ({"number": [{"prefix": "5"}]}, False),
        ({"number": [{"anything-but": ["5"]}]}, True),
        ({"number": [{"anything-but": [5]}]}, False),
        ({"int": [{"numeric": [">", 7, "<=", 7.5]}]}, True),
        ({"data": ["a"]}, False),
        ({"data": [{"exists": False}]}, True),
        ({"list": ["a"]}, True),
        ({"list": [5]}, True),
        ({"list": ["5"]}, False),
        ({"list": [True]}, True),
        ({"list": ["true"]}, False),
        ({"list": [None]}, True),
        ({"none": [{"exists": False}]}, True),
        ({"none": [{"exists": True}]}, False),
        ({"text": ["5"], "number": ["5"]}, False),
        ({"$or": [{"text": [5]}, {"number": [5]}]}, True),
    ],
    ids=str,
)
def test_headers_may_have_types(wanted: dict[str, object], passes: object) -> None:
    typed = {"types": "types", "arrays": "arrays", "headers": wanted}
    found = filters.parse({"$typed": typed})
    assert found is not None
    assert found.passes(OF_TYPES, b"") is passes
    block = Block.of_messages([NewMessage(b"x", None, OF_TYPES), NewMessage(b"x")])
    assert found.mask(block).tolist()[0] is passes
    stored = filters.load(found.text)
    assert stored is not None
    assert (stored.passes(OF_TYPES, b""), stored.text) == (passes, found.text)


@pytest.mark.parametrize(
    "typed",
    [
        {},
        {"types": "t"},
        {"headers": {"a": ["x"]}},
        {"types": "", "headers": {"a": ["x"]}},
        {"types": "t", "arrays": 5, "headers": {"a": ["x"]}},
        {"types": "t", "headers": {}},
        {"types": "t", "headers": {"a": {"b": ["x"]}}},
        {"types": "t", "headers": {"a": ["x"]}, "more": 1},
    ],
    ids=str,
)
def test_bad_types_are_refused(typed: object) -> None:
    with pytest.raises(Invalid) as refused:
        filters.parse({"$typed": typed})
    assert refused.value.field == "filter"


@pytest.mark.parametrize("wanted", BAD, ids=repr)
def test_a_bad_filter_is_refused_with_its_field(wanted: object) -> None:
    with pytest.raises(Invalid) as refused:
        filters.parse(wanted)
    assert refused.value.field == "filter"


def test_a_filter_that_is_too_large_is_refused_with_the_limit() -> None:
    most = limits.FILTER_TESTS_MAX
    assert filters.parse({"n": list(range(most))}) is not None
    for many in (
        {"n": list(range(most + 1))},
        {"n": {"anything-but": list(range(most))}},
        {f"h{number}": "x" for number in range(most + 1)},
    ):
        with pytest.raises(TooLarge) as refused:
            filters.parse(many)
        assert (refused.value.field, refused.value.limit) == ("filter", most)
    choices = [{"a": list(range(most // 2))}, {"b": list(range(most // 2 + 1))}]
    with pytest.raises(TooLarge):
        filters.parse({"$or": choices})
    with pytest.raises(TooLarge):
        filters.parse({"n": {"anything-but": {"prefix": ["x"] * most}}})
    stars = "a*" * limits.FILTER_STARS_MAX
    assert filters.parse({"n": {"wildcard": stars}}) is not None
    with pytest.raises(TooLarge) as refused:
        filters.parse({"n": {"wildcard": stars + "a*"}})
    assert (refused.value.field, refused.value.limit) == ("filter", limits.FILTER_STARS_MAX)
    deep: object = ["x"]
    for _ in range(limits.FILTER_DEPTH_MAX - 1):
        deep = {"a": deep}
    assert filters.parse({"$body": deep}) is not None
    with pytest.raises(TooLarge) as refused:
        filters.parse({"$body": {"a": deep}})
    assert (refused.value.field, refused.value.limit) == ("filter", limits.FILTER_DEPTH_MAX)
    with pytest.raises(TooLarge) as refused:
        filters.parse({"n": "x" * limits.FILTER_BYTES_MAX})
    assert (refused.value.field, refused.value.limit) == ("filter", limits.FILTER_BYTES_MAX)


@pytest.mark.parametrize("text", ["{", "[]", '{"a":[]}', '"x"'])
def test_a_stored_filter_that_is_none_is_damage(text: str) -> None:
    with pytest.raises(Corrupt):
        filters.load(text)


# --- Blocks as single messages --------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "ab", "a.b"])
WORDS = st.sampled_from(["", "x", "xy", "X", "5", "5.0", "-1", "1e3", "true", "\xe4", "\xff"])
VALUES = WORDS.map(lambda word: word.encode("latin-1"))
KINDS = st.dictionaries(NAMES, st.sampled_from(["String", "Number", "Number.x", "Binary"]))
TOLD = st.one_of(
    st.builds(lambda kinds: ("t", msgspec.json.encode(kinds)), KINDS),
    st.sampled_from([("l", b'{"a": "[1, \\"x\\", null]"}'), ("l", b'{"b": 5}'), ("t", b"no")]),
)
HEADERS = st.lists(st.one_of(st.tuples(NAMES, VALUES), TOLD), max_size=5).map(tuple)
NUMBERS = st.one_of(st.integers(-5, 2000), st.sampled_from([0.5, 5.0, -1.0]))
SIMPLE = st.one_of(
    WORDS,
    NUMBERS,
    st.sampled_from([True, False, None]),
    st.builds(lambda word: {"prefix": word}, WORDS),
    st.builds(lambda word: {"suffix": word}, WORDS),
    st.builds(lambda word: {"equals-ignore-case": word}, WORDS),
    st.sampled_from(["*", "x*", "*y", "5*0", "x"]).map(lambda word: {"wildcard": word}),
    st.just({"cidr": "10.0.0.0/8"}),
    st.builds(
        lambda sign, number: {"numeric": [sign, number]},
        st.sampled_from(["=", "<", "<=", ">", ">="]),
        NUMBERS,
    ),
    st.builds(lambda low, high: {"numeric": [">", low, "<=", high]}, NUMBERS, NUMBERS),
)
TESTS = st.one_of(
    SIMPLE,
    st.builds(lambda flag: {"exists": flag}, st.booleans()),
    st.builds(lambda tests: {"anything-but": tests}, st.lists(SIMPLE, min_size=1, max_size=3)),
)
LISTS = st.lists(TESTS, min_size=1, max_size=3)
FIELDS = st.recursive(
    st.dictionaries(NAMES, LISTS, min_size=1, max_size=2),
    lambda inner: st.one_of(
        st.dictionaries(NAMES, inner, min_size=1, max_size=2),
        st.lists(inner, min_size=2, max_size=3).map(lambda many: {"$or": many}),
    ),
    max_leaves=4,
)
PLAIN = st.dictionaries(NAMES, st.one_of(TESTS, LISTS), min_size=1, max_size=3)
SETS = st.one_of(
    PLAIN,
    st.builds(lambda fields: {"$body": fields}, FIELDS),
    st.builds(lambda plain, fields: {**plain, "$body": fields}, PLAIN, FIELDS),
    st.builds(
        lambda plain, typed: {**plain, "$typed": {"types": "t", "arrays": "l", "headers": typed}},
        PLAIN,
        PLAIN,
    ),
)
FILTERS = st.one_of(
    SETS,
    st.builds(
        lambda outer, many: {**outer, "$or": many}, SETS, st.lists(SETS, min_size=2, max_size=3)
    ),
)
JSON = st.recursive(
    st.one_of(WORDS, NUMBERS, st.sampled_from([True, False, None])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=6,
)
DOCUMENTS = st.one_of(
    st.dictionaries(NAMES, JSON, max_size=3).map(msgspec.json.encode),
    JSON.map(msgspec.json.encode),
    st.sampled_from([None, b"", b"{", b"\xff"]),
)
ROWS = st.lists(st.tuples(HEADERS, DOCUMENTS), max_size=12)


def leaves(value: object, path: str = "") -> list[tuple[str, object]]:
    """Return the path and value of all leaves of a document."""
    if isinstance(value, dict):
        return [one for name in value for one in leaves(value[name], f"{path}.{name}")]
    if isinstance(value, list):
        return [one for element in value for one in leaves(element, path)]
    return [(path[1:], value)]


DOTTED = st.sampled_from(["a", "b", "a.b", "b.a", "a.a.b"])
NESTED = st.recursive(
    st.sampled_from(["x", "y"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(DOTTED, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(DOTTED, NESTED, max_size=3), st.lists(DOTTED, min_size=1, max_size=3))
def test_a_field_is_at_its_path_however_its_names_are_joined(
    body: dict[str, object], names: list[str]
) -> None:
    path = ".".join(names)
    wanted: dict[str, object] = {names[-1]: ["x"]}
    for name in reversed(names[:-1]):
        wanted = {name: wanted}
    for policy in (wanted, {path: ["x"]}):
        found = filters.parse({"$body": policy})
        assert found is not None
        assert found.passes((), msgspec.json.encode(body)) is ((path, "x") in leaves(body))


@given(FILTERS, ROWS, st.booleans())
def test_a_block_is_judged_as_its_messages_are(
    wanted: dict[str, object], rows: list[tuple[Headers, bytes | None]], decoded: object
) -> None:
    found = filters.parse(wanted)
    assert found is not None
    block = Block.of_messages([NewMessage(body, b"k", headers) for headers, body in rows])
    if decoded:
        block, _ = Block.decode(memoryview(b"".join(block.encode())))
    assert found.mask(block).tolist() == [found.passes(*row) for row in rows]


@given(FILTERS, HEADERS, DOCUMENTS)
def test_what_is_stored_is_the_same_filter(
    wanted: dict[str, object], headers: Headers, body: bytes | None
) -> None:
    found = filters.parse(wanted)
    assert found is not None
    stored = filters.load(found.text)
    assert stored is not None
    assert stored.text == found.text
    assert stored.passes(headers, body) == found.passes(headers, body)


@given(
    st.lists(st.sampled_from(["a", "b", "ab", "*"]), max_size=6),
    st.text(alphabet="ab", max_size=8),
)
def test_a_wildcard_is_as_a_regular_expression_says(parts: list[str], value: str) -> None:
    pattern = re.sub(r"\*+", "*", "".join(parts))
    found = filters.parse({"n": {"wildcard": pattern}})
    assert found is not None
    expected = re.fullmatch(pattern.replace("*", "[ab]*"), value) is not None
    assert found.passes((("n", value.encode()),), b"") == expected
