"""Stages: rows that are written but invisible until they are published together.

Rule 1: a stage holds the same as a publish. Priorities, delays and TTLs of its rows are in separate
cells, by row numbers that count from its first row.
Rule 2: delays and TTLs begin when the rows are published.
Rule 3: a call with a number is applied once: numbers count the calls of a stage from 1 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from millrace import limits
from millrace.core import bounds
from millrace.core.cells import Kind, RunsCell, StageCell
from millrace.core.commands import RowSchedule, RowTtl, Stage
from millrace.core.delivery.quarantine import refusal
from millrace.core.format.block import Block, key_list
from millrace.core.model import NewMessage
from millrace.core.needs import Need, StageFacts
from millrace.core.ordering import deferred
from millrace.core.ordering.group_numbers import numbers_of
from millrace.core.spec import QueueSpec
from millrace.core.state import cell_lookup
from millrace.core.state.cell_lookup import CellName
from millrace.core.state.draft import Draft
from millrace.core.state.view import View
from millrace.errors import Full, Invalid, OutOfOrder, Refused, Retry, TooLarge

Rows = Block | tuple[NewMessage, ...]


def run_name(stage: str, number: int) -> CellName:
    """Return the name of one of the cells of a stage's runs."""
    return Kind.RUNS, stage.encode() + b"\0" + number.to_bytes(4, "big")


def _run_names(view: View, stage: str) -> list[CellName]:
    return [run_name(stage, number) for number in range(view.stages[stage].runs)]


# --- Deletes -----------------------------------------------------------------------------------


def deletes_of(rows: Rows) -> list[int]:
    """Return the row numbers of the deletes, from 0."""
    if isinstance(rows, Block):
        return rows.deletes()
    return [at for at, message in enumerate(rows) if message.body is None]


def check_deletes(view: View, rows: Rows) -> Refused | None:
    """Refuse deletes without a key, or on a queue that is not keyed."""
    deletes = deletes_of(rows)
    if not deletes:
        return None
    if not view.spec.keyed:
        return Invalid(
            "a message without a body deletes its key: the queue is not keyed", field="body"
        )
    keys = key_list(rows)
    if any(keys[at] is None for at in deletes):
        return Invalid("a message without a body deletes its key: it needs one", field="key")
    return None


# --- Write -------------------------------------------------------------------------------------


def check_stage(draft: Draft, command: Stage) -> int | Refused | Retry | None:
    """Return None if the call may be applied; or, if it was already, the number of rows of the
    stage."""
    view = draft.view
    quarantined = refusal(view)
    if quarantined is not None:
        return quarantined
    if command.stage in draft.ended_stages:
        # A batch stages before it publishes, so that these rows would be added to the old stage.
        return Retry("a stage of this name is just being published or dropped", field="stage")
    cell = view.stages.get(command.stage)
    if cell is None and len(view.stages) >= limits.STAGES_MAX:
        return Full(
            f"the queue has {limits.STAGES_MAX} stages; publish or drop one, or send again later",
            field="stage",
            limit=limits.STAGES_MAX,
        )
    if command.number:
        calls = cell.calls if cell else 0
        if cell is not None and command.number <= calls:
            return cell.rows
        if command.number != calls + 1:
            return OutOfOrder(
                f"call {command.number} of stage {command.stage!r} came too early: {calls + 1} is "
                "expected; the stage may have gone by age, or was dropped",
                expected=calls + 1,
            )
    refused = _check_size(cell or StageCell(0, 0, 0), command)
    return (
        refused
        or check_runs(view.spec, command.aside, command.lives)
        or check_deletes(view, command.rows)
    )


def _check_size(cell: StageCell, command: Stage) -> Refused | None:
    if cell.rows + command.rows.count > limits.STAGE_ROWS_MAX:
        return TooLarge(
            f"a stage holds up to {limits.STAGE_ROWS_MAX} rows; use several",
            field="stage",
            limit=limits.STAGE_ROWS_MAX,
        )
    if cell.bytes + command.rows.size() > limits.STAGE_BYTES_MAX:
        return TooLarge(
            f"a stage holds up to {limits.STAGE_BYTES_MAX} bytes; use several",
            field="stage",
            limit=limits.STAGE_BYTES_MAX,
        )
    return None


def check_runs(
    spec: QueueSpec, runs: Sequence[RowSchedule], lives: Sequence[RowTtl]
) -> Refused | None:
    """Check that rows of the queue may have these delays, priorities and TTLs."""
    if lives and spec.retention == "log":
        # A log cannot tell settled messages from others: all its messages have the same TTL.
        return Invalid("a queue with retention 'log' knows no ttl; it has keep", field="ttl")
    return deferred.check_publish(spec, runs)


def do_stage(draft: Draft, command: Stage) -> int:
    cell = draft.view.stages.get(command.stage) or StageCell(0, 0, 0)
    rows, runs = cell.rows + command.rows.count, cell.runs
    for made in _cells(command, cell.rows):
        cell_lookup.put(draft, run_name(command.stage, runs), made)
        runs += 1
    draft.stage(command.stage, command.rows)
    size, calls = cell.bytes + command.rows.size(), max(cell.calls, command.number)
    draft.put_stage(command.stage, StageCell(rows, size, draft.now, runs, calls))
    return rows


def _cells(command: Stage, first: int) -> Iterator[RunsCell]:
    step = bounds.STAGE_CELL_RUNS_MAX
    turns = ((first + run.at, run.count, run.priority, run.delay_ms) for run in command.aside)
    while part := tuple(islice(turns, step)):
        yield RunsCell(part)
    lives = ((first + life.at, life.count, life.ttl_ms) for life in command.lives)
    while chunk := tuple(islice(lives, step)):
        yield RunsCell((), chunk)


def do_drop_stage(draft: Draft, name: str) -> bool:
    if name not in draft.view.stages:
        return False
    forget(draft, name)
    draft.drop_stage(name)
    return True


def forget(draft: Draft, name: str) -> None:
    """Delete the cells of a stage that has ended."""
    for run in _run_names(draft.view, name):
        cell_lookup.put(draft, run, None)
    draft.put_stage(name, None)


# --- Publish -----------------------------------------------------------------------------------


def rows_looked_at(view: View, stages: Iterable[str]) -> int:
    """Return how many rows one decision has to read: none of plain ones."""
    spec = view.spec
    is_all = spec.keyed or spec.is_grouped or spec.is_partitioned or spec.delay_ms > 0
    cells = [view.stages[name] for name in stages if name in view.stages]
    return sum(cell.rows for cell in cells if is_all or cell.runs)


def check_rows(rows: int) -> Refused | None:
    """Check that one decision may read so many rows."""
    if rows <= limits.STAGE_ROWS_MAX:
        return None
    return TooLarge(
        f"up to {limits.STAGE_ROWS_MAX} rows are published at once that have keys, groups, ids, "
        "priorities, delays or times to live; publish fewer stages at a time",
        field="stages",
        limit=limits.STAGE_ROWS_MAX,
    )


def need(draft: Draft, stages: Sequence[str]) -> Need | None:
    """Return the Need of these stages for `facts_of` and `runs_of`, or None."""
    view = draft.view
    if view.spec.keyed or view.spec.is_grouped:
        missing = [name for name in stages if isinstance(facts_of(draft, name), Need)]
        if missing:
            return _need(view, missing)
    runs = [run for name in stages for run in _run_names(view, name)]
    return cell_lookup.need(draft, runs) if runs else None


def _need(view: View, stages: Sequence[str]) -> Need:
    return Need(view.shard, stages=tuple(stages), grouped=view.spec.is_grouped)


def facts_of(draft: Draft, name: str) -> StageFacts | Need:
    """Return the facts of a stage: those of the store, completed by rows that are not folded
    yet."""
    view = draft.view
    blocks: list[Block] = []
    for layer in view.layers:
        blocks += [block for stage, block in layer.staged if stage == name]
        if name in layer.ended:
            blocks = []
    blocks += [block for stage, block in draft.staged if stage == name]
    keys: list[bytes | None] = []
    deletes: list[int] = []
    groups: list[int] = []
    if sum(block.count for block in blocks) < view.stages[name].rows:
        stored = view.facts.stages.get(name)
        if stored is None:
            return _need(view, [name])
        keys += stored.keys
        deletes += stored.deletes
        groups += stored.groups
    for block in blocks:
        deletes += [len(keys) + at for at in block.deletes()]
        keys += block.key_list()
        if view.spec.is_grouped:
            groups += numbers_of(view, block)
    return StageFacts(keys, deletes, groups)


def runs_of(draft: Draft, name: str) -> tuple[tuple[RowSchedule, ...], tuple[RowTtl, ...]]:
    """Return the delays and priorities, and the TTLs, of runs of rows of a stage."""
    turns: list[RowSchedule] = []
    lives: list[RowTtl] = []
    for run in _run_names(draft.view, name):
        cell = cell_lookup.look(draft, run)
        assert isinstance(cell, RunsCell)
        turns += [RowSchedule(*one) for one in cell.aside]
        lives += [RowTtl(*one) for one in cell.lives]
    return tuple(turns), tuple(lives)
