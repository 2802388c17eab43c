"""Places for what goes on at a time, shared among users."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Exhausted, Full
from millrace.server.auth.access import Principal, Quota
from millrace.server.quota.quotas import Quotas
from millrace.server.web.slots import Slots, Streams


def test_sec_13_a_user_has_their_quota_and_half_of_what_others_leave() -> None:
    slots = Slots("jobs", 8, "jobs running")
    for _ in range(3):
        slots.take("ada", 3)
    with pytest.raises(Exhausted) as caught:
        slots.take("ada", 3)
    assert (caught.value.field, caught.value.limit) == ("jobs", 3)
    slots.take("ada")
    with pytest.raises(Full, match="half of what others leave") as full:
        slots.take("ada")
    assert (full.value.field, full.value.limit) == ("jobs", 4)
    for _ in range(2):
        slots.take("bob")
    with pytest.raises(Full):
        slots.take("bob")
    slots.take("eve")
    slots.take("joe")
    with pytest.raises(Full, match="there are 8 jobs running"):
        slots.take("zoe")
    slots.give_back("ada")
    slots.take("zoe")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans())))
def test_what_is_taken_and_given_back_adds_up(steps: list[tuple[str, bool]]) -> None:
    slots, mine = Slots("streams", 6, "streams"), Counter[str]()
    for user, is_end in steps:
        if is_end:
            if mine[user]:
                slots.give_back(user)
                mine[user] -= 1
            continue
        before = mine.total()
        try:
            slots.take(user, 3)
        except (Exhausted, Full):
            assert mine[user] or before == 6
        else:
            mine[user] += 1
        assert slots.taken == mine.total() <= 6


def test_sec_13_front_ends_have_their_shares() -> None:
    streams = Streams(Quotas(Quota(streams=4), shares=2))
    ada = Principal("ada", ())
    for _ in range(2):
        streams.take(ada)
    with pytest.raises(Exhausted):
        streams.take(ada)
    streams.give_back(ada)
    streams.take(ada)
    assert streams.taken == 2
