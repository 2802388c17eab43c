"""A place names shard and seq, and sorts by them."""

from __future__ import annotations

import json

from millrace.core.model import SEQ_BITS, Place


def test_a_place_tells_shard_and_seq() -> None:
    place = Place.of(3, 17)
    assert (place.shard, place.seq) == (3, 17)
    assert (repr(place), str(place), f"{place}") == ("Place(shard=3, seq=17)", "3:17", "3:17")
    assert Place(int(place)) == place


def test_in_the_first_shard_it_is_the_seq() -> None:
    assert Place.of(0, 17) == 17


def test_places_sort_by_shard_then_by_seq() -> None:
    places = [Place.of(shard, seq) for shard in range(3) for seq in (1, 2, (1 << SEQ_BITS) - 1)]
    assert places == sorted(places)
    assert len(set(places)) == 9


def test_it_is_written_as_a_number() -> None:
    assert json.loads(json.dumps(Place.of(1, 5))) == (1 << SEQ_BITS) + 5
    assert Place.of(63, (1 << SEQ_BITS) - 1) < 2**63
