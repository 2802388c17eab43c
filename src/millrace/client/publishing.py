"""The publishing half of `Queue`: publish, staged publish, and producers' numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from millrace.client import queue_queries
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
from millrace.core import validate
from millrace.core.answers import PublishResult
from millrace.core.commands import DropStage, Part, ProducerMode, PublishStaged
from millrace.core.model import ShardId

T = TypeVar("T")


class Publishing:
    """The operations of a queue for publishers.

    Every call returns once its effect is durable.
    """

    def __init__(self, engine: Engine, shards: Shards) -> None:
        self._engine = engine
        self._shards = shards

    async def publish(
        self,
        body: Body | None,
        *,
        key: bytes | str | None = None,
        headers: validate.HeadersLike | None = None,
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
        """Publish a message; return its seq, or its id if the queue's delivery is "partitions".

        On a keyed queue the message replaces the older revision of its `key`; without a body it
        deletes the key. `priority` (0 to 9, default 4): workers get higher ones first. `delay`:
        seconds before it is delivered to workers (default: the queue's); readers of the queue see
        it at once, in its place. `ttl`: it expires if it is not settled within that many seconds
        (or the queue's TTL, if shorter). `group`: where the queue's order uses groups, the message
        waits for others of its group, else of its key.

        Publishing is idempotent with `producer` and `number`: a repeat changes nothing and returns
        the first result, or None if its seq is no longer known. The same holds for a de-duplication
        id `dedup` that was used within the queue's `dedup` time.

        Raises:
            Invalid, TooLarge: an argument is not valid; nothing was published.
            OutOfOrder: the number of a dense producer is above the expected one, which the error
                names.
            Full: the log or the disk is full, or the queue has its maximum of messages; retry
                later.
        """
        message = validate.message(body, key, headers, group)
        numbered = validate.numbered(producer, number, mode, after)
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
        """Publish several messages atomically; return their seqs.

        The seqs are consecutive, except that repeats of de-duplication ids have the seqs of the
        first ones.

        `rows` are messages, bodies as bytes, or an Arrow batch or table with the column `value` and
        optionally `key`, `headers`, `group`, `priority`, `delay` and `ttl`. The arguments
        `priority`, `delay` and `ttl` (see `publish`) are defaults for rows without their own. No
        reader ever sees a part of the rows. They use one number of their producer; a repeat returns
        the first result, or an empty range if the seqs are no longer known.

        Raises:
            As `publish`. The message of an error in one of several rows begins with `row N: `,
                counted from 0. `TooLarge` also if the rows do not fit into one record: publish in
                parts, or `stage` them.
        """
        numbered = validate.numbered(producer, number, mode, after)
        command = publish_rows(rows, numbered, priority, delay, ttl)
        return await publish_across(self._engine, self._shards, command)

    def publisher(
        self, name: str, *, window: int = 32, unconfirmed: Iterable[Unconfirmed] = ()
    ) -> Publisher:
        """Publish with confirms: `async with queue.publisher("web") as publisher: ...`.

        The publisher sends up to `window` messages before their confirmation; then `send` waits.
        Messages are numbered under `name`, which no other publisher may use at the same time.
        `unconfirmed` is what `Publisher.unconfirmed` returned for a publisher whose engine has
        ended; these messages are sent first.
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
        """Write rows to a stage, invisible until `publish_staged`; return its number of rows so
        far.

        A stage makes more rows visible atomically than fit into one record. `rows`, `priority`,
        `delay` and `ttl` are as in `publish_many`; both times start when the rows are published.
        `number` counts the calls for the stage from 1 and makes them idempotent. Stages that are
        not published expire.

        Raises:
            Invalid, TooLarge: an argument or a row is not valid.
            OutOfOrder: the number is above the expected one; the stage may have expired.
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
        """Publish these stages atomically, in this order; return the seqs of the rows.

        With `mode="range"`, `after` and `number` are the range of the producer's own source that
        the rows were made from: a repeat changes nothing, an overlap is refused. `spans` is such a
        range over several places, for example the shards of that source: (after, upto) of each.
        With a producer `stages` may be empty: the range has no rows, and is done.

        Raises:
            NotFound: a stage does not exist; nothing was published.
            OutOfOrder: the range overlaps an earlier one, or leaves a gap.
        """
        numbered = validate.numbered(producer, number, mode, after, spans)
        command = PublishStaged(validate.stages(stages, numbered), numbered)
        answers = await self._all(lambda _: command, PublishResult)
        return places_of(self._shards, self._shards.ids, answers)

    async def drop_stage(self, stage: str) -> bool:
        """Delete a stage; return False if there was none."""
        return any(await self._all(lambda _: DropStage(validate.name(stage, "stage")), bool))

    async def stages(self) -> dict[str, int]:
        """Return the stages that were neither published nor dropped, with the rows of each."""
        return await queue_queries.stage_rows(self._engine, self._shards)

    async def producer(self, name: str) -> int:
        """Return the last number of a producer, 0 if it is unknown; its next message has the next
        one."""
        return await self._engine.producer_number(
            self._shards.first, validate.name(name, "producer")
        )

    async def _all(self, make: Callable[[ShardId], Part], kind: type[T]) -> list[T]:
        return await ask_all(self._engine, self._shards, make, kind)
