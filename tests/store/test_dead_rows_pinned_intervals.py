"""Rows that died under a removed pin stay visible under the older pins, and only there.

`check_store` compares stores with each other, and both fold with `core.fold`: a mistake in it would
be the same mistake in both. So the rows are written down here.
"""

from __future__ import annotations

import pytest

from millrace.core.model import Death
from millrace.core.state.fold import Reader
from tests.support.contracts.compare_stores import rows_of
from tests.support.contracts.store_subject import MemorySubject, simulated
from tests.support.contracts.story import SHARD, Make, Story


def seen(story: Story, pin: int | None) -> list[int]:
    found = rows_of(story.subject.store.scan(SHARD, 0, story.last, Reader(pin)))
    return [row.seq for row in found]


@pytest.mark.parametrize("make", [MemorySubject, simulated])
@pytest.mark.parametrize("disturbance", [None, 0, 4, 5])
def test_an_unpinned_interval_becomes_part_of_the_one_before(
    make: Make, disturbance: int | None
) -> None:
    story = Story(make)

    def disturb() -> None:
        if disturbance is not None:
            story.subject.disturb(disturbance)

    story.bodies(6)
    for pin in (1, 2, 3):
        story.pin(pin)
        story.die(Death.SETTLED, pin)
        disturb()
    assert [seen(story, pin) for pin in (1, 2, 3)] == [
        [1, 2, 3, 4, 5, 6],
        [2, 3, 4, 5, 6],
        [3, 4, 5, 6],
    ]
    story.unpin(2)
    disturb()
    assert seen(story, 1) == [1, 2, 3, 4, 5, 6], "what died under the second is the first one's"
    assert seen(story, 3) == [3, 4, 5, 6]
    story.unpin(3)
    disturb()
    assert seen(story, 1) == [1, 2, 3, 4, 5, 6]
    assert seen(story, None) == [4, 5, 6]
    story.unpin(1)
    disturb()
    assert seen(story, None) == [4, 5, 6]
    story.subject.close()
