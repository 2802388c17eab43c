"""The shards of a queue as clients see them: routing of messages, and places (shard and seq).

Rule 1: a message is identified to programs by its place, which names its shard, too. In a queue
with one shard it is the seq.
Rule 2: an operation on all of several shards is one transaction over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.message import refused_row, seqs_of
from millrace.client.trace_headers import message_count, with_headers
from millrace.core import validate
from millrace.core.answers import Explanation, PublishResult, QueueRef
from millrace.core.commands import (
    ApplyTransaction,
    Part,
    Publish,
    Stage,
)
from millrace.core.format.block import SCHEMA, Block
from millrace.core.format.message_id import id_of
from millrace.core.model import (
    NewMessage,
    Place,
    Route,
    Row,
    Seq,
    ShardId,
)
from millrace.core.publishing.shard_routing import (
    ranks,
    shard_of,
    shards_of,
    split,
    split_ids,
    split_runs,
    turn_of,
)
from millrace.core.publishing.validate_rows import in_row
from millrace.errors import Invalid

T = TypeVar("T")


class Shards:
    """Shards of a queue, and the route of messages to them."""

    __slots__ = ("_number", "first", "ids", "is_one", "key", "label", "placed_by", "route")

    def __init__(
        self,
        ids: tuple[ShardId, ...],
        route: Route,
        key: int = 0,
        label: str = "",
        placed_by: str = "",
    ) -> None:
        self.ids = ids
        self.route = route
        self.key = key
        """Key for deriving message ids; 0: messages have no ids."""
        self.label = label
        """Name of the queue for messages and metrics, if known."""
        self.placed_by = placed_by
        """The name, as `space/name`, that places the queue in a commit group; empty: its own."""
        self._number = {shard: at for at, shard in enumerate(ids)}
        self.first = ids[0]
        """First shard of the queue, which is the only one of most queues."""
        self.is_one = len(ids) == 1
        """True if there is a single shard."""

    @classmethod
    def of(cls, ref: QueueRef, label: str = "") -> Shards:
        """Return the shards of a queue reference."""
        return cls(ref.shards, ref.route, ref.ids, label, ref.placed_by)

    def only(self, what: str, field: str, way: str) -> ShardId:
        """Return the only shard, for operations (`what`) that do not support several; `way` is the
        alternative.

        Raises:
            Invalid: there are several.
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

    def check_stays(self, shard: ShardId, message: NewMessage) -> None:
        """Check that a message is routed to this shard.

        Raises:
            Invalid: it belongs to another one.
        """
        here = self._number[shard]
        if shard_of(message, self.route, len(self.ids), here) != here:
            raise Invalid(
                "a message of this key belongs to another shard; settle this one and publish that",
                field="key",
            )

    def number(self, shard: ShardId) -> int:
        """Return the index of a shard within the queue, from 0."""
        return self._number[shard]

    def place(self, shard: ShardId, seq: int) -> int:
        """Return the place of a message: its seq, combined with the shard if there are several."""
        return seq if self.is_one else Place.of(self._number[shard], seq)

    def names(self, answer: PublishResult) -> Sequence[int]:
        """Return the ids of messages published to the only shard, or their seqs if they have no
        ids; empty if they are no longer known."""
        seqs = seqs_of(answer)
        return [id_of(self.key, seq) for seq in seqs] if self.key else seqs

    def placed(self, shard: ShardId, rows: list[Row]) -> list[Row]:
        """Return rows of a shard with places instead of seqs."""
        if self.is_one:
            return rows
        at = self._number[shard]
        return [
            Row(Place.of(at, row.seq), row.time_ms, row.body, row.key, row.headers) for row in rows
        ]

    def numbered(self, shard: ShardId, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a shard as Arrow, with the shard's index within the queue in the column
        `shard`."""
        column = pa.repeat(pa.scalar(self._number[shard], pa.uint64()), batch.num_rows)
        return pa.RecordBatch.from_arrays([column, *batch.columns[1:]], schema=SCHEMA)

    def explained(self, shard: ShardId, answer: Explanation) -> Explanation:
        """Return the explanation of a message with places instead of seqs."""
        if self.is_one:
            return answer
        newer = answer.superseded_by
        return msgspec.structs.replace(
            answer,
            seq=self.place(shard, answer.seq),
            superseded_by=None if newer is None else self.place(shard, newer),
        )

    def find(self, place: object, field: str, *, least: int = 1) -> tuple[ShardId, Seq]:
        """Return the shard and the seq of a place.

        Raises:
            Invalid: it is not a place in the queue.
        """
        number = validate.seq(place, field, least=0 if not self.is_one else least)
        if self.is_one:
            return self.first, Seq(number)
        parsed = Place(number)
        if parsed.shard >= len(self.ids) or parsed.seq < least:
            raise Invalid(
                f"{field} is {validate.shown(place)}, which is no place in {len(self.ids)} shards",
                field=field,
            )
        return self.ids[parsed.shard], Seq(parsed.seq)


async def ask_all(
    engine: Engine, shards: Shards, make: Callable[[ShardId], Part], kind: type[T]
) -> list[T]:
    """Send a command to every shard of a queue, atomically; return the answers, of the type
    `kind`."""
    if shards.is_one:
        return [await engine.ask(shards.first, make(shards.first), kind)]
    parts = tuple((shard, make(shard)) for shard in shards.ids)
    return cast("list[T]", list(await engine.transact(ApplyTransaction(parts))))


async def peek_across(engine: Engine, shards: Shards, after: object, count: int) -> list[Row]:
    """Return the first visible messages after a place, shard by shard."""
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
    """A publish to a queue with several shards: its parts, and the places from their answers.

    With a producer number, all shards record it: none of them accepts a repeat, whatever rows that
    has.
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
        """Return the places of the messages in their order; empty if they are no longer known."""
        published = [answer for answer in answers if isinstance(answer, PublishResult)]
        if any(answer.first is None for answer in published):
            return []
        seqs = dict(zip(self._asked, map(seqs_of, published), strict=True))
        if any(len(seqs[at]) != self._rows[at] for at in seqs):
            # A repeat with other messages than the first call: return the first call's.
            return places_of(self._shards, [self._shards.ids[at] for at in seqs], published)
        rank = ranks(self._where, len(self._rows))
        return [
            Place.of(shard, seqs[shard][at])
            for shard, at in zip(self._where.tolist(), rank.tolist(), strict=True)
        ]


def places_of(
    shards: Shards, asked: Sequence[ShardId], answers: Sequence[PublishResult]
) -> Sequence[int]:
    """Return the places of published rows, shard by shard; empty if they are no longer known."""
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
    """Publish to a queue atomically; return the places of the messages."""
    if engine.telemetry is None:
        return await _publish_across(engine, shards, command)
    count = message_count(command)
    with engine.telemetry.sending(shards.label, count) as step:
        carried = with_headers(command, engine.telemetry.carried())
        places = await _publish_across(engine, shards, carried)
        if count is None and places:
            step.set("messaging.message.id", str(places[0]))
        return places


async def _publish_across(engine: Engine, shards: Shards, command: Publish) -> Sequence[int]:
    try:
        if shards.is_one:
            return shards.names(await engine.ask(shards.first, command, PublishResult))
        scatter = Scatter(shards, command, engine.turn())
        return scatter.places(await engine.transact(ApplyTransaction(tuple(scatter.parts))))
    except Invalid as error:
        at = refused_row(command, error)
        if at is None:
            raise
        raise in_row(at, error) from error


async def stage_across(engine: Engine, shards: Shards, command: Stage) -> int:
    """Stage rows on a queue; return the number of rows in the stage."""
    try:
        if shards.is_one:
            return await engine.ask(shards.first, command, int)
        parts = stage_parts(shards, command, engine.turn())
        return sum(cast("tuple[int, ...]", await engine.transact(ApplyTransaction(tuple(parts)))))
    except Invalid as error:
        at = refused_row(command, error)
        if at is None:
            raise
        raise in_row(at, error) from error


class ShardedPart:
    """A part of a transaction, expanded to the shards of its queue."""

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
        """Return the places of published messages, or the answer of any other part."""
        if not isinstance(self._shards, Shards):
            return answers[0]
        if self._scatter is not None:
            return self._scatter.places(answers)
        published = [answer for answer in answers if isinstance(answer, PublishResult)]
        if self._shards.is_one:
            return self._shards.names(published[0])
        return places_of(self._shards, self._shards.ids, published)


def stage_parts(shards: Shards, command: Stage, turn: int) -> list[tuple[ShardId, Part]]:
    """Return the parts that stage rows; they create the stage on every shard, so that all know
    it."""
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
    """Return the display name of a queue or topic: with its space unless that is "default"."""
    return name if space == "default" else f"{space}/{name}"
