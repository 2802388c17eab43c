"""A queue, as a program uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, Unpack

from millrace import limits
from millrace.client.calls import Make, calls_of, end_calls, replace_call
from millrace.client.counts import all_holders, cursor_seqs, shard_counts, sums
from millrace.client.cursor import Cursor, Pinned, Start, begin_at, starts_at
from millrace.client.engine import Engine
from millrace.client.grant import Grant, Keepalive
from millrace.client.lease import Lease, Leases, followed
from millrace.client.leasing import Handed, hand_out, lease_command, read_granted
from millrace.client.message import Body
from millrace.client.named import count_partitions, delete_named, explain_at, get_named
from millrace.client.position import Position, await_cursor, locate, read_position
from millrace.client.publishing import Publishing
from millrace.client.redrive import Edit, Redrive, Where, target_of
from millrace.client.session import Session, opening, resuming
from millrace.client.settings import QueueSettings, make_spec
from millrace.client.shards import Shards, peek_across
from millrace.client.work import Work
from millrace.core import check
from millrace.core.answers import Explanation, Leased
from millrace.core.commands import (
    Configure,
    Discard,
    Extend,
    OpenCursor,
    Purge,
    Release,
    Rewind,
    Settle,
    SpecPart,
)
from millrace.core.commands import Lease as LeaseCommand
from millrace.core.holder import Holders
from millrace.core.model import QueueSpec, Row, ShardId
from millrace.core.notes import Most
from millrace.errors import Refused

T = TypeVar("T")


class Queue(Publishing):
    """A named queue: publish, lease and settle, follow.

    Every call that changes something returns once that can no longer be lost, by the meaning of
    the queue's journal. All of them raise `NotFound` once the queue was deleted, also if another
    one was made under its name.
    """

    def __init__(
        self, engine: Engine, keepalive: Keepalive, space: str, name: str, shards: Shards
    ) -> None:
        super().__init__(engine, shards)
        self._keepalive = keepalive
        self._space = space
        self._name = name

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
        them was settled, released, extended or ran out. The queue must then have one shard.
        Where `max_in_flight` messages are with workers, it is given nothing before one of them has
        ended or is ready again.

        Raises:
            Full: too many messages are in flight; settle some first.
        """
        command, wait_ms = lease_command(count, seconds, wait, attempt)
        return await self._lease(command, wait_ms)

    async def _lease(self, command: LeaseCommand, wait_ms: int) -> list[Lease]:
        return (await lease_handed(self, command, wait_ms)).leases

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

        command = LeaseCommand(count, lease_ms)
        return Work(self._engine, lambda wait_ms: self._lease(command, wait_ms), idle_ms=idle_ms)

    async def settle(self, leases: Leases, *, on_time: bool = False) -> dict[int, Refused]:
        """Settle a lease or a receipt, or several; see `Lease.settle`.

        A single one that is refused raises why. Of several each is judged alone: the seqs that were
        refused come back, with the reason. With `on_time` also those are refused, as `Late`, whose
        deadline is over, although nobody else has leased them; nothing becomes of them.

        Raises:
            Forged: a receipt or lease is not of this queue; nothing was settled.
            Retry: some of several may have been settled. Ask again with the same ones: that
                settles the others, and answers for all of them.
        """
        timed = check.flag(on_time, "on_time")
        return await self._end(leases, lambda c: Settle(c.lease, c.seqs, c.history, timed))

    async def release(
        self, leases: Leases, *, failed: bool = False, delay: float = 0, on_time: bool = False
    ) -> dict[int, Refused]:
        """Give a lease or a receipt back, or several; see `Lease.release`.

        Refusals come as with `settle`.
        """
        failed = check.flag(failed, "failed")
        delay_ms = check.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
        timed = check.flag(on_time, "on_time")
        return await self._end(
            leases,
            lambda c: Release(c.lease, c.seqs, c.history, failed, delay_ms, on_time=timed),
        )

    async def discard(self, leases: Leases) -> dict[int, Refused]:
        """Make dead letters of a lease or a receipt, or several; see `Lease.discard`.

        Refusals come as with `settle`.
        """
        return await self._end(leases, lambda c: Discard(c.lease, c.seqs, c.history))

    async def replace(self, receipt: str, body: Body, *, seconds: float = 30) -> Lease:
        """Put another message in the place of a leased one, by its receipt; see `Lease.replace`.

        A `Worker`, `async with` or `Queue.work` of this `Millrace` that holds the message goes on
        with the successor. One of another process or connection does not hear of it.
        """
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        [call] = calls_of(self._engine, self._shards, self._name, [receipt])
        lease = followed(self._keepalive, call)
        if lease is not None:
            return await lease.replace(body, seconds=seconds)
        return await replace_call(self._engine, self._keepalive, self._shards, call, body, lease_ms)

    async def extend(
        self, leases: Leases, seconds: float, *, on_time: bool = False
    ) -> dict[int, Refused]:
        """Hold a lease or a receipt, or several, for so many seconds from now.

        Refusals come as with `settle`.
        """
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        timed = check.flag(on_time, "on_time")
        return await self._end(
            leases, lambda c: Extend(c.lease, c.seqs, c.history, lease_ms, timed)
        )

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
        for `suspect` seconds. `resume` is the id of a session that goes on, as it was opened. The
        queue must have one shard.
        """
        shard = self._shards.only("a session", "shards", "lease from this one")
        begin = (
            opening(credit, refill, lease, suspect, name)
            if resume is None
            else resuming(self._engine, shard, resume)
        )
        return Session(self._engine, self._keepalive, shard, begin, self._shards.label)

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

        A cursor has one follower: those that opened it before are fenced from now on (`Fenced`).
        `start` is "beginning", "end", a datetime, a seq of the present history (the first to be
        read), or a position (of a snapshot or a cursor) or its token. At a position the cursor goes
        on from there, also where it is there already and stands elsewhere: for followers that keep
        their position with what they make of the rows. A retaining cursor is also shown what
        workers settle before it comes by; it is bounded in age.

        Raises:
            Exists: it is there, and retains where this does not, or the other way round.
            Invalid: `start` is no place in the queue.
            RolledBack: what was read up to that position was taken back, by a restore or a
                takeover; undo what came after `error.position`, and go on from there.
            CursorExpired: `start` lies behind rows that are gone; begin anew.
        """
        checked = check.name(name, "name")
        retain = check.flag(retain, "retain")
        cells = await begin_at(
            self._engine,
            self._shards,
            start,
            lambda place: OpenCursor(checked, place, retain, claims=True),
        )
        return Cursor(self._engine, self._shards, checked, cells)

    async def position(self) -> Position:
        """Where the queue ends now: behind everything that was published before this was asked."""
        return await locate(self._engine, self._shards)

    async def wait_for(
        self, position: Position | str, *, cursor: str, wait: float | None = 60
    ) -> None:
        """Wait until the follower of a cursor has committed everything up to a position.

        With `queue.position()` after a publish that is synchronous delivery: when it returns, the
        follower has what was published, as far as it commits its own work and its cursor together.
        It counts from the end of the follower's snapshot on.

        Raises:
            NotYet: it has not within `wait` seconds; None: wait however long that takes.
            RolledBack: the queue was restored or taken over, and what was published up to the
                position is not part of it any more; the publisher must do it again.
            CursorExpired: the cursor held rows back for too long, and was dropped.
            NotFound: there is no such cursor, or it was deleted meanwhile.
        """
        name = check.name(cursor, "cursor")
        if wait is not None:
            check.millis(wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
        places = read_position(position, self._shards)
        await await_cursor(self._engine, self._shards, name, places, wait)

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
        space/name), each exactly once. Letters of a pipeline go back to the queue that it reads,
        if that is of the same space, under the keys that the messages had. `where(row)` says which
        ones; the others stay, as if they had never been handed out. `edit(message)` returns what is
        published instead; headers that tell of their death are taken off before. `rate` is how many
        are moved in a second at most. With `dry_run` they are only counted. What comes while it
        runs is left for another time. Where nothing was moved, `stats.reason` says why.

        On a keyed queue what comes back is the newest revision of its key.
        """
        return Redrive(
            self._engine,
            self._shards,
            lambda count: self._lease(LeaseCommand(count, limits.REDRIVE_LEASE_MS), 0),
            space=self._space,
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


async def configure_notes(
    queue: Queue, notes: Mapping[str, str], most: Most | None = None
) -> QueueSpec:
    """Change notes of a queue; see `Queue.configure`.

    Raises:
        TooLarge: more than so many would begin alike; it has the limit of `most`.
    """
    command = Configure(SpecPart(notes=check.notes(notes)), most)
    return (await queue._all(lambda _: command, QueueSpec))[0]


async def purge_with_ids(queue: Queue) -> None:
    """Purge a queue and forget its de-duplication ids (`Purge.forgets_ids`)."""
    await queue._all(lambda _: Purge(forgets_ids=True), int)


async def settle_any_delivery(queue: Queue, receipt: str) -> None:
    """Settle the message of a receipt, also if it was leased again since."""
    await queue._end(
        receipt, lambda c: Settle(c.lease, c.seqs, c.history, on_time=False, any_delivery=True)
    )


async def extend_within(
    queue: Queue, receipt: str, seconds: float, most_seconds: float, *, any_delivery: bool = False
) -> None:
    """Hold the message of a receipt that is not late for so many seconds from now; 0: its time is
    over, and the receipt is good until somebody else has the message.

    `any_delivery`: as `Extend.any_delivery`.

    Raises:
        TooLarge: it would be held for more than `most_seconds` since it was handed out.
    """
    lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX, least_ms=0)
    most_ms = check.millis(most_seconds, "most_seconds", limits.LEASE_MS_MAX)
    await queue._end(
        receipt,
        lambda c: Extend(
            c.lease,
            c.seqs,
            c.history,
            lease_ms,
            on_time=True,
            most_ms=most_ms,
            any_delivery=any_delivery,
        ),
    )


async def lease_handed(
    queue: Queue, command: LeaseCommand, wait_ms: int, room: int | None = None
) -> Handed:
    """What a lease call is given, of so many bytes, and whether the queue's maximum is why that is
    nothing."""
    return await hand_out(queue._engine, queue._keepalive, queue._shards, command, wait_ms, room)


async def read_leased(
    queue: Queue, command: LeaseCommand, leased: Leased, room: int | None = None
) -> list[Lease]:
    """The messages that a call to the only shard of a queue was handed out."""
    shards = queue._shards
    grant = Grant(queue._engine, queue._keepalive, shards, shards.first, leased, command.lease_ms)
    return await read_granted(command, [(grant, leased)], room)
