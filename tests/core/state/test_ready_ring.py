"""The window onto the ring of ready groups, against a list of turns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace import limits
from millrace.core.state.ready_ring import Changed, Page, ReadyRing

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.integers(0, 9), min_size=1, max_size=9)),
        st.tuples(st.just("take"), st.lists(st.integers(1, 4), min_size=1, max_size=1)),
        st.tuples(st.just("drop"), st.lists(st.integers(0, 20), min_size=1, max_size=4)),
        st.tuples(st.sampled_from(["ask", "crash"]), st.just([0])),
    ),
    max_size=40,
)


class Scene:
    """A ring, its pages as a store has them, and the turns that are expected."""

    def __init__(self) -> None:
        self.ring = ReadyRing()
        self.stored: dict[int, Page] = {}
        self.turns: list[tuple[int, int]] = []
        self.newest = 0

    def write(self, changed: Changed) -> None:
        for first, page in changed.items():
            if page is None:
                del self.stored[first]
            else:
                assert 0 < len(page) <= limits.RING_PAGE_TURNS
                self.stored[first] = page

    def put(self, groups: list[int]) -> None:
        self.write(self.ring.put(self.newest + 1, groups))
        self.turns += [(self.newest + at, group) for at, group in enumerate(groups, 1)]
        self.newest += len(groups)

    def drop(self, turns: list[int]) -> None:
        self.write(self.ring.drop(turns))
        self.turns = [one for one in self.turns if one[0] not in turns]

    def ask(self) -> None:
        low = self.ring.known_to
        if low is not None:
            found = {first: page for first, page in sorted(self.stored.items()) if first >= low}
            some = dict(list(found.items())[:2])
            known_to = max(some) + 1 if len(some) == 2 else None
            self.ring.learn(some, known_to)

    def check(self) -> None:
        known = list(self.ring)
        assert known == self.turns[: len(known)]
        assert len(self.ring) == len(known)
        assert self.ring.firsts(3) == known[:3]
        if self.ring.known_to is None:
            assert known == self.turns
        assert self.ring.may_have_one() or not self.turns
        stored = [
            (turn, group)
            for first, page in sorted(self.stored.items())
            for turn, group in enumerate(page, first)
            if group is not None and turn >= self.ring.front
        ]
        assert stored == self.turns
        assert len(known) <= 2 * limits.RING_TURNS + 2 * limits.RING_PAGE_TURNS


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, window=st.sampled_from([2, 5, 100]))
def test_a_ring_is_its_turns(steps: list[tuple[str, list[int]]], window: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RING_PAGE_TURNS", 3)
        patch.setattr(limits, "RING_TURNS", window)
        scene = Scene()
        for what, values in steps:
            known = [turn for turn, _ in scene.ring]
            if what == "put":
                scene.put(values)
            elif what == "take":
                scene.drop(known[: values[0]])
            elif what == "drop":
                scene.drop(sorted({known[at % len(known)] for at in values} if known else ()))
            elif what == "ask":
                scene.ask()
            else:
                scene.ring = ReadyRing(0, scene.ring.front)
            scene.check()
        patch.setattr(limits, "RING_TURNS", 1_000)
        while scene.ring.known_to is not None:
            scene.ask()
        scene.check()
        scene.drop([turn for turn, _ in scene.turns])
        assert not scene.stored, "a page of the past is still there"


def test_serving_in_order_writes_no_page() -> None:
    scene = Scene()
    scene.put(list(range(300)))
    assert sorted(scene.stored) == [1, 129, 257]
    assert scene.ring.drop(range(1, 101)) == {}
    assert scene.ring.front == 101
    assert scene.ring.drop(range(101, 151)) == {1: None}
    assert scene.ring.front == 151
