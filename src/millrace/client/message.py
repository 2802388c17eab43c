"""What a program hands over to be published, and rows as it gets them back."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.client import arrow_rows
from millrace.core import bounds, check, check_rows
from millrace.core.answers import Published
from millrace.core.block import Block, key_list
from millrace.core.check import HeadersLike
from millrace.core.column import Array
from millrace.core.commands import Aside, Numbered, Publish, Stage
from millrace.core.leased_commands import Life
from millrace.core.model import Headers, Row
from millrace.core.model import Message as CheckedMessage
from millrace.core.staged import deletes_of
from millrace.errors import Invalid

Body = bytes | bytearray | memoryview
"""A body; it is stored, and read, as bytes."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message for `publish_many`. Without a body it deletes its key."""

    body: Body | None
    key: bytes | str | None = None
    """Text is stored as UTF-8."""
    headers: HeadersLike = ()
    """A mapping, or pairs where order or duplicates matter; values are bytes or text."""
    priority: int | None = None
    """From 0 to 9, the highest first; None: as the call says, else 4."""
    delay: float | None = None
    """So many seconds nobody gets it; None: as the call says, else the queue."""
    dedup: str | None = None
    """Its de-duplication id: another one with it, within the queue's time, is a repeat."""
    ttl: float | None = None
    """Unless it is settled within so many seconds, it expires; None: as the call says."""
    group: bytes | str | None = None
    """Whom it waits for, where the queue's order asks for it; None: those with its key."""


Rows = Sequence[bytes | Message | CheckedMessage] | pa.RecordBatch | pa.Table
"""What may be published at once: bodies, messages, or Arrow columns."""


_PLAIN = (limits.PRIORITY_DEFAULT, None)


NamesCheck = Callable[[Array], None]
"""Refuses names of headers, which it is given as they are stored."""


def make_rows(
    rows: Rows,
    priority: int | None = None,
    delay: float | None = None,
    check_names: NamesCheck | None = None,
) -> tuple[Block, tuple[Aside, ...]]:
    """The rows side by side, checked, and which of them do not wait in the order of their seqs.

    `check_names` is for the headers of Arrow columns.

    Raises:
        Invalid, TooLarge: a row or all of them together; the error names the field and the limit.
    """
    usual = _turn(priority, delay, _PLAIN)
    if isinstance(rows, pa.RecordBatch | pa.Table):
        block = arrow_rows.block_of(rows, check_names)
        turns = arrow_rows.turns_of(rows, usual)
        return (block, turns) if turns else _all(block, usual)
    if not isinstance(rows, list | tuple):
        return _all(check_rows.rows(rows), usual)
    kinds = set(map(type, rows))
    if kinds == {bytes}:
        # The way of many bodies, which must cost little for each.
        return _all(check_rows.bodies(rows), usual)
    if Message not in kinds or len(rows) > limits.PUBLISH_MESSAGES_MAX:
        return _all(check_rows.rows(rows), usual)
    return check_rows.side_by_side(check_rows.each(rows, _checked)), _runs(rows, usual)


def _checked(row: object) -> CheckedMessage:
    if isinstance(row, Message):
        return check.message(row.body, row.key, row.headers, row.group)
    return check_rows.row(row)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that were checked and laid side by side before they are published."""

    block: Block
    aside: tuple[Aside, ...]
    ids: tuple[str | None, ...]
    lives: tuple[Life, ...]

    def __len__(self) -> int:
        return self.block.count


def prepare(
    rows: Rows,
    priority: int | None,
    delay: float | None,
    ttl: float | None,
    check_names: NamesCheck | None = None,
) -> Prepared:
    """Check rows and lay them side by side; on any thread. `check_names` as in `make_rows`.

    Raises:
        Invalid, TooLarge: as `make_rows`.
    """
    if isinstance(rows, Prepared):
        return rows
    block, aside = make_rows(rows, priority, delay, check_names)
    return Prepared(block, aside, make_ids(rows), make_lives(rows, block.count, ttl))


def make_block(rows: Rows) -> Block:
    """Rows that are moved: they have neither priorities nor delays of their own.

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
    """The command that stages rows.

    Raises:
        Invalid, TooLarge: as `make_rows`, the number, or one of them has a de-duplication id.
    """
    name = check.name(stage, "stage")
    made = prepare(rows, priority, delay, ttl)
    if made.ids:
        raise Invalid("a staged message has no de-duplication id", field="dedup")
    call = 0 if number is None else check.count(number, "number", 2**31 - 1)
    return Stage(name, made.block, made.aside, made.lives, call)


def make_aside(priority: int | None, delay: float | None) -> tuple[Aside, ...]:
    """Whether a single message waits otherwise than in the order of seqs.

    Raises:
        Invalid, TooLarge: the priority or the delay.
    """
    if priority is None and delay is None:
        return ()
    turn = _turn(priority, delay, _PLAIN)
    return (Aside(0, 1, *turn),) if turn != _PLAIN else ()


def make_ids(rows: Rows) -> tuple[str | None, ...]:
    """The de-duplication ids of rows, or none of them.

    Raises:
        Invalid, TooLarge: an id.
    """
    if not isinstance(rows, list | tuple):
        return ()
    if not any(isinstance(row, Message) and row.dedup is not None for row in rows):
        return ()
    return tuple(check_rows.each(rows, _own_id))


def _own_id(row: object) -> str | None:
    return check.id_text(row.dedup, "dedup") if isinstance(row, Message) else None


def publish_one(
    message: CheckedMessage,
    numbered: Numbered | None,
    priority: int | None,
    delay: float | None,
    dedup: str | None,
    ttl: float | None,
) -> Publish:
    """The command that publishes a single message.

    Raises:
        Invalid, TooLarge: the priority, the delay, the id or the time to live.
    """
    aside = make_aside(priority, delay)
    ids = (check.id_text(dedup, "dedup"),) if dedup is not None else ()
    lives = make_lives((), 1, ttl) if ttl is not None else ()
    return Publish((message,), numbered, aside, ids, by_body=True, lives=lives)


def publish_rows(
    rows: Rows,
    numbered: Numbered | None,
    priority: int | None,
    delay: float | None,
    ttl: float | None,
) -> Publish:
    """The command that publishes rows at once; raises as `make_rows`."""
    made = prepare(rows, priority, delay, ttl)
    return Publish(made.block, numbered, made.aside, made.ids, by_body=True, lives=made.lives)


def refused_row(command: Publish | Stage, error: Invalid) -> int | None:
    """Return the first of the rows for which a queue's settings gave this error, counted from 0.

    The engine names the field alone: it may have been sent the rows of one shard. A setting that
    all rows have from the call itself is no fault of a row.
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


def make_lives(rows: Rows, count: int, ttl: float | None) -> tuple[Life, ...]:
    """Which of so many rows have a time to live, and how long that is.

    Raises:
        Invalid, TooLarge: the time of one of them.
    """
    usual = None if ttl is None else _ttl(ttl)
    if isinstance(rows, pa.RecordBatch | pa.Table) and "ttl" in rows.schema.names:
        return arrow_rows.lives_of(rows, usual)
    own: list[int | None] = []
    if isinstance(rows, list | tuple) and Message in set(map(type, rows)):
        own = check_rows.each(rows, _own_ttl)
    if not any(own):
        # The way of many bodies, which must cost little for each.
        return () if usual is None or not count else (Life(0, count, usual),)
    lives = [one or usual for one in own]
    runs: list[Life] = []
    begin = 0
    for at, life in enumerate(lives, 1):
        if at == count or lives[at] != life:
            if life is not None:
                runs.append(Life(begin, at - begin, life))
            begin = at
    return tuple(runs)


def _own_ttl(row: object) -> int | None:
    return _ttl(row.ttl) if isinstance(row, Message) and row.ttl is not None else None


def _ttl(value: float) -> int:
    return check.millis(value, "ttl", bounds.TTL_MS_MAX)


def _turn(
    priority: int | None, delay: float | None, usual: tuple[int, int | None]
) -> tuple[int, int | None]:
    """Priority, and delay in milliseconds."""
    rank, delay_ms = usual
    if priority is not None:
        rank = check.priority(priority)
    if delay is not None:
        delay_ms = check.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
    return rank, delay_ms


def _all(block: Block, turn: tuple[int, int | None]) -> tuple[Block, tuple[Aside, ...]]:
    is_plain = turn == _PLAIN or not block.count
    return block, () if is_plain else (Aside(0, block.count, *turn),)


def _runs(rows: Sequence[object], usual: tuple[int, int | None]) -> tuple[Aside, ...]:
    def turn_of(row: object) -> tuple[int, int | None]:
        return _turn(row.priority, row.delay, usual) if isinstance(row, Message) else usual

    turns = check_rows.each(rows, turn_of)
    runs: list[Aside] = []
    begin = 0
    for at, turn in enumerate(turns, 1):
        if at == len(turns) or turns[at] != turn:
            if turn != _PLAIN:
                runs.append(Aside(begin, at - begin, *turn))
            begin = at
    return tuple(runs)


def fitting(batch: pa.RecordBatch, size: int) -> int:
    """How many of the first rows have up to `size` bytes together; no body is looked at."""
    if batch.nbytes <= size:
        return batch.num_rows
    return bisect_right(range(batch.num_rows), size, key=lambda at: batch.slice(0, at + 1).nbytes)


async def rows_in_steps(batch: pa.RecordBatch) -> list[Row]:
    """As `rows_of`, of any number of rows: between two steps others have their turn."""
    step = limits.HEADERS_STEP // limits.HEADERS_MAX
    rows: list[Row] = []
    for at in range(0, batch.num_rows, step):
        if at:
            await asyncio.sleep(0)
        rows += rows_of(batch.slice(at, step))
    return rows


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """The rows of an Arrow batch of the common schema."""
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


def seqs_of(answer: Published) -> Sequence[int]:
    """Where rows were published; empty where that is forgotten."""
    if answer.seqs:
        return answer.seqs
    return range(answer.first, answer.first + answer.count) if answer.first else range(0)


def by_turns(rows: list[Row], turns: Sequence[BitMap64]) -> list[Row]:
    """The rows in the order in which they came to their turn."""
    if not turns:
        return rows
    place = {seq: at for at, seqs in enumerate(turns) for seq in seqs}
    return sorted(rows, key=lambda row: place[row.seq])
