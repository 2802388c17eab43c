"""How a sink judges what comes next."""

from __future__ import annotations

import pytest

from millrace.errors import Invalid, Refused, Stale
from millrace.sinks.boundary import Boundary, Place, Span, begins, goes_on


def _at(*seqs: int, shards: tuple[int, ...] = (7, 8), history: str = "aa") -> Boundary:
    return Boundary((Place("default", "orders", shards, history, seqs),))


def test_a_new_sink_takes_any_span() -> None:
    assert goes_on(None, Span(_at(3, 3), _at(5, 3)))


def test_a_span_that_begins_at_the_boundary_goes_on() -> None:
    assert goes_on(_at(3, 4), Span(_at(3, 4), _at(5, 4)))


@pytest.mark.parametrize("upto", [(5, 4), (4, 4), (5, 0)])
def test_a_span_that_ends_before_the_boundary_is_a_repeat(upto: tuple[int, int]) -> None:
    assert not goes_on(_at(5, 4), Span(_at(0, 0), _at(*upto)))


@pytest.mark.parametrize(
    ("after", "upto"),
    [((4, 4), (6, 6)), ((6, 6), (7, 7)), ((9, 0), (9, 1)), ((0, 9), (0, 10))],
    ids=["overlap", "gap", "same sum, repeat by sum alone", "same sum, goes on by sum alone"],
)
def test_other_spans_are_refused(after: tuple[int, int], upto: tuple[int, int]) -> None:
    with pytest.raises(Stale, match="overlap"):
        goes_on(_at(5, 5), Span(_at(*after), _at(*upto)))


def test_a_queue_that_was_made_anew_is_noticed() -> None:
    with pytest.raises(Refused, match="made anew"):
        goes_on(_at(5, 5), Span(_at(0, 0, shards=(9, 10)), _at(1, 1, shards=(9, 10))))


def test_a_queue_that_was_restored_is_noticed() -> None:
    with pytest.raises(Refused, match="restored"):
        goes_on(_at(5, 5), Span(_at(5, 5, history="bb"), _at(6, 6, history="bb")))


def test_sources_that_were_changed_are_noticed() -> None:
    two = Boundary(_at(1, 1).places * 2)
    with pytest.raises(Refused, match="sources were changed"):
        goes_on(two, Span(_at(1, 1), _at(2, 2)))


def test_a_boundary_is_stored_as_text() -> None:
    boundary = _at(5, 2**62)
    assert Boundary.of_text(boundary.text()) == boundary
    assert boundary.number == 5 + 2**62
    assert begins(boundary).number == 0
    with pytest.raises(Invalid, match="boundary"):
        Boundary.of_text("{}")
