"""Point lookups of cells return the latest decision."""

from __future__ import annotations

from millrace.core.cells import (
    LOOKUP_KINDS,
    VIEW_KINDS,
    WINDOW_KINDS,
    Kind,
)
from millrace.core.cells import DedupCell as Cell
from millrace.core.changes import Entry
from millrace.core.commands import CreateQueue
from millrace.core.decide import learn
from millrace.core.model import (
    CATALOG,
    GroupId,
    Index,
    Millis,
    ShardId,
)
from millrace.core.needs import Need
from millrace.core.spec import QueueSpec
from millrace.core.state import cell_lookup
from millrace.core.state.draft import BatchContext, Draft
from tests.support.models.commit_group import Group, through_bytes

QUEUE = ShardId(1)
A, B, C = ((Kind.DEDUP, key) for key in (b"a", b"b", b"c"))


def _group() -> Group:
    group = Group()
    group.ask((CATALOG, CreateQueue("default", "jobs", QueueSpec())))
    return group


def _draft(group: Group) -> Draft:
    draft = BatchContext(group.view, Millis(group.now)).draft(QUEUE)
    assert draft is not None
    return draft


def _commit(group: Group, draft: Draft) -> None:
    draft.view.facts.clear()
    index = Index(len(group.log) + len(group.pending) + 1)
    entry = Entry(GroupId(1), group.epoch, index, group.history, [draft.finish()])
    group.pending.append(through_bytes(entry))


def test_kinds_are_held_in_one_way() -> None:
    assert sorted((*LOOKUP_KINDS, *VIEW_KINDS, *WINDOW_KINDS)) == sorted(Kind)


def test_what_was_decided_lies_above_what_is_stored() -> None:
    group = _group()
    draft = _draft(group)
    for name, seq in ((A, 1), (B, 2), (C, 3)):
        cell_lookup.put(draft, name, Cell(seq, 9))
    assert cell_lookup.need(draft, [A]) is None
    assert cell_lookup.look(draft, A) == Cell(1, 9)
    _commit(group, draft)
    group.fold()

    draft = _draft(group)
    cell_lookup.put(draft, A, None)
    cell_lookup.put(draft, B, Cell(5, 9))
    _commit(group, draft)
    draft = _draft(group)
    assert cell_lookup.need(draft, [A, B, C, C]) == Need(QUEUE, points=(C,))
    learn(draft, Need(QUEUE, points=(A, B, C)), group.store)
    assert cell_lookup.need(draft, [A, B, C]) is None
    found = [cell_lookup.look(draft, name) for name in (A, B, C)]
    assert found == [None, Cell(5, 9), Cell(3, 9)], "the layer wins over the store"
    cell_lookup.put(draft, B, None)
    assert cell_lookup.look(draft, B) is None, "the batch at hand wins over the layer"
    _commit(group, draft)
    group.fold()

    draft = _draft(group)
    assert cell_lookup.need(draft, [A]) == Need(QUEUE, points=(A,)), "facts are of one batch"
    learn(draft, Need(QUEUE, points=(A, B, C)), group.store)
    assert [cell_lookup.look(draft, name) for name in (A, B, C)] == [None, None, Cell(3, 9)]
    group.check()


def test_a_queue_that_is_not_stored_yet_has_none() -> None:
    group = Group()
    group.hold = True
    group.ask((CATALOG, CreateQueue("default", "jobs", QueueSpec())))
    draft = _draft(group)
    assert cell_lookup.need(draft, [A]) is None
    assert cell_lookup.look(draft, A) is None
