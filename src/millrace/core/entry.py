"""How published messages come to wait in their groups: at once, or when their delay is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core import aside, groups
from millrace.core.commands import Aside
from millrace.core.draft import Draft
from millrace.core.model import Kind
from millrace.core.waiting import Waiting, due_key


def enter(
    draft: Draft,
    first: int,
    numbers: Sequence[int],
    runs: Sequence[Aside],
    deletes: Iterable[int],
) -> None:
    """Let new rows, whose groups these are, wait for their turn.

    Deletes, which are named by their places from 0 on, are for no worker. The pointer `next` has
    passed all of them: nothing waits in the order of seqs.
    """
    view = draft.view
    is_kept = [True] * len(numbers)
    for at in deletes:
        is_kept[at] = False
    for at, count, _, delay_ms in aside.runs_of(len(numbers), runs, view.spec.delay_ms):
        kept = is_kept[at : at + count]
        seqs = list(compress(range(first + at, first + at + count), kept))
        theirs = list(compress(numbers[at : at + count], kept))
        if delay_ms:
            _delay(draft, draft.now + delay_ms, seqs, theirs)
        else:
            groups.enter(draft, seqs, theirs)
    draft.put_pointers(msgspec.structs.replace(view.pointers, next=view.last_seq + 1))


def _delay(draft: Draft, due_ms: int, seqs: Sequence[int], numbers: Sequence[int]) -> None:
    view = draft.view
    step = limits.ASIDE_CELL_SEQS_MAX
    for at in range(0, len(seqs), step):
        part = BitMap64(seqs[at : at + step])
        draft.aside |= part
        key = due_key(view.pointers.era, due_ms, seqs[at])
        cell = Waiting.of(part, limits.PRIORITY_DEFAULT, tuple(numbers[at : at + step]))
        draft.put_waiting(Kind.DUE, key, cell)
    if seqs:
        highest = max(view.pointers.aside, seqs[-1])
        draft.put_pointers(msgspec.structs.replace(view.pointers, aside=highest))
