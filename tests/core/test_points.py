"""Cells that are asked for by their keys: what is looked at is what was decided last."""

from __future__ import annotations

from millrace.core import points
from millrace.core.changes import Entry
from millrace.core.commands import CreateQueue, Need
from millrace.core.decide import learn
from millrace.core.desk import Desk
from millrace.core.draft import Draft
from millrace.core.idcells import DedupCell as Cell
from millrace.core.model import (
    ASKED,
    CATALOG,
    VIEWED,
    WINDOWED,
    GroupId,
    Index,
    Kind,
    Millis,
    QueueSpec,
    ShardId,
)
from tests.support.models.commit_group import Group, through_bytes

QUEUE = ShardId(1)
A, B, C = ((Kind.DEDUP, key) for key in (b"a", b"b", b"c"))


def _group() -> Group:
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "jobs", QueueSpec())))
    return group


def _draft(group: Group) -> Draft:
    draft = Desk(group.view, Millis(group.now)).draft(QUEUE)
    assert draft is not None
    return draft


def _commit(group: Group, draft: Draft) -> None:
    draft.view.facts.clear()
    index = Index(len(group.log) + len(group.pending) + 1)
    entry = Entry(GroupId(1), group.epoch, index, group.history, [draft.finish()])
    group.pending.append(through_bytes(entry))


def test_kinds_are_held_in_one_way() -> None:
    assert sorted((*ASKED, *VIEWED, *WINDOWED)) == sorted(Kind)


def test_what_was_decided_lies_above_what_is_stored() -> None:
    group = _group()
    draft = _draft(group)
    for name, seq in ((A, 1), (B, 2), (C, 3)):
        points.put(draft, name, Cell(seq, 9))
    assert points.need(draft, [A]) is None
    assert points.look(draft, A) == Cell(1, 9)
    _commit(group, draft)
    group.fold()

    draft = _draft(group)
    points.put(draft, A, None)
    points.put(draft, B, Cell(5, 9))
    _commit(group, draft)
    draft = _draft(group)
    assert points.need(draft, [A, B, C, C]) == Need(QUEUE, points=(C,))
    learn(draft, Need(QUEUE, points=(A, B, C)), group.store)
    assert points.need(draft, [A, B, C]) is None
    found = [points.look(draft, name) for name in (A, B, C)]
    assert found == [None, Cell(5, 9), Cell(3, 9)], "the layer wins over the store"
    points.put(draft, B, None)
    assert points.look(draft, B) is None, "the batch at hand wins over the layer"
    _commit(group, draft)
    group.fold()

    draft = _draft(group)
    assert points.need(draft, [A]) == Need(QUEUE, points=(A,)), "facts are of one batch"
    learn(draft, Need(QUEUE, points=(A, B, C)), group.store)
    assert [points.look(draft, name) for name in (A, B, C)] == [None, None, Cell(3, 9)]
    group.check()


def test_a_queue_that_is_not_stored_yet_has_none() -> None:
    group = Group()
    group.hold = True
    group.ask((CATALOG, CreateQueue("default", "jobs", QueueSpec())))
    draft = _draft(group)
    assert points.need(draft, [A]) is None
    assert points.look(draft, A) is None
