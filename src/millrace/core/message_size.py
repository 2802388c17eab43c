"""How large messages are, where a queue bounds that (`message_bytes_max`).

Body and headers count, names and values. What the server writes into headers does not: it is no
part of what was published.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.core.block import Block
from millrace.core.column import Column

_OWN = (b"aws.", b"millrace-")
"""How the names of headers begin that the server writes."""

Flags = npt.NDArray[np.bool_]


def larger(block: Block, most: int) -> Flags:
    """Which rows of a block have more than `most` bytes; a constant number of calls."""
    sizes = np.diff(block.bodies.bounds()).astype(np.int64)
    names, values, lists = block.header_names, block.header_values, block.header_lists
    if names is None or values is None or lists is None:
        return np.greater(sizes, most)
    ends = np.frombuffer(lists, np.int32)
    of_headers = np.diff(names.bounds()).astype(np.int64) + np.diff(values.bounds())
    large: Flags = np.greater(sizes + _sums(of_headers, ends), most)
    # Nearly always there is none, and no name need be looked at.
    if large.any():
        for prefix in _OWN:
            of_headers[_begin_with(names, prefix)] = 0
        large = np.greater(sizes + _sums(of_headers, ends), most)
    return large


def _sums(of_headers: npt.NDArray[np.int64], ends: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Of the headers of each row."""
    return np.diff(np.concatenate(([0], np.cumsum(of_headers)))[ends])


def _begin_with(names: Column, prefix: bytes) -> npt.NDArray[np.int64]:
    """Which names begin so."""
    bounds = names.bounds().astype(np.int64)
    found = np.flatnonzero(np.diff(bounds) >= len(prefix))
    data = np.frombuffer(names.data, np.uint8)
    for at, letter in enumerate(prefix):
        found = found[data[bounds[found] + at] == letter]
    return found
