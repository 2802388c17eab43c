"""A command that nobody knows is a defect, and is never answered as if it had been done."""

from __future__ import annotations

from typing import cast

import pytest

from millrace.core.commands import Command, Part, Publish, Transaction
from millrace.core.decide import decide
from millrace.core.desk import Desk
from millrace.core.model import Epoch, Message, Millis, ShardId
from millrace.core.view import View
from tests.support.models.commit_group import history_named

SHARD = ShardId(1)


class Strange:
    """What a newer version may send."""


def test_an_unknown_command_is_not_answered() -> None:
    desk = Desk(lambda _: View(SHARD, Epoch(1), history_named("A")), Millis(1))
    with pytest.raises(AssertionError):
        decide(desk, SHARD, cast("Command", Strange()))


@pytest.mark.parametrize("at", [0, 1])
def test_nor_is_an_unknown_part_of_a_transaction(at: int) -> None:
    view = View(SHARD, Epoch(1), history_named("A"))
    desk = Desk(lambda _: view, Millis(1))
    parts: list[tuple[ShardId, Part]] = [(SHARD, Publish((Message(b"x"),)))]
    parts.insert(at, (SHARD, cast("Part", Strange())))
    with pytest.raises(AssertionError):
        decide(desk, SHARD, Transaction(tuple(parts)))
    draft = desk.draft(SHARD)
    assert draft is not None
    assert draft.empty()
    assert view.last_seq == 0
