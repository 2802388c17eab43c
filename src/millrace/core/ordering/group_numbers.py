"""Numbers of message groups.

The number of a group is the frozen hash of its name: two groups with the same number are one.
"""

from __future__ import annotations

import numpy as np

from millrace.core.format.block import Block, key_list
from millrace.core.format.frozen_hash import hash_many, hash_one
from millrace.core.model import GROUP_HEADER, NewMessage, group_of
from millrace.core.state.view import View

_NAME = GROUP_HEADER.encode()


def number_of(group: bytes) -> int:
    """Return the number of a group."""
    return hash_one(group)


def group_numbers(rows: Block | tuple[NewMessage, ...]) -> list[int]:
    """Return the number of each row's group."""
    if isinstance(rows, Block):
        groups = groups_of(rows)
    else:
        groups = [group_of(message.key, message.headers) for message in rows]
    if len(groups) == 1:
        return [hash_one(groups[0])]
    names = list(dict.fromkeys(groups))
    numbers = dict(zip(names, hash_many(names).tolist(), strict=True))
    return [numbers[group] for group in groups]


def numbers_of(view: View, rows: Block | tuple[NewMessage, ...]) -> list[int]:
    """Return the result of `group_numbers`, cached while a batch is decided."""
    cached = view.facts.numbers.get(id(rows))
    if cached is None:
        cached = view.facts.numbers[id(rows)] = (rows, group_numbers(rows))
    return cached[1]


def groups_of(block: Block) -> list[bytes]:
    """Return the group of each row; empty where it has none."""
    groups = [key or b"" for key in key_list(block)]
    names, values, lists = block.header_names, block.header_values, block.header_lists
    if names is None or values is None or lists is None:
        return groups
    ends = np.frombuffer(lists, np.int32)
    found = names.values(0, int(ends[-1]))
    named = [at for at, name in enumerate(found) if name == _NAME]
    rows = np.searchsorted(ends, named, side="right") - 1
    # The first header counts, so that it is written last.
    for at, row in zip(reversed(named), reversed(rows.tolist()), strict=True):
        groups[row] = values.values(at, at + 1)[0]
    return groups
