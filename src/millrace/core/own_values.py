"""The bound on values that rows of one publish have of their own.

A group, a de-duplication id, a delay, a priority or a time to live that differs from row to row is
a cell, and the cells of a publish are written in one step. Others wait for that step, so an engine
that serves a network bounds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.core.block import VALUE, Block, key_list
from millrace.core.commands import Publish
from millrace.core.group_cells import GROUP_HEADER, group_of
from millrace.core.model import Message
from millrace.core.view import View
from millrace.errors import TooLarge

_KINDS = 4
"""Kinds of values that a row may have: group, id, turn and time to live."""


def check(publishes: Iterable[tuple[View, Publish]]) -> TooLarge | None:
    """Check how many values the rows of a command have of their own, all publishes together."""
    asked = list(publishes)
    limit = limits.PUBLISH_OWN_VALUES_MAX
    if sum(_count(command.rows) for _, command in asked) * _KINDS <= limit:
        return None
    totals = {"group": 0, "dedup": 0, "delay": 0, "ttl": 0}
    for view, command in asked:
        totals["dedup"] += _ids(view, command)
        totals["delay"] += len(command.aside)
        totals["ttl"] += len(command.lives)
        if view.spec.is_grouped or view.topic is not None:
            totals["group"] += _groups(command.rows)
    total = sum(totals.values())
    if total <= limit:
        return None
    field = max(totals, key=totals.__getitem__)
    return TooLarge(
        f"the messages have {total} groups, de-duplication ids, delays, priorities and times to "
        f"live that differ from message to message, up to {limit} are allowed at once; send "
        "smaller batches",
        field=field,
        limit=limit,
    )


def _count(rows: Block | tuple[Message, ...]) -> int:
    return rows.count if isinstance(rows, Block) else len(rows)


def _ids(view: View, command: Publish) -> int:
    if command.by_body and view.spec.dedup_by_body:
        return _count(command.rows)
    return sum(one is not None for one in command.ids)


def _groups(rows: Block | tuple[Message, ...]) -> int:
    """Count the groups of these rows, or more: a key counts also where a group stands beside it.

    No objects are made of a block's headers.
    """
    if not isinstance(rows, Block):
        return len({group_of(message.key, message.headers) for message in rows})
    found = len(set(key_list(rows))) if rows.keys is not None else 0
    names, values = rows.header_names, rows.header_values
    if names is None or values is None:
        return found
    pairs = len(names.offsets) // 4 - 1
    named = cast("pa.BinaryArray", names.array(VALUE, pairs))
    groups = values.array(VALUE, pairs).filter(pc.starts_with(named, GROUP_HEADER))
    return found + int(pc.count_distinct(groups).as_py())
