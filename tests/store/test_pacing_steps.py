"""Large work in small steps has the same result as in one call."""

from __future__ import annotations

import random
from collections.abc import Generator

import pytest

from millrace import limits
from millrace.store.pacing import clear_in_steps, run_at_once, sorted_keys, steps


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 2_048, 2_049, 20_000, 300_000])
@pytest.mark.parametrize("order", ["random", "rising", "falling", "prefixed"])
def test_keys_are_sorted(count: int, order: str) -> None:
    keys = [number.to_bytes(4, "big") for number in range(count)]
    if order == "random":
        random.Random(count).shuffle(keys)
    elif order == "falling":
        keys.reverse()
    elif order == "prefixed":
        keys = [b"same" * 4 + key.lstrip(b"\0") for key in keys]
    expected = sorted(keys)
    pauses = 0

    def counted() -> Generator[None, None, list[bytes]]:
        nonlocal pauses
        work = sorted_keys(keys)
        while True:
            try:
                next(work)
            except StopIteration as end:
                found: list[bytes] = end.value
                return found
            pauses += 1
            yield

    assert run_at_once(counted()) == expected
    assert keys == []
    assert pauses >= count // limits.CELLS_STEP or count <= 8 * limits.CELLS_STEP


def test_crowded_keys_are_sorted() -> None:
    # Half of the keys share their first seven bytes with no other.
    chance = random.Random(7)
    keys = list({chance.randbytes(8) for _ in range(50_000)})
    keys += [b"\x80" * 7 + number.to_bytes(3, "big") for number in range(50_000)]
    expected = sorted(keys)
    assert run_at_once(sorted_keys(keys)) == expected


def test_steps_have_their_size() -> None:
    items = list(range(3 * limits.CELLS_STEP + 1))
    found = list(steps(items))
    assert [len(step) for step in found] == [limits.CELLS_STEP] * 3 + [1]
    assert [item for step in found for item in step] == items
    assert list(steps([])) == []


def test_a_list_is_forgotten_in_steps() -> None:
    items = list(range(3 * limits.CELLS_STEP + 1))
    left = [len(items) for _ in clear_in_steps(items)]
    assert left == [2 * limits.CELLS_STEP + 1, limits.CELLS_STEP + 1, 1, 0]
