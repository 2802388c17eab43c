"""An unknown command is a defect, and is never answered as if it had been done."""

from __future__ import annotations

from typing import cast

import pytest

from millrace.core.commands import (
    ApplyTransaction,
    Command,
    Part,
    Publish,
)
from millrace.core.decide import decide
from millrace.core.model import (
    Epoch,
    Millis,
    NewMessage,
    ShardId,
)
from millrace.core.state.draft import BatchContext
from millrace.core.state.view import View
from tests.support.models.commit_group import history_named

SHARD = ShardId(1)


class Strange:
    """A command of a newer version."""


def test_an_unknown_command_is_not_answered() -> None:
    context = BatchContext(lambda _: View(SHARD, Epoch(1), history_named("A")), Millis(1))
    with pytest.raises(AssertionError):
        decide(context, SHARD, cast("Command", Strange()))


@pytest.mark.parametrize("at", [0, 1])
def test_nor_is_an_unknown_part_of_a_transaction(at: int) -> None:
    view = View(SHARD, Epoch(1), history_named("A"))
    context = BatchContext(lambda _: view, Millis(1))
    parts: list[tuple[ShardId, Part]] = [(SHARD, Publish((NewMessage(b"x"),)))]
    parts.insert(at, (SHARD, cast("Part", Strange())))
    with pytest.raises(AssertionError):
        decide(context, SHARD, ApplyTransaction(tuple(parts)))
    draft = context.draft(SHARD)
    assert draft is not None
    assert draft.empty()
    assert view.last_seq == 0
