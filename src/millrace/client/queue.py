"""A queue, as a program uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, Unpack

from millrace import limits
from millrace.client.calls import Make, calls_of, end_calls, replace_call
from millrace.client.counts import all_holders, cursor_seqs, shard_counts, stage_rows, sums
from millrace.client.cursor import Cursor, Pinned, Start, starts_at
from millrace.client.engine import Engine
from millrace.client.grant import Keepalive
from millrace.client.lease import Lease, Leases
from millrace.client.leasing import hand_out
from millrace.client.message import Body, Rows, make_block, publish_one, publish_rows
from millrace.client.named import count_partitions, delete_named, explain_at, get_named
from millrace.client.publisher import Publisher, Unconfirmed
from millrace.client.redrive import Edit, Redrive, Where, target_of
from millrace.client.session import Session, opening, resuming
from millrace.client.settings import QueueSettings, make_spec
from millrace.client.shards import (
    Shards,
    ask_all,
    peek_across,
    places_of,
    publish_across,
    stage_across,
)
from millrace.client.work import Work
from millrace.core import check
from millrace.core.commands import (
    Configure,
    Discard,
    DropStage,
    Explanation,
    Extend,
    OpenCursor,
    Part,
    ProducerMode,
    Published,
    PublishStaged,
    Purge,
    Release,
    Rewind,
    Settle,
)
from millrace.core.commands import Lease as LeaseCommand
from millrace.core.holder import Holders
from millrace.core.model import (
    CursorCell,
    QueueSpec,
    Row,
    ShardId,
)
from millrace.errors import Refused

T = TypeVar("T")


class Queue:
    """A named queue: publish, lease and settle, follow.

    Every call that changes something returns once that can no longer be lost, by the meaning of
    the queue's journal. All of them raise `NotFound` once the queue was deleted, also if another
    one was made under its name.
    """

    def __init__(
        self, engine: Engine, keepalive: Keepalive, space: str, name: str, shards: Shards
    ) -> None:
        self._engine = engine
        self._keepalive = keepalive
        self._space = space
        self._name = name
        self._shards = shards

    @property
    def name(self) -> str:
        """The queue's name within its space."""
        return self._name

    @property
    def space(self) -> str:
        """The space that the queue is in."""
        return self._space

    @property
    def shards(self) -> Shards:
        """Where it is: the `ids` of its shards, in their order, and their `route`."""
        return self._shards

    def __repr__(self) -> str:
        return f"<Queue {self._space}/{self._name}>"

    # --- Publish ------------------------------------------------------------------------------

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
        numbered = check.numbered(producer, number, mode, None)
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
            As `publish`; `TooLarge` also where they do not fit into one record: publish in parts,
            or `stage` them.
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

    async def stage(self, stage: str, rows: Rows) -> int:
        """Write rows that nobody sees until `publish_staged`; returns the stage's rows so far.

        So that more than a record holds becomes visible at once. Stages that nobody publishes go
        by age.
        """
        name = check.name(stage, "stage")
        return await stage_across(self._engine, self._shards, name, make_block(rows))

    async def publish_staged(
        self,
        stages: Sequence[str],
        *,
        producer: str | None = None,
        number: int | None = None,
        mode: ProducerMode = "dense",
        after: int | None = None,
    ) -> Sequence[int]:
        """Make these stages visible, in this order, all at once; returns their seqs.

        With `mode="range"`, `after` and `number` are the range of the producer's own source that
        the rows were made from: a repeat changes nothing, an overlap is refused.

        Raises:
            NotFound: there is no such stage; nothing was published.
        """
        numbered = check.numbered(producer, number, mode, after)
        command = PublishStaged(check.names(stages, "stages"), numbered)
        answers = await self._all(lambda _: command, Published)
        return places_of(self._shards, self._shards.ids, answers)

    async def drop_stage(self, stage: str) -> bool:
        """Forget a stage; returns whether there was one."""
        return any(await self._all(lambda _: DropStage(check.name(stage, "stage")), bool))

    async def stages(self) -> dict[str, int]:
        """The stages that were neither published nor dropped, and the rows of each."""
        return await stage_rows(self._engine, self._shards)

    async def producer(self, name: str) -> int:
        """The last number of a producer; 0 if it is unknown here. It goes on with the next one."""
        return await self._engine.producer_number(self._shards.first, check.name(name, "producer"))

    async def _all(self, make: Callable[[ShardId], Part], kind: type[T]) -> list[T]:
        return await ask_all(self._engine, self._shards, make, kind)

    # --- Work ---------------------------------------------------------------------------------

    async def lease(
        self, count: int = 1, *, seconds: float = 30, wait: float = 0, attempt: str | None = None
    ) -> list[Lease]:
        """Lease up to `count` messages for `seconds`, waiting up to `wait` seconds for the first.

        What was given back comes first, in the order of seqs, then what was never handed out: by
        priority, those whose delay has just passed before others, and in the order of seqs.
        There may be fewer than `count` although more are there: one call hands out up to 64 MiB
        (`limits.LEASE_BYTES_MAX`), but always the first one. Where the call is cancelled, nothing
        stays leased. Whoever makes a call again with the same id `attempt`, because the answer was
        lost, gets the same messages under the same receipts: for five minutes, as long as none of
        them was settled, released, extended or ran out.

        Raises:
            Full: too many messages are in flight; settle some first.
        """
        count = check.count(count, "count", limits.LEASE_MESSAGES_MAX)
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        wait_ms = check.millis(wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
        name = check.id_text(attempt, "attempt") or ""
        return await self._lease(count, lease_ms, wait_ms, name)

    async def _lease(
        self, count: int, lease_ms: int, wait_ms: int, attempt: str = ""
    ) -> list[Lease]:
        command = LeaseCommand(count, lease_ms, attempt)
        return await hand_out(self._engine, self._keepalive, self._shards, command, wait_ms)

    def work(self, *, batch: int = 10, seconds: float = 30, idle: float | None = None) -> Work:
        """Messages as they come: `async for lease in queue.work(): ...`.

        Up to `batch` messages are leased ahead, for `seconds`. They are extended by themselves at
        half of that time, until they are settled, released or dropped by the program. The loop ends
        when nothing came for `idle` seconds, or never if that is None; what was leased ahead and
        not handed out is then released. `async with lease:` in the loop settles each one.
        """
        count = check.count(batch, "batch", limits.LEASE_MESSAGES_MAX)
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        idle_ms = None
        if idle is not None:
            idle_ms = check.millis(idle, "idle", limits.WORK_IDLE_MS_MAX, least_ms=0)

        return Work(lambda wait_ms: self._lease(count, lease_ms, wait_ms), idle_ms=idle_ms)

    async def settle(self, leases: Leases) -> dict[int, Refused]:
        """Settle a lease or a receipt, or several; see `Lease.settle`.

        A single one that is refused raises why. Of several each is judged alone: the seqs that were
        refused come back, with the reason.

        Raises:
            Forged: a receipt or lease is not of this queue; nothing was settled.
            Retry: some of several may have been settled. Ask again with the same ones: that
                settles the others, and answers for all of them.
        """
        return await self._end(leases, lambda c: Settle(c.lease, c.seqs, c.history))

    async def release(
        self, leases: Leases, *, failed: bool = False, delay: float = 0
    ) -> dict[int, Refused]:
        """Give a lease or a receipt back, or several; see `Lease.release`.

        Refusals come as with `settle`.
        """
        failed = check.flag(failed, "failed")
        delay_ms = check.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
        return await self._end(
            leases, lambda c: Release(c.lease, c.seqs, c.history, failed, delay_ms)
        )

    async def discard(self, leases: Leases) -> dict[int, Refused]:
        """Make dead letters of a lease or a receipt, or several; see `Lease.discard`.

        Refusals come as with `settle`.
        """
        return await self._end(leases, lambda c: Discard(c.lease, c.seqs, c.history))

    async def replace(self, receipt: str, body: Body, *, seconds: float = 30) -> Lease:
        """Put another message in the place of a leased one, by its receipt; see `Lease.replace`."""
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        [call] = calls_of(self._engine, self._shards, self._name, [receipt])
        return await replace_call(self._engine, self._keepalive, self._shards, call, body, lease_ms)

    async def extend(self, leases: Leases, seconds: float) -> dict[int, Refused]:
        """Hold a lease or a receipt, or several, for so many seconds from now.

        Refusals come as with `settle`.
        """
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        return await self._end(leases, lambda c: Extend(c.lease, c.seqs, c.history, lease_ms))

    async def _end(self, leases: Leases, make: Make) -> dict[int, Refused]:
        return await end_calls(self._engine, self._shards, self._name, leases, make)

    def session(
        self,
        *,
        credit: int = 100,
        refill: bool = True,
        lease: float | None = None,
        suspect: float = 60,
        name: str | None = None,
        resume: str | None = None,
    ) -> Session:
        """Messages as they come: `async with queue.session() as session: ...`, and loop over it.

        The session holds up to `credit` messages at once, and settling lets more come; with
        `refill=False` it is handed as many, and more where it grants more. Each message is its own
        as long as it lasts, or for `lease` seconds. If nobody speaks for it any more, it keeps them
        for `suspect` seconds. `resume` is the id of a session that goes on, as it was opened.
        """
        shard = self._shards.only("a session", "queue")
        begin = (
            opening(credit, refill, lease, suspect, name)
            if resume is None
            else resuming(self._engine, shard, resume)
        )
        return Session(self._engine, self._keepalive, shard, begin)

    # --- Look ---------------------------------------------------------------------------------

    async def peek(self, count: int = 10, *, after: int = 0) -> list[Row]:
        """The first messages after a seq that are there, leased or not; nothing is leased.

        There may be fewer than `count` although more are there: one call reads up to 64 MiB
        (`limits.PEEK_BYTES_MAX`), but always the first one. Go on after the last one's seq.
        """
        count = check.count(count, "count", limits.PEEK_MESSAGES_MAX)
        return await peek_across(self._engine, self._shards, after, count)

    async def get(self, seq: int | None = None, *, id: int | None = None) -> Row | None:
        """The message with this seq or id, or None if it is not there (any more)."""
        return await get_named(self._engine, self._shards, seq, id)

    async def delete(self, ids: Sequence[int]) -> int:
        """End messages by their ids, whoever holds them; returns how many were there.

        Only where the queue's delivery is "partitions": else nobody but its worker ends one.
        """
        return await delete_named(self._engine, self._shards, ids)

    async def partitions(self) -> int:
        """How many partitions the queue has now; 0 if its delivery is "messages"."""
        return await count_partitions(self._engine, self._shards)

    async def explain(self, seq: int) -> Explanation:
        """Why a message is not to be had: leased, delayed, blocked or limited until when, dead.

        Of one that is delayed behind thousands of others, `until_ms` is None, and `not_before_ms`
        says how long it is delayed at least; if both are, it may have come to its time already.
        Of a dead one, `superseded_by` is the newest revision of its key, as long as it is known
        that a newer one replaced it.
        """
        return await explain_at(self._engine, self._shards, seq)

    async def stats(self) -> dict[str, int]:
        """Durable counters: published = live + the sum of all the ways a message can end."""
        return sums(await self.shard_stats())

    async def shard_stats(self) -> list[dict[str, int]]:
        """The counters of each shard of the queue, as `stats` has their sums."""
        return await shard_counts(self._engine, self._shards)

    async def holders(self) -> Holders:
        """Who keeps messages that would have gone otherwise, and how many of them."""
        return await all_holders(self._engine, self._shards)

    # --- Follow -------------------------------------------------------------------------------

    async def cursor(
        self, name: str, *, start: Start = "beginning", retain: bool = False
    ) -> Cursor:
        """Open a follower's durable position, making it at `start` if it is new.

        `start` is "beginning", "end", a seq (the first to be read) or a datetime. A retaining
        cursor is also shown what workers settle before it comes by; it is bounded in age.

        Raises:
            Exists: it is there, and retains where this does not, or the other way round.
            Invalid: `start` is no place in the queue.
            CursorExpired: `start` lies behind rows that are gone.
        """
        checked = check.name(name, "name")
        retain = check.flag(retain, "retain")
        places = await starts_at(self._engine, self._shards, start)
        cells = await self._all(lambda at: OpenCursor(checked, places[at], retain), CursorCell)
        return Cursor(self._engine, self._shards, checked, cells)

    async def cursors(self) -> dict[str, int]:
        """The queue's cursors, and the seq, or the sum over shards, that each has committed."""
        return await cursor_seqs(self._engine, self._shards)

    def snapshot(self, *, seconds: float = 3600) -> Pinned:
        """The queue as of now: `async with queue.snapshot() as snapshot: ...`.

        It is pinned as long as the context lasts, at most for `seconds`: always the same rows.
        """
        pin_ms = check.millis(seconds, "seconds", limits.PIN_MS_MAX)
        return Pinned(self._engine, self._shards, pin_ms)

    # --- Settings -----------------------------------------------------------------------------

    async def purge(self) -> int:
        """End every message that is there now, leased ones too; returns the last seq that went."""
        gone = await self._all(lambda _: Purge(), int)
        return self._shards.place(self._shards.ids[-1], gone[-1])

    async def rewind(self, start: Start) -> int:
        """Have workers work the queue again from `start` on; returns the first seq that they get.

        `start` is "beginning", "end", a seq (the first to be handed out) or a datetime. Who holds a
        message finds its lease gone, and every message counts its deliveries anew.

        Raises:
            Invalid: the queue's retention is not "log", or `start` is no place in it.
        """
        places = await starts_at(self._engine, self._shards, start)
        firsts = await self._all(lambda at: Rewind(places[at]), int)
        return self._shards.place(self._shards.first, firsts[0])

    def redrive(
        self,
        *,
        to: str | None = None,
        where: Where | None = None,
        edit: Edit | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Redrive:
        """Move dead letters back: `await dead.redrive().run()`, or loop over it for its progress.

        They go to the queues that they came from, or to the queue `to` (of this space, or as
        space/name), each exactly once. `where(row)` says which ones; the others stay, as if they
        had never been handed out. `edit(message)` returns what is published instead; headers that
        tell of their death are taken off before. `rate` is how many are moved in a second at most.
        With `dry_run` they are only counted. What comes while it runs is left for another time.

        On a keyed queue what comes back is the newest revision of its key.
        """
        return Redrive(
            self._engine,
            self._shards,
            lambda count: self._lease(count, limits.REDRIVE_LEASE_MS, 0),
            to=None if to is None else target_of(self._space, to),
            where=where,
            edit=edit,
            rate=rate,
            dry_run=dry_run,
        )

    async def spec(self) -> QueueSpec:
        """The queue's settings."""
        return await self._engine.spec(self._shards.first)

    async def configure(self, **settings: Unpack[QueueSettings]) -> QueueSpec:
        """Change settings of the queue (see `Millrace.queue`); the others stay as they are.

        Raises:
            NotFound: the queue `dead_letter` is not there.
            Invalid: a setting has a value that no queue takes; or `retention` would go from "log"
                to "work" after messages were handed out: those that were settled would never end.
        """
        spec = make_spec(self._space, settings)
        return (await self._all(lambda _: Configure(spec), QueueSpec))[0]


def engine_and_shards(queue: Queue) -> tuple[Engine, Shards]:
    """Where a queue is."""
    return queue._engine, queue._shards


def engine_and_shard(queue: Queue) -> tuple[Engine, ShardId]:
    """Where a queue is, or its first shard."""
    return queue._engine, queue._shards.first
