"""Messages and rows: validation of input to publish, and conversion of rows that are read."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.client import arrow_input
from millrace.core import bounds, validate
from millrace.core.answers import PublishResult
from millrace.core.commands import (
    ProducerNumber,
    Publish,
    RowSchedule,
    RowTtl,
    Stage,
)
from millrace.core.format.block import Block, key_list
from millrace.core.format.column import Array
from millrace.core.model import Headers, Row
from millrace.core.model import NewMessage as CheckedMessage
from millrace.core.publishing import validate_rows
from millrace.core.publishing.stages import deletes_of
from millrace.core.validate import HeadersLike
from millrace.errors import Invalid

Body = bytes | bytearray | memoryview
"""Body of a message; it is stored, and read, as bytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message for `publish_many`. Without a body it deletes its key."""

    body: Body | None
    key: bytes | str | None = None
    """Text is stored as UTF-8."""
    headers: HeadersLike = ()
    """A mapping, or pairs where order or duplicates matter; values are bytes or text."""
    priority: int | None = None
    """From 0 to 9, higher ones first; None: as given to the call, else 4."""
    delay: float | None = None
    """Seconds before it is delivered to workers; None: as given to the call, else the queue's."""
    dedup: str | None = None
    """De-duplication id: another message with the same id within the queue's time is a repeat."""
    ttl: float | None = None
    """Seconds after which it expires unless it is settled; None: as given to the call."""
    group: bytes | str | None = None
    """Message group, if the queue's order uses groups; None: the key."""


Rows = Sequence[bytes | Message | CheckedMessage] | pa.RecordBatch | pa.Table
"""Input of a batch publish: bodies, messages, or Arrow columns."""


_PLAIN = (limits.PRIORITY_DEFAULT, None)


NamesCheck = Callable[[Array], None]
"""Refuses header names, given as a column of their stored form."""


def make_rows(
    rows: Rows,
    priority: int | None = None,
    delay: float | None = None,
    check_names: NamesCheck | None = None,
) -> tuple[Block, tuple[RowSchedule, ...]]:
    """Validate rows; return them as columns, and the runs of rows with a priority or delay.

    `check_names` is for the headers of Arrow columns.

    Raises:
        Invalid, TooLarge: a row or the whole is not valid; the error names the field and the limit.
    """
    usual = _turn(priority, delay, _PLAIN)
    if isinstance(rows, pa.RecordBatch | pa.Table):
        block = arrow_input.block_of(rows, check_names)
        turns = arrow_input.turns_of(rows, usual)
        return (block, turns) if turns else _all(block, usual)
    if not isinstance(rows, list | tuple):
        return _all(validate_rows.rows(rows), usual)
    kinds = set(map(type, rows))
    if kinds == {bytes}:
        # Fast path for a list of plain bodies.
        return _all(validate_rows.bodies(rows), usual)
    if Message not in kinds or len(rows) > limits.PUBLISH_MESSAGES_MAX:
        return _all(validate_rows.rows(rows), usual)
    return validate_rows.side_by_side(validate_rows.each(rows, _checked)), _runs(rows, usual)


def _checked(row: object) -> CheckedMessage:
    if isinstance(row, Message):
        return validate.message(row.body, row.key, row.headers, row.group)
    return validate_rows.row(row)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that were validated and converted to columns before they are published."""

    block: Block
    aside: tuple[RowSchedule, ...]
    ids: tuple[str | None, ...]
    lives: tuple[RowTtl, ...]

    def __len__(self) -> int:
        return self.block.count


def prepare(
    rows: Rows,
    priority: int | None,
    delay: float | None,
    ttl: float | None,
    check_names: NamesCheck | None = None,
) -> Prepared:
    """Validate rows and convert them to columns, on any thread; `check_names` as in `make_rows`.

    Raises:
        Invalid, TooLarge: as `make_rows`.
    """
    if isinstance(rows, Prepared):
        return rows
    block, aside = make_rows(rows, priority, delay, check_names)
    return Prepared(block, aside, make_ids(rows), make_lives(rows, block.count, ttl))


def make_block(rows: Rows) -> Block:
    """Validate rows that are moved, which may have no priority, delay, id or TTL of their own.

    Raises:
        Invalid, TooLarge: as `make_rows`, or one of them has.
    """
    block, aside = make_rows(rows)
    for run in aside:
        field = "priority" if run.delay_ms is None else "delay"
        raise Invalid(f"a message that is moved has no {field} of its own", field=field)
    if make_ids(rows):
        raise Invalid("a message that is moved has no de-duplication id", field="dedup")
    if make_lives(rows, block.count, None):
        raise Invalid("a message that is moved has no ttl of its own", field="ttl")
    return block


def stage_rows(
    stage: str,
    rows: Rows,
    priority: int | None,
    delay: float | None,
    ttl: float | None,
    number: int | None,
) -> Stage:
    """Return the command that stages rows.

    Raises:
        Invalid, TooLarge: as `make_rows`; the number is not valid, or a row has a de-duplication
            id.
    """
    name = validate.name(stage, "stage")
    prepared = prepare(rows, priority, delay, ttl)
    if prepared.ids:
        raise Invalid("a staged message has no de-duplication id", field="dedup")
    call = 0 if number is None else validate.count(number, "number", 2**31 - 1)
    return Stage(name, prepared.block, prepared.aside, prepared.lives, call)


def make_aside(priority: int | None, delay: float | None) -> tuple[RowSchedule, ...]:
    """Return the priority and delay of a single message; empty if both are the default.

    Raises:
        Invalid, TooLarge: the priority or the delay is not valid.
    """
    if priority is None and delay is None:
        return ()
    turn = _turn(priority, delay, _PLAIN)
    return (RowSchedule(0, 1, *turn),) if turn != _PLAIN else ()


def make_ids(rows: Rows) -> tuple[str | None, ...]:
    """Return the de-duplication ids of rows; empty if none has one.

    Raises:
        Invalid, TooLarge: an id is not valid.
    """
    if not isinstance(rows, list | tuple):
        return ()
    if not any(isinstance(row, Message) and row.dedup is not None for row in rows):
        return ()
    return tuple(validate_rows.each(rows, _own_id))


def _own_id(row: object) -> str | None:
    return validate.id_text(row.dedup, "dedup") if isinstance(row, Message) else None


def publish_one(
    message: CheckedMessage,
    numbered: ProducerNumber | None,
    priority: int | None,
    delay: float | None,
    dedup: str | None,
    ttl: float | None,
) -> Publish:
    """Return the command that publishes a single message.

    Raises:
        Invalid, TooLarge: the priority, delay, id or TTL is not valid.
    """
    aside = make_aside(priority, delay)
    ids = (validate.id_text(dedup, "dedup"),) if dedup is not None else ()
    lives = make_lives((), 1, ttl) if ttl is not None else ()
    return Publish((message,), numbered, aside, ids, by_body=True, lives=lives)


def publish_rows(
    rows: Rows,
    numbered: ProducerNumber | None,
    priority: int | None,
    delay: float | None,
    ttl: float | None,
) -> Publish:
    """Return the command that publishes rows atomically; raises as `make_rows`."""
    prepared = prepare(rows, priority, delay, ttl)
    return Publish(
        prepared.block, numbered, prepared.aside, prepared.ids, by_body=True, lives=prepared.lives
    )


def refused_row(command: Publish | Stage, error: Invalid) -> int | None:
    """Return the index of the first row that caused this error of a queue's settings, or None.

    The engine names only the field, since it may have received the rows of one shard. A value that
    all rows have from the call's own arguments is not attributed to a row.
    """
    count = command.rows.count if isinstance(command.rows, Block) else len(command.rows)
    if count < 2 or error.message.startswith("row "):
        return None
    return _first_with(command, count, error.field)


def _first_with(command: Publish | Stage, count: int, field: str | None) -> int | None:
    match field:
        case "body":
            return next(iter(deletes_of(command.rows)), None)
        case "key":
            keys = key_list(command.rows)
            return next((at for at in deletes_of(command.rows) if keys[at] is None), None)
        case "priority":
            runs = [run for run in command.aside if run.priority != limits.PRIORITY_DEFAULT]
            return next((run.at for run in runs if run.count < count), None)
        case "delay":
            delayed = [run for run in command.aside if run.delay_ms]
            return next((run.at for run in delayed if run.count < count), None)
        case "ttl":
            return next((life.at for life in command.lives if life.count < count), None)
        case "dedup" if isinstance(command, Publish):
            return next((at for at, id in enumerate(command.ids) if id is not None), None)
        case _:
            return None


def make_lives(rows: Rows, count: int, ttl: float | None) -> tuple[RowTtl, ...]:
    """Return the runs of rows that have a TTL, in milliseconds.

    Raises:
        Invalid, TooLarge: a TTL is not valid.
    """
    usual = None if ttl is None else _ttl(ttl)
    if isinstance(rows, pa.RecordBatch | pa.Table) and "ttl" in rows.schema.names:
        return arrow_input.lives_of(rows, usual)
    own: list[int | None] = []
    if isinstance(rows, list | tuple) and Message in set(map(type, rows)):
        own = validate_rows.each(rows, _own_ttl)
    if not any(own):
        # Fast path: no row has a TTL of its own.
        return () if usual is None or not count else (RowTtl(0, count, usual),)
    lives = [own_life or usual for own_life in own]
    runs: list[RowTtl] = []
    begin = 0
    for at, life in enumerate(lives, 1):
        if at == count or lives[at] != life:
            if life is not None:
                runs.append(RowTtl(begin, at - begin, life))
            begin = at
    return tuple(runs)


def _own_ttl(row: object) -> int | None:
    return _ttl(row.ttl) if isinstance(row, Message) and row.ttl is not None else None


def _ttl(value: float) -> int:
    return validate.millis(value, "ttl", bounds.TTL_MS_MAX)


def _turn(
    priority: int | None, delay: float | None, usual: tuple[int, int | None]
) -> tuple[int, int | None]:
    """Return the priority, and the delay in milliseconds."""
    rank, delay_ms = usual
    if priority is not None:
        rank = validate.priority(priority)
    if delay is not None:
        delay_ms = validate.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
    return rank, delay_ms


def _all(block: Block, turn: tuple[int, int | None]) -> tuple[Block, tuple[RowSchedule, ...]]:
    is_plain = turn == _PLAIN or not block.count
    return block, () if is_plain else (RowSchedule(0, block.count, *turn),)


def _runs(rows: Sequence[object], usual: tuple[int, int | None]) -> tuple[RowSchedule, ...]:
    def turn_of(row: object) -> tuple[int, int | None]:
        return _turn(row.priority, row.delay, usual) if isinstance(row, Message) else usual

    turns = validate_rows.each(rows, turn_of)
    runs: list[RowSchedule] = []
    begin = 0
    for at, turn in enumerate(turns, 1):
        if at == len(turns) or turns[at] != turn:
            if turn != _PLAIN:
                runs.append(RowSchedule(begin, at - begin, *turn))
            begin = at
    return tuple(runs)


def rows_that_fit(batch: pa.RecordBatch, size: int) -> int:
    """Return how many of the first rows have up to `size` bytes together, without reading
    bodies."""
    if batch.nbytes <= size:
        return batch.num_rows
    return bisect_right(range(batch.num_rows), size, key=lambda at: batch.slice(0, at + 1).nbytes)


async def rows_in_steps(batch: pa.RecordBatch) -> list[Row]:
    """Convert any number of rows as `rows_of`, yielding to the event loop between steps."""
    step = limits.HEADERS_STEP // limits.HEADERS_MAX
    rows: list[Row] = []
    for at in range(0, batch.num_rows, step):
        if at:
            await asyncio.sleep(0)
        rows += rows_of(batch.slice(at, step))
    return rows


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of an Arrow batch of the common schema."""
    headers: list[Headers] = [()] * batch.num_rows
    column = batch.column("headers")
    if column.null_count < len(column):
        headers = [
            tuple((pair["name"], pair["value"]) for pair in pairs) if pairs else ()
            for pairs in column.to_pylist()
        ]
    return [
        Row(seq, time_ms, body, key, pairs)
        for seq, time_ms, body, key, pairs in zip(
            batch.column("seq").to_numpy().tolist(),
            batch.column("time").cast(pa.int64()).to_numpy().tolist(),
            batch.column("value").to_pylist(),
            batch.column("key").to_pylist(),
            headers,
            strict=True,
        )
    ]


def seqs_of(answer: PublishResult) -> Sequence[int]:
    """Return the seqs of published rows; empty if they are no longer known."""
    if answer.seqs:
        return answer.seqs
    return range(answer.first, answer.first + answer.count) if answer.first else range(0)


def sort_by_turn(rows: list[Row], turns: Sequence[BitMap64]) -> list[Row]:
    """Sort rows by the order of delivery."""
    if not turns:
        return rows
    place = {seq: at for at, seqs in enumerate(turns) for seq in seqs}
    return sorted(rows, key=lambda row: place[row.seq])
