"""Large work in small steps.

LMDB is fastest when keys come in order, and the event loop is served only while no single call
holds the GIL for long. To sort 300,000 keys is one call of 120 ms, to forget them one of 10 ms;
here they are many of half a millisecond, with a pause after each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from itertools import islice, repeat
from typing import TypeVar

from millrace import limits

T = TypeVar("T")

_PART = 2 * limits.CELLS_STEP
"""Keys that a part should have; up to four times as many are sorted by one call."""

_PARTS_MAX = 256
_SAMPLE_PER_PART = 8
"""So many keys of the sample for each part make the parts come out alike."""


def steps(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in lists of `CELLS_STEP`."""
    iterator = iter(items)
    while step := list(islice(iterator, limits.CELLS_STEP)):
        yield step


def sorted_keys(keys: list[bytes]) -> Generator[None, None, list[bytes]]:
    """Return the distinct keys in order, and leave the list empty; pause after each step."""
    if len(keys) <= 4 * _PART:
        found = sorted(keys)
        keys.clear()
        return found
    count = min(_PARTS_MAX, len(keys) // _PART) * _SAMPLE_PER_PART
    borders = sorted(keys[:: len(keys) // count])[_SAMPLE_PER_PART::_SAMPLE_PER_PART]
    parts: list[list[bytes]] = [[] for _ in range(len(borders) + 1)]
    while keys:
        step = keys[-limits.CELLS_STEP :]
        del keys[-limits.CELLS_STEP :]
        for part, key in zip(map(bisect_right, repeat(borders), step), step, strict=True):
            parts[part].append(key)
        yield
    found = []
    # The keys are distinct and each border is one of them, so every part is smaller than the whole.
    for some in parts:
        found += yield from sorted_keys(some)
        yield
    return found


def forget(items: list[T]) -> Generator[None, None, None]:
    """Empty the list; pause after each step."""
    while items:
        del items[-limits.CELLS_STEP :]
        yield
