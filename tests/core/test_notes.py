"""Notes of many subscriptions for one queue."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.core import notes

NOTES = st.dictionaries(st.sampled_from("abcdeé"), st.text("xé", max_size=4), max_size=4).map(
    lambda found: tuple(sorted(found.items()))
)


@given(known=NOTES, several=st.lists(NOTES, max_size=6), most=st.integers(1, 30))
def test_notes_are_merged_one_after_the_other_as_far_as_there_is_room(
    known: notes.Notes, several: list[notes.Notes], most: int
) -> None:
    kept = notes.merge((), known)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "NOTES_MAX", 4)
        patch.setattr(limits, "NOTES_BYTES_MAX", most)
        expected = kept
        for named in several:
            added = notes.merge(expected, named)
            if notes.check(added, most) is None:
                expected = added
        assert notes.merge_all(kept, several) == expected


def test_notes_of_20_000_subscriptions_take_milliseconds() -> None:
    """Each was merged with all that were there: making their queue took most of a second."""
    several = [((f"subscription:{number}", "x" * 36),) for number in range(20_000)]
    began = time.thread_time()
    assert len(notes.merge_all((), several)) == limits.NOTES_MAX
    assert time.thread_time() - began < 0.2
