"""Filters: what passes, what is refused, and that blocks are judged as single messages are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core import filters
from millrace.core.block import Block
from millrace.core.model import Headers, Message
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
    ({"n": {"numeric": [">", 0]}}, (("n", b" 1"),), False),
    ({"n": {"numeric": [">", 0]}}, (("n", "\u0661".encode()),), False),
]


@pytest.mark.parametrize(("wanted", "headers", "passes"), PASSES)
def test_passes(wanted: dict[str, object], headers: Headers, passes: object) -> None:
    found = filters.parse(wanted)
    assert found is not None
    assert found.passes(headers) is passes
    block = Block.of_messages([Message(b"x", None, headers), Message(b"y", None, (("z", b""),))])
    assert found.mask(block).tolist()[0] is passes
    stored = filters.load(found.text)
    assert stored is not None
    assert stored.passes(headers) is passes
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
    {"type": None},
    {"type": True},
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
]


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
    with pytest.raises(TooLarge) as refused:
        filters.parse({"n": "x" * limits.FILTER_BYTES_MAX})
    assert (refused.value.field, refused.value.limit) == ("filter", limits.FILTER_BYTES_MAX)


@pytest.mark.parametrize("text", ["{", "[]", '{"a":[]}', '"x"'])
def test_a_stored_filter_that_is_none_is_damage(text: str) -> None:
    with pytest.raises(Corrupt):
        filters.load(text)


# --- Blocks as single messages --------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "ab", "c"])
WORDS = st.sampled_from(["", "x", "xy", "X", "5", "5.0", "-1", "1e3", "\xe4", "\xff"])
VALUES = WORDS.map(lambda word: word.encode("latin-1"))
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=4).map(tuple)
NUMBERS = st.one_of(st.integers(-5, 2000), st.sampled_from([0.5, 5.0, -1.0]))
SIMPLE = st.one_of(
    WORDS,
    NUMBERS,
    st.builds(lambda word: {"prefix": word}, WORDS),
    st.builds(lambda word: {"suffix": word}, WORDS),
    st.builds(lambda word: {"equals-ignore-case": word}, WORDS),
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
FILTERS = st.dictionaries(
    NAMES, st.one_of(TESTS, st.lists(TESTS, min_size=1, max_size=3)), min_size=1, max_size=3
)


@given(FILTERS, st.lists(HEADERS, max_size=12), st.booleans())
def test_a_block_is_judged_as_its_messages_are(
    wanted: dict[str, object], rows: list[Headers], decoded: object
) -> None:
    found = filters.parse(wanted)
    assert found is not None
    block = Block.of_messages([Message(b"x", None, headers) for headers in rows])
    if decoded:
        block, _ = Block.decode(memoryview(b"".join(block.encode())))
    assert found.mask(block).tolist() == [found.passes(headers) for headers in rows]


@given(FILTERS, HEADERS)
def test_what_is_stored_is_the_same_filter(wanted: dict[str, object], headers: Headers) -> None:
    found = filters.parse(wanted)
    assert found is not None
    stored = filters.load(found.text)
    assert stored is not None
    assert stored.text == found.text
    assert stored.passes(headers) == found.passes(headers)
