"""The shards of a queue, as its clients see them: where messages go, and what they are called.

Rule 1: what a program is told of a message names its shard, too: its place. In a queue with one
shard that is its seq.
Rule 2: what is asked of a queue with several shards is one transaction over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.client.carried import carrying, count_of
from millrace.client.engine import Engine
from millrace.client.message import refused_row, seqs_of
from millrace.core import check
from millrace.core.answers import Explanation, Published, QueueRef
from millrace.core.block import SCHEMA, Block
from millrace.core.check_rows import in_row
from millrace.core.commands import Part, Publish, Stage, Transaction
from millrace.core.message_id import id_of
from millrace.core.model import Message, Row, Seq, ShardId
from millrace.core.place import Place, Route
from millrace.core.route import ranks, shard_of, shards_of, split, split_ids, split_runs, turn_of
from millrace.errors import Invalid

T = TypeVar("T")


class Shards:
    """Where a queue is."""

    __slots__ = ("_number", "first", "ids", "is_one", "key", "label", "route")

    def __init__(
        self, ids: tuple[ShardId, ...], route: Route, key: int = 0, label: str = ""
    ) -> None:
        self.ids = ids
        self.route = route
        self.key = key
        """What its messages' ids are made with; 0: they have none."""
        self.label = label
        """What the queue is called, where that is known."""
        self._number = {shard: at for at, shard in enumerate(ids)}
        self.first = ids[0]
        """The queue's first shard, which is the only one of most queues."""
        self.is_one = len(ids) == 1
        """Whether there is no other."""

    @classmethod
    def of(cls, ref: QueueRef, label: str = "") -> Shards:
        return cls(ref.shards, ref.route, ref.ids, label)

    def only(self, what: str, field: str, way: str) -> ShardId:
        """The queue's only shard, for something that cannot be done over several; `way` is what
        else can be.

        Raises:
            Invalid: there are others.
        """
        if not self.is_one:
            raise Invalid(
                f"{what} needs a queue with one shard, not {len(self.ids)}; {way}, or make a queue "
                "with shards=1",
                field=field,
                limit=1,
            )
        return self.first

    def __contains__(self, shard: ShardId) -> bool:
        return shard in self._number

    def check_stays(self, shard: ShardId, message: Message) -> None:
        """The message belongs to this shard.

        Raises:
            Invalid: it does not.
        """
        here = self._number[shard]
        if shard_of(message, self.route, len(self.ids), here) != here:
            raise Invalid(
                "a message of this key belongs to another shard; settle this one and publish that",
                field="key",
            )

    def number(self, shard: ShardId) -> int:
        """Which one of the queue's shards it is, from 0."""
        return self._number[shard]

    def place(self, shard: ShardId, seq: int) -> int:
        """What a message is called."""
        return seq if self.is_one else Place.of(self._number[shard], seq)

    def names(self, answer: Published) -> Sequence[int]:
        """What the messages of a publish to the only shard are called: by their ids, if they have
        such; empty where that is forgotten."""
        seqs = seqs_of(answer)
        return [id_of(self.key, seq) for seq in seqs] if self.key else seqs

    def placed(self, shard: ShardId, rows: list[Row]) -> list[Row]:
        """Rows of a shard, by their places."""
        if self.is_one:
            return rows
        at = self._number[shard]
        return [
            Row(Place.of(at, row.seq), row.time_ms, row.body, row.key, row.headers) for row in rows
        ]

    def numbered(self, shard: ShardId, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a shard as Arrow: the column `shard` counts those of the queue, from 0."""
        column = pa.repeat(pa.scalar(self._number[shard], pa.uint64()), batch.num_rows)
        return pa.RecordBatch.from_arrays([column, *batch.columns[1:]], schema=SCHEMA)

    def explained(self, shard: ShardId, answer: Explanation) -> Explanation:
        """Where a message of a shard stands, by its place."""
        if self.is_one:
            return answer
        newer = answer.superseded_by
        return msgspec.structs.replace(
            answer,
            seq=self.place(shard, answer.seq),
            superseded_by=None if newer is None else self.place(shard, newer),
        )

    def find(self, place: object, field: str, *, least: int = 1) -> tuple[ShardId, Seq]:
        """The shard and the seq of a place.

        Raises:
            Invalid: it is no place in the queue.
        """
        number = check.seq(place, field, least=0 if not self.is_one else least)
        if self.is_one:
            return self.first, Seq(number)
        found = Place(number)
        if found.shard >= len(self.ids) or found.seq < least:
            raise Invalid(
                f"{field} is {check.shown(place)}, which is no place in {len(self.ids)} shards",
                field=field,
            )
        return self.ids[found.shard], Seq(found.seq)


async def ask_all(
    engine: Engine, shards: Shards, make: Callable[[ShardId], Part], kind: type[T]
) -> list[T]:
    """Ask every shard of a queue, all or nothing; the answers are of the type `kind`."""
    if shards.is_one:
        return [await engine.ask(shards.first, make(shards.first), kind)]
    parts = tuple((shard, make(shard)) for shard in shards.ids)
    return cast("list[T]", list(await engine.transact(Transaction(parts))))


async def peek_across(engine: Engine, shards: Shards, after: object, count: int) -> list[Row]:
    """The first visible messages after a place, shard by shard."""
    shard, seq = shards.find(after, "after", least=0)
    rows: list[Row] = []
    for at in shards.ids[shards.number(shard) :]:
        rows += shards.placed(at, await engine.peek(at, seq, None, count - len(rows)))
        if shards.is_one or len(rows) >= count:
            break
        if sum(row.size() for row in rows) >= limits.PEEK_BYTES_MAX:
            break
        seq = Seq(0)
    return rows


class Scatter:
    """A publish to a queue with several shards: its parts, and what they were answered.

    With a number, all shards take note of it: whatever a repeat holds, none of them takes it twice.
    """

    def __init__(self, shards: Shards, command: Publish, turn: int) -> None:
        self._shards = shards
        count = len(shards.ids)
        turn = turn_of(command.numbered, turn)
        rows = command.rows
        if not isinstance(rows, Block):
            rows = Block.of_messages(rows)
        self._where = shards_of(rows, shards.route, count, turn, command.ids)
        blocks = split(rows, self._where, count)
        aside = split_runs(command.aside, self._where, count)
        lives = split_runs(command.lives, self._where, count)
        ids = split_ids(command.ids, self._where, count)
        self._rows = [block.count for block in blocks]
        self._asked = [at for at in range(count) if self._rows[at] or command.numbered]
        self.parts: list[tuple[ShardId, Part]] = [
            (
                shards.ids[at],
                Publish(
                    blocks[at], command.numbered, aside[at], ids[at], command.by_body, lives[at]
                ),
            )
            for at in self._asked
        ]

    def places(self, answers: Sequence[object]) -> Sequence[int]:
        """Where the messages are, in their order; empty where that is forgotten."""
        found = [answer for answer in answers if isinstance(answer, Published)]
        if any(answer.first is None for answer in found):
            return []
        seqs = dict(zip(self._asked, map(seqs_of, found), strict=True))
        if any(len(seqs[at]) != self._rows[at] for at in seqs):
            # A repeat that holds other messages than the first one did: those are named.
            return places_of(self._shards, [self._shards.ids[at] for at in seqs], found)
        rank = ranks(self._where, len(self._rows))
        return [
            Place.of(shard, seqs[shard][at])
            for shard, at in zip(self._where.tolist(), rank.tolist(), strict=True)
        ]


def places_of(
    shards: Shards, asked: Sequence[ShardId], answers: Sequence[Published]
) -> Sequence[int]:
    """Where rows were published, shard by shard; empty where that is forgotten."""
    if shards.is_one:
        return shards.names(answers[0])
    if any(answer.first is None for answer in answers):
        return []
    return [
        shards.place(shard, seq)
        for shard, answer in zip(asked, answers, strict=True)
        for seq in seqs_of(answer)
    ]


async def publish_across(engine: Engine, shards: Shards, command: Publish) -> Sequence[int]:
    """Publish to a queue, all or nothing; returns the places of the messages."""
    if engine.telemetry is None:
        return await _publish_across(engine, shards, command)
    count = count_of(command)
    with engine.telemetry.sending(shards.label, count) as step:
        carried = carrying(command, engine.telemetry.carried())
        places = await _publish_across(engine, shards, carried)
        if count is None and places:
            step.set("messaging.message.id", str(places[0]))
        return places


async def _publish_across(engine: Engine, shards: Shards, command: Publish) -> Sequence[int]:
    try:
        if shards.is_one:
            return shards.names(await engine.ask(shards.first, command, Published))
        scatter = Scatter(shards, command, engine.turn())
        return scatter.places(await engine.transact(Transaction(tuple(scatter.parts))))
    except Invalid as error:
        at = refused_row(command, error)
        if at is None:
            raise
        raise in_row(at, error) from error


async def stage_across(engine: Engine, shards: Shards, command: Stage) -> int:
    """Stage rows on a queue; returns the stage's rows so far."""
    try:
        if shards.is_one:
            return await engine.ask(shards.first, command, int)
        parts = stage_parts(shards, command, engine.turn())
        return sum(cast("tuple[int, ...]", await engine.transact(Transaction(tuple(parts)))))
    except Invalid as error:
        at = refused_row(command, error)
        if at is None:
            raise
        raise in_row(at, error) from error


class Placing:
    """A part of a transaction, as it is asked of the shards of its queue."""

    def __init__(self, shards: Shards | ShardId, part: Part, turn: Callable[[], int]) -> None:
        self._shards = shards
        self._scatter: Scatter | None = None
        self.parts: list[tuple[ShardId, Part]]
        if not isinstance(shards, Shards):
            self.parts = [(shards, part)]
        elif shards.is_one:
            self.parts = [(shards.first, part)]
        elif isinstance(part, Publish):
            self._scatter = Scatter(shards, part, turn())
            self.parts = self._scatter.parts
        else:
            self.parts = [(shard, part) for shard in shards.ids]

    def answer(self, answers: list[object]) -> object:
        """Of a publish, where the messages are; of anything else, what was answered."""
        if not isinstance(self._shards, Shards):
            return answers[0]
        if self._scatter is not None:
            return self._scatter.places(answers)
        found = [answer for answer in answers if isinstance(answer, Published)]
        if self._shards.is_one:
            return self._shards.names(found[0])
        return places_of(self._shards, self._shards.ids, found)


def stage_parts(shards: Shards, command: Stage, turn: int) -> list[tuple[ShardId, Part]]:
    """Rows that are staged: the stage is begun on every shard, so that all of them know it."""
    count = len(shards.ids)
    where = shards_of(command.rows, shards.route, count, turn)
    blocks = split(command.rows, where, count)
    aside = split_runs(command.aside, where, count)
    lives = split_runs(command.lives, where, count)
    return [
        (shard, Stage(command.stage, blocks[at], aside[at], lives[at], command.number))
        for at, shard in enumerate(shards.ids)
    ]


def label(space: str, name: str) -> str:
    """What a queue or topic is called: its name, with its space if that is not the usual one."""
    return name if space == "default" else f"{space}/{name}"
