"""How a program brings messages to a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from millrace.client import counts
from millrace.client.engine import Engine
from millrace.client.message import Body, Rows, publish_one, publish_rows, stage_rows
from millrace.client.publisher import Publisher, Unconfirmed
from millrace.client.shards import (
    Shards,
    ask_all,
    places_of,
    publish_across,
    stage_across,
)
from millrace.core import check
from millrace.core.answers import Published
from millrace.core.commands import DropStage, Part, ProducerMode, PublishStaged
from millrace.core.model import ShardId

T = TypeVar("T")


class Publishing:
    """A queue, as those see it who publish to it.

    Every call returns once what it did can no longer be lost.
    """

    def __init__(self, engine: Engine, shards: Shards) -> None:
        self._engine = engine
        self._shards = shards

    async def publish(
        self,
        body: Body | None,
        *,
        key: bytes | str | None = None,
        headers: check.HeadersLike | None = None,
        group: bytes | str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        dedup: str | None = None,
        ttl: float | None = None,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
        after: int | None = None,
    ) -> int | None:
        """Append a message; returns its seq, or where the delivery is "partitions", its id.

        On a keyed queue it replaces the key's older revision, and without a body it deletes the
        key. Workers get messages of a higher `priority` first (0 to 9, 4 unless it is named), and
        nobody gets it before `delay` seconds have passed (else what the queue says); readers of
        the queue see it at once, in its place. With producer and number a repeat changes nothing
        and is answered as before; None where its seq is forgotten by now. Likewise with an id
        `dedup` that was used within the queue's time (`dedup` of its settings). If it is not
        settled within `ttl` seconds (or the queue's, if that is less), it expires. Where the
        queue's order asks for it, the message waits for those of its `group`, else of its key.

        Raises:
            Invalid, TooLarge: an argument; nothing was published.
            OutOfOrder: a dense producer's number is above the expected one, which the error names.
            Full: the log or the disk has no room now.
        """
        message = check.message(body, key, headers, group)
        numbered = check.numbered(producer, number, mode, after)
        command = publish_one(message, numbered, priority, delay, dedup, ttl)
        places = await publish_across(self._engine, self._shards, command)
        return places[0] if places else None

    async def publish_many(
        self,
        rows: Rows,
        *,
        priority: int | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
        after: int | None = None,
    ) -> Sequence[int]:
        """Append messages, all or nothing; returns their seqs, which follow each other, except for
        repeats of de-duplication ids, which have the seqs of the first ones.

        `rows` are messages, bodies as bytes, or an Arrow batch or table with the column `value`
        and, if need be, `key` and `headers`. `priority`, `delay` and `ttl` are for those that do
        not name their own; see `publish`. No reader ever sees a part of them. They take one
        number of their producer; a repeat is answered as before, and with an empty range where its
        seqs are forgotten.

        Raises:
            As `publish`; of a row among several the message begins with `row N: `, counted from 0.
            `TooLarge` also where they do not fit into one record: publish in parts, or `stage`
            them.
        """
        numbered = check.numbered(producer, number, mode, after)
        command = publish_rows(rows, numbered, priority, delay, ttl)
        return await publish_across(self._engine, self._shards, command)

    def publisher(
        self, name: str, *, window: int = 32, unconfirmed: Iterable[Unconfirmed] = ()
    ) -> Publisher:
        """Publish without waiting for each: `async with queue.publisher("web") as publisher: ...`.

        Up to `window` messages are under way; then `send` waits. They are numbered under `name`,
        which no other publisher may use meanwhile. `unconfirmed` is what one whose engine has ended
        has left.
        """
        return Publisher(self._engine, self._shards, name, window, unconfirmed)

    async def stage(
        self,
        stage: str,
        rows: Rows,
        *,
        priority: int | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        number: int | None = None,
    ) -> int:
        """Write rows that nobody sees until `publish_staged`; returns the stage's rows so far.

        So that more than a record holds becomes visible at once. `rows`, `priority`, `delay` and
        `ttl` are those of `publish_many`; both times begin when the rows are published. `number`
        counts the calls of the stage from 1 on: then a repeat changes nothing. Stages that nobody
        publishes go by age.

        Raises:
            Invalid, TooLarge: an argument, or a row.
            OutOfOrder: the number is above the expected one; perhaps the stage has gone.
        """
        command = stage_rows(stage, rows, priority, delay, ttl, number)
        return await stage_across(self._engine, self._shards, command)

    async def publish_staged(
        self,
        stages: Sequence[str],
        *,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
        after: int | None = None,
        spans: Sequence[tuple[int, int]] | None = None,
    ) -> Sequence[int]:
        """Make these stages visible, in this order, all at once; returns their seqs.

        With `mode="range"`, `after` and `number` are the range of the producer's own source that
        the rows were made from: a repeat changes nothing, an overlap is refused. `spans` is such a
        range over several places, say the shards of that source: (after, upto) of each. With a
        producer there may be no stages: nothing came of that range, and it is over.

        Raises:
            NotFound: there is no such stage; nothing was published.
            OutOfOrder: the range overlaps what was published, or leaves something out.
        """
        numbered = check.numbered(producer, number, mode, after, spans)
        command = PublishStaged(check.stages(stages, numbered), numbered)
        answers = await self._all(lambda _: command, Published)
        return places_of(self._shards, self._shards.ids, answers)

    async def drop_stage(self, stage: str) -> bool:
        """Forget a stage; returns whether there was one."""
        return any(await self._all(lambda _: DropStage(check.name(stage, "stage")), bool))

    async def stages(self) -> dict[str, int]:
        """The stages that were neither published nor dropped, and the rows of each."""
        return await counts.stage_rows(self._engine, self._shards)

    async def producer(self, name: str) -> int:
        """The last number of a producer; 0 if it is unknown here. It goes on with the next one."""
        return await self._engine.producer_number(self._shards.first, check.name(name, "producer"))

    async def _all(self, make: Callable[[ShardId], Part], kind: type[T]) -> list[T]:
        return await ask_all(self._engine, self._shards, make, kind)
