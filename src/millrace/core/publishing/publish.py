"""Publishes rows: checks producers, keys, ids, stages and limits, then appends.

Rule 1: check first, change after. A check that needs the store returns `Need`, unchanged.
Rule 2: a producer's number is checked before anything else, so that a late retry of an old revision
never becomes the newest.
Rule 3: a row dies once. Deaths in batches that the store does not hold yet are known from the
view's unfolded batches; only rows that retaining cursors have passed there must be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.answers import PublishResult
from millrace.core.cells import Kind, ProducerCell
from millrace.core.commands import (
    ProducerNumber,
    Publish,
    PublishStaged,
    RowSchedule,
)
from millrace.core.delivery import group_lease, quarantine
from millrace.core.delivery.lease import supersede_leased
from millrace.core.format.block import Block, key_list
from millrace.core.model import Death, NewMessage, Seq
from millrace.core.needs import Need, StageFacts
from millrace.core.ordering import deferred, groups, partitions
from millrace.core.ordering.group_numbers import numbers_of
from millrace.core.publishing import dedup, stages
from millrace.core.publishing.stages import check_deletes, deletes_of
from millrace.core.retention import expiry, max_length
from millrace.core.state.deferred_cells import DeferredMessages, due_key
from millrace.core.state.draft import Draft
from millrace.core.state.view import View
from millrace.core.topics import topic
from millrace.errors import Invalid, NotFound, OutOfOrder, Refused, Retry, TooLarge

Rows = Block | tuple[NewMessage, ...]
Checked = PublishResult | Refused | Retry | Need | None


def check_publish(draft: Draft, command: Publish) -> Checked:
    """Check a publish: None if it may be done; the `PublishResult` if it was done before."""
    repeat = _check_number(draft.view, command.numbered)
    if repeat is not None:
        return repeat
    closed = quarantine.refusal(draft.view)
    if closed is not None:
        return closed
    if draft.view.topic is not None:
        has_deletes = bool(deletes_of(command.rows))
        refusal = topic.check_publish(draft.view, command, has_deletes=has_deletes)
        return refusal or dedup.check_publish(draft, command)
    refused = check_deletes(draft.view, command.rows) or deferred.check_publish(
        draft.view.spec, command.aside
    )
    if refused is not None:
        return refused
    result = expiry.check_publish(draft, command) or dedup.check_publish(draft, command)
    if result is not None:
        return result
    need = _need_keys(draft, key_list(command.rows)) if draft.view.spec.keyed else None
    if need is None and draft.view.spec.is_grouped:
        # Messages whose delay expires now were there before.
        numbers = numbers_of(draft.view, command.rows)
        need = group_lease.promote(draft) or groups.need_to_enter(draft, numbers)
    return need


def check_room(draft: Draft, *commands: Publish | PublishStaged, may_drop: bool = True) -> Checked:
    """Check that there is room for these publishes, whose other checks were made, or can be
    made."""
    if not draft.view.spec.is_bounded:
        return None
    added = max_length.AddedRows(0, 0, BitMap64())
    for command in commands:
        added = added.plus(rows_added_by(draft, command))
    return max_length.check(draft, added, may_drop=may_drop)


def rows_added_by(draft: Draft, command: Publish | PublishStaged) -> max_length.AddedRows:
    """Return the rows that a publish, whose other checks were made, would add."""
    view = draft.view
    if isinstance(command, PublishStaged):
        cells = [view.stages[name] for name in command.stages]
        rows, size = sum(cell.rows for cell in cells), sum(cell.bytes for cell in cells)
        keys: list[bytes | None] = []
        for name in command.stages if view.spec.keyed else ():
            keys += _facts(draft, name).keys
    else:
        names = dedup.names_of(view, command)
        repeats = dedup.split(draft, names) if names else {}
        given = dedup.without(command, repeats).rows if repeats else command.rows
        rows = given.count if isinstance(given, Block) else len(given)
        size = max_length.size_of(given)
        keys = key_list(given) if view.spec.keyed else []
    named = [key for key in keys if key is not None]
    new = dict.fromkeys(named)
    older = draft.still_live(BitMap64([_newest(draft, key) for key in new]) - BitMap64([0]))
    return max_length.AddedRows(rows - len(named) + len(new), size, older - _passed(draft, older))


def do_publish(draft: Draft, command: Publish) -> PublishResult:
    names = dedup.names_of(draft.view, command)
    if not names:
        return _put(draft, command, command.numbered)
    repeats = dedup.split(draft, names)
    count = len(names)
    if not repeats:
        answer = _put(draft, command, command.numbered)
        first = answer.first or 0
        dedup.remember(draft, names, range(first, first + count))
        return answer
    first = draft.view.last_seq + 1
    if len(repeats) < count:
        _put(draft, dedup.without(command, repeats), None)
    seqs = dedup.seqs_of(count, first, repeats)
    new = [at for at in range(count) if at not in repeats]
    dedup.remember(draft, [names[at] for at in new], [seqs[at] for at in new])
    # A repeated number is answered by one range of seqs, or by none.
    _remember_number(draft, command.numbered, seqs[0] if count == 1 else 0, 1 if count == 1 else 0)
    return PublishResult(Seq(seqs[0]), count, not new, seqs if count > 1 else ())


def _put(draft: Draft, command: Publish, numbered: ProducerNumber | None) -> PublishResult:
    rows = command.rows
    first = draft.put_rows(rows)
    count = rows.count if isinstance(rows, Block) else len(rows)
    if draft.view.spec.keyed:
        supersede(draft, first, key_list(rows), deletes_of(rows))
    if draft.view.spec.is_grouped:
        enter(draft, first, numbers_of(draft.view, rows), command.aside, deletes_of(rows))
    elif draft.view.spec.is_partitioned:
        partitions.enter(draft, first, count)
    elif command.aside or draft.view.spec.delay_ms:
        deferred.defer(draft, first, count, command.aside, deletes_of(rows))
    expiry.put_rows(draft, first, command.lives, deletes_of(rows))
    if draft.view.topic is not None and not draft.view.subscriptions:
        topic.drop_passed(draft)
    if draft.view.spec.is_bounded:
        max_length.make_room(draft, first, max_length.size_of(rows))
    _remember_number(draft, numbered, first, count)
    return PublishResult(first, count)


# --- Keys --------------------------------------------------------------------------------------


def _need_keys(draft: Draft, keys: list[bytes | None]) -> Need | None:
    view = draft.view
    if not view.stored_seq:
        # The store has no row yet, perhaps not even the shard.
        return None
    cached = view.facts.keys
    if not all(map(cached.__contains__, keys)):
        missing = [key for key in keys if key is not None and key not in cached]
        if missing:
            return Need(view.shard, keys=tuple(missing))
    passed = _passed_to(draft)
    if not passed:
        return None
    older = BitMap64([_newest(draft, key) for key in keys if key is not None])
    doubtful = [seq for seq in _maybe_kept(view, older, passed) if seq not in view.facts.rows]
    return Need(view.shard, rows=tuple(doubtful)) if doubtful else None


def _newest(draft: Draft, key: bytes) -> int:
    """Return the newest revision of a key, 0 if there is none; it may have died since."""
    seq = draft.keys.get(key, 0)
    if seq:
        return seq
    for layer in reversed(draft.view.layers):
        seq = layer.keys.get(key, 0)
        if seq:
            return seq
    return draft.view.facts.keys.get(key, 0)


def supersede(draft: Draft, first: int, keys: list[bytes | None], deletes: list[int]) -> None:
    """End the older revisions of these keys, within the batch too."""
    view = draft.view
    older: list[int] = []
    newest = draft.keys
    layers = [layer.keys for layer in reversed(view.layers) if layer.keys]
    stored = view.facts.keys
    for seq, key in enumerate(keys, first):
        if key is None:
            continue
        old = newest.get(key, 0)
        if not old:
            for layer in layers:
                old = layer.get(key, 0)
                if old:
                    break
            else:
                old = stored.get(key, 0)
        if old:
            older.append(old)
        newest[key] = seq
    if older:
        died = draft.still_live(BitMap64(older))
        died -= _passed(draft, died)
        if died:
            if view.holder:
                supersede_leased(draft, died)
            draft.die(Death.SUPERSEDED, died)
    if deletes:
        draft.put_deletes(BitMap64([first + at for at in deletes]))


def _passed_to(draft: Draft) -> int:
    """Return the seq that retaining cursors have reached in batches that are not folded yet."""
    return max(draft.changes.passed, *(layer.passed for layer in draft.view.layers), 0)


def _maybe_kept(view: View, seqs: BitMap64, passed: int) -> list[int]:
    """Return the seqs up to `passed` that were delivered and are in no lease any more."""
    delivered = max(view.pointers.next - 1, view.pointers.aside)
    limit = min(passed, delivered, view.stored_seq)
    return [seq for seq in seqs if 0 < seq <= limit and seq not in view.holder]


def _passed(draft: Draft, seqs: BitMap64) -> BitMap64:
    """Return the seqs that ended because retaining cursors passed them in an unfolded batch."""
    view, out = draft.view, BitMap64()
    passed = _passed_to(draft)
    if not passed:
        return out
    facts = view.facts.rows
    kept = BitMap64(
        [seq for seq in _maybe_kept(view, seqs, passed) if seq in facts and facts[seq].kept]
    )
    for layer in view.layers:
        out |= kept & BitMap64(range(layer.passed + 1))
        kept |= layer.kept & seqs
    return out | (kept & BitMap64(range(draft.changes.passed + 1)))


# --- Producers ---------------------------------------------------------------------------------


def _check_number(view: View, numbered: ProducerNumber | None) -> PublishResult | Refused | None:
    if numbered is None:
        return None
    cell = view.producers.get(numbered.producer)
    if cell is None:
        if len(view.producers) >= limits.PRODUCERS_MAX:
            return TooLarge(
                f"the queue remembers {limits.PRODUCERS_MAX} producers and takes no new one",
                field="producer",
                limit=limits.PRODUCERS_MAX,
            )
        if numbered.mode == "dense" and numbered.number != 1:
            return OutOfOrder("this producer is new here and begins at 1", expected=1)
        return None
    if cell.mode != numbered.mode:
        return Invalid(
            f"producer {numbered.producer!r} is {cell.mode} here, not {numbered.mode}",
            field="mode",
        )
    if numbered.mode == "range":
        return _check_range(cell, numbered)
    if numbered.number <= cell.last:
        return _repeated(cell, numbered)
    if numbered.mode == "dense" and numbered.number != cell.last + 1:
        return OutOfOrder(
            f"number {numbered.number} came too early: {cell.last + 1} is expected",
            expected=cell.last + 1,
        )
    return None


def _repeated(cell: ProducerCell, numbered: ProducerNumber) -> PublishResult:
    for number, first, count in cell.recent:
        if number == numbered.number:
            return PublishResult(Seq(first) if first else None, count, repeated=True)
    return PublishResult(None, 0, repeated=True)


def _check_range(cell: ProducerCell, numbered: ProducerNumber) -> PublishResult | Refused | None:
    """Check a range place by place: its sum says nothing about single places."""
    places, spans = cell.uptos or (cell.last,), _spans(numbered)
    if len(places) != len(spans):
        return Invalid(
            f"producer {numbered.producer!r} has ranges of {len(places)} places here, not "
            f"{len(spans)}; use another name for another source",
            field="spans",
            limit=len(places),
        )
    if all(upto <= place for place, (_, upto) in zip(places, spans, strict=True)):
        return _repeated(cell, numbered)
    if any(after != place for place, (after, _) in zip(places, spans, strict=True)):
        ranges = ", ".join(f"({after}, {upto}]" for after, upto in spans)
        return OutOfOrder(
            f"the range {ranges} overlaps what was published up to "
            f"{', '.join(map(str, places))}, or leaves something out",
            expected=cell.last,
        )
    return None


def _spans(numbered: ProducerNumber) -> tuple[tuple[int, int], ...]:
    return numbered.spans or ((numbered.after, numbered.number),)


def _remember_number(draft: Draft, numbered: ProducerNumber | None, first: int, count: int) -> None:
    if numbered is None:
        return
    cell = draft.view.producers.get(numbered.producer)
    recent = cell.recent if cell else ()
    keep = limits.PRODUCER_ANSWERS_MAX - 1
    draft.put_producer(
        numbered.producer,
        ProducerCell(
            numbered.mode,
            numbered.number,
            draft.now,
            (*recent[-keep:], (numbered.number, first, count)),
            tuple(upto for _, upto in numbered.spans),
        ),
    )


# --- Staged rows -------------------------------------------------------------------------------


def check_publish_staged(draft: Draft, command: PublishStaged) -> Checked:
    view = draft.view
    repeat = _check_number(view, command.numbered) or quarantine.refusal(view)
    if repeat is not None:
        return repeat
    if len(set(command.stages)) != len(command.stages):
        return Invalid("a stage is named twice", field="stages")
    for name in command.stages:
        if name not in view.stages:
            return NotFound(f"there is no stage {name!r}; it may have gone by age", field="stages")
    refused = stages.check_rows(stages.rows_looked_at(view, command.stages))
    if refused is not None:
        return refused
    need = stages.need(draft, command.stages)
    if need is not None:
        return need
    for name in command.stages:
        # The queue's settings may have changed since they were staged.
        refused = stages.check_runs(view.spec, *stages.runs_of(draft, name))
        if refused is not None:
            return refused
    facts = [_facts(draft, name) for name in command.stages]
    if view.spec.keyed:
        need = _need_keys(draft, [key for fact in facts for key in fact.keys])
    if need is None and view.spec.is_grouped:
        numbers = [number for fact in facts for number in fact.groups]
        need = group_lease.promote(draft) or groups.need_to_enter(draft, numbers)
    return need


def _facts(draft: Draft, name: str) -> StageFacts:
    """Return the facts of a stage, which were read from the store where they matter."""
    spec = draft.view.spec
    facts = stages.facts_of(draft, name) if spec.keyed or spec.is_grouped else None
    return facts if isinstance(facts, StageFacts) else StageFacts([], [])


def do_publish_staged(draft: Draft, command: PublishStaged) -> PublishResult:
    view = draft.view
    begin = Seq(view.last_seq + 1)
    size = sum(view.stages[name].bytes for name in command.stages)
    for name in command.stages:
        _publish_stage(draft, name)
    max_length.make_room(draft, begin, size)
    total = view.last_seq + 1 - begin
    _remember_number(draft, command.numbered, begin if total else 0, total)
    return PublishResult(begin, total)


def _publish_stage(draft: Draft, name: str) -> None:
    """Publish the rows of a stage under the next seqs; delays, TTLs and keys take effect now."""
    view, cell = draft.view, draft.view.stages[name]
    facts, (turns, lives) = _facts(draft, name), stages.runs_of(draft, name)
    draft.changes.weight += cell.bytes
    first = draft.publish_stage(name, cell.rows)
    stages.forget(draft, name)
    if not cell.rows:
        return
    if view.spec.keyed:
        supersede(draft, first, facts.keys, facts.deletes)
    if view.spec.is_grouped:
        enter(draft, first, facts.groups, turns, facts.deletes)
    elif view.spec.is_partitioned:
        partitions.enter(draft, first, cell.rows)
    elif turns or view.spec.delay_ms:
        deferred.defer(draft, first, cell.rows, turns, facts.deletes)
    expiry.put_rows(draft, first, lives, facts.deletes)


# --- Entry of published messages into their groups: at once, or when their delay expires ---


def enter(
    draft: Draft,
    first: int,
    numbers: Sequence[int],
    runs: Sequence[RowSchedule],
    deletes: Iterable[int],
) -> None:
    """Enter new rows into their groups, at once or after their delay.

    Deletes, given by their row numbers from 0 on, are never delivered. The pointer `next` passes
    all rows: none waits in the order of seqs.
    """
    view = draft.view
    is_kept = [True] * len(numbers)
    for at in deletes:
        is_kept[at] = False
    for at, count, _, delay_ms in deferred.runs_of(len(numbers), runs, view.spec.delay_ms):
        kept = is_kept[at : at + count]
        seqs = list(compress(range(first + at, first + at + count), kept))
        kept_numbers = list(compress(numbers[at : at + count], kept))
        if delay_ms:
            _delay(draft, draft.now + delay_ms, seqs, kept_numbers)
        else:
            groups.enter(draft, seqs, kept_numbers)
    draft.put_pointers(msgspec.structs.replace(view.pointers, next=view.last_seq + 1))


def _delay(draft: Draft, due_ms: int, seqs: Sequence[int], numbers: Sequence[int]) -> None:
    view = draft.view
    step = limits.ASIDE_CELL_SEQS_MAX
    for at in range(0, len(seqs), step):
        part = BitMap64(seqs[at : at + step])
        draft.aside |= part
        key = due_key(view.pointers.era, due_ms, seqs[at])
        cell = DeferredMessages.of(part, limits.PRIORITY_DEFAULT, tuple(numbers[at : at + step]))
        draft.put_waiting(Kind.DUE, key, cell)
    if seqs:
        highest = max(view.pointers.aside, seqs[-1])
        draft.put_pointers(msgspec.structs.replace(view.pointers, aside=highest))
