"""Which partition an id is in.

A queue begins with `base` equal slices of all ids. Its partitions grow one by one: in rounds, each
partition of the round before is split into two halves, in the order of their numbers. The lower
half keeps the number, and the upper half gets the next number that is free. So one more partition
changes one other, and no partition is more than twice as large as another.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from millrace.core.message_id import ID_BITS, IDS

Ids = NDArray[np.int64]


def bounds_of(at: int, count: int) -> tuple[int, int]:
    """The first id of one of `count` equal slices, and the first id behind it."""
    return at * IDS // count, (at + 1) * IDS // count


def slice_of(id_: int, count: int) -> int:
    """Which of `count` equal slices an id falls into."""
    return ((id_ + 1) * count - 1) // IDS


def parent_of(base: int, number: int) -> int:
    """The partition whose upper half is this one; it has a number of `base` or more."""
    return number - _round(base, number)


def part_of(id_: int, base: int, count: int) -> int:
    """The number of the partition, of `count`, that an id is in."""
    size = _round(base, count)
    number = int(_numbers(base, 2 * size)[slice_of(id_, 2 * size)])
    return number if number < count else number - size


def parts_of(ids: Ids, base: int, count: int) -> Ids:
    """As `part_of`, of many ids."""
    size = _round(base, count)
    # The product of an id and a number has more than 64 bits: its two parts are taken apart.
    slices = 2 * size
    high, low = ids >> 32, ids & 0xFFFF_FFFF
    at = (high * slices + ((low * slices + slices - 1) >> 32)) >> (ID_BITS - 32)
    numbers = _numbers(base, slices)[at]
    found: Ids = np.where(numbers < count, numbers, numbers - size)
    return found


def numbers_of(base: int, count: int) -> list[int]:
    """The partition of each of so many equal slices, in their order, that none has several."""
    size = _round(base, count)
    numbers = _numbers(base, 2 * size)
    found: list[int] = np.where(numbers < count, numbers, numbers - size).tolist()
    return found


def _round(base: int, count: int) -> int:
    """How many partitions there were when the round began in which they are `count`."""
    return base << ((count // base).bit_length() - 1)


@lru_cache(maxsize=64)
def _numbers(base: int, size: int) -> Ids:
    """The number of each of `size` equal slices; `size` is `base` doubled some times."""
    numbers = np.arange(base, dtype=np.int64)
    while len(numbers) < size:
        numbers = np.stack((numbers, numbers + len(numbers)), axis=1).ravel()
    return numbers
