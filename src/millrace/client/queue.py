"""`Queue`: lease and settle messages, sessions, cursors, snapshots and settings of one queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, Unpack

from millrace import limits
from millrace.client.cursor import Cursor, Pinned, Start, begin_at, starts_at
from millrace.client.engine import Engine
from millrace.client.lease import Lease, Leases, find_followed
from millrace.client.lease_calls import (
    Make,
    apply_to_leases,
    group_by_call,
    replace_call,
)
from millrace.client.lease_group import Keepalive, LeaseGroup
from millrace.client.leasing import (
    LeaseResult,
    lease_command,
    lease_messages,
    read_lease_groups,
)
from millrace.client.message import Body
from millrace.client.position import Position, await_cursor, locate, read_position
from millrace.client.publishing import Publishing
from millrace.client.queue_queries import (
    all_holders,
    count_partitions,
    cursor_seqs,
    delete_by_ids,
    explain_message,
    get_message,
    shard_counts,
    sums,
)
from millrace.client.redrive import Edit, Redrive, Where, target_of
from millrace.client.session import Session, opening, resuming
from millrace.client.settings import QueueSettings, make_spec
from millrace.client.shards import Shards, peek_across
from millrace.client.work import Work
from millrace.core import validate
from millrace.core.answers import Explanation, Holders, Leased
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
from millrace.core.commands import LeaseMessages as LeaseCommand
from millrace.core.model import Row, ShardId
from millrace.core.notes import NotesLimit
from millrace.core.spec import QueueSpec
from millrace.errors import Refused

T = TypeVar("T")


class Queue(Publishing):
    """A named queue: publish, lease and settle, follow.

    Calls that change something return once the change is durable, as the queue's journal defines
    it. All calls raise `NotFound` after the queue was deleted, even if another one was created
    under its name.
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
        """Name of the queue within its space."""
        return self._name

    @property
    def space(self) -> str:
        """Space of the queue."""
        return self._space

    @property
    def shards(self) -> Shards:
        """Shards of the queue: their `ids`, in order, and the `route` of messages to them."""
        return self._shards

    def __repr__(self) -> str:
        return f"<Queue {self._space}/{self._name}>"

    # --- Work ---------------------------------------------------------------------------------

    async def lease(
        self, count: int = 1, *, seconds: float = 30, wait: float = 0, attempt: str | None = None
    ) -> list[Lease]:
        """Lease up to `count` messages for `seconds`, waiting up to `wait` seconds for the first.

        Returns an empty list if none arrives in time. Released messages come first, by seq; then
        messages that were never delivered, by priority, those whose delay has just passed first,
        and by seq. Fewer than `count` may be returned although more are available: a call returns
        at most 64 MiB (`limits.LEASE_BYTES_MAX`), but at least one message. While `max_in_flight`
        messages are leased, none is returned until one of them ends or becomes ready again.

        If the call is cancelled, nothing stays leased. A call whose answer was lost can be repeated
        with the same id `attempt`: it then returns the same messages under the same receipts, for
        five minutes, unless one of them was settled, released, extended or has expired since.
        Attempts need a queue with one shard.

        Raises:
            Full: too many messages are in flight; settle some first.
        """
        command, wait_ms = lease_command(count, seconds, wait, attempt)
        return await self._lease(command, wait_ms)

    async def _lease(self, command: LeaseCommand, wait_ms: int) -> list[Lease]:
        return (await lease_with_result(self, command, wait_ms)).leases

    def work(self, *, batch: int = 10, seconds: float = 30, idle: float | None = None) -> Work:
        """Iterate over messages as they arrive: `async for lease in queue.work(): ...`.

        Prefetches up to `batch` messages, leased for `seconds`. Leases are extended automatically
        at half of that time, until the message is settled or released or the program drops the
        lease. The loop ends if no message arrives for `idle` seconds; with None it never does.
        Prefetched messages that were not delivered to the loop are then released. `async with
        lease:` within the loop settles each message.
        """
        count = validate.count(batch, "batch", limits.LEASE_MESSAGES_MAX)
        lease_ms = validate.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        idle_ms = None
        if idle is not None:
            idle_ms = validate.millis(idle, "idle", limits.WORK_IDLE_MS_MAX, least_ms=0)

        command = LeaseCommand(count, lease_ms)
        return Work(self._engine, lambda wait_ms: self._lease(command, wait_ms), idle_ms=idle_ms)

    async def settle(self, leases: Leases, *, on_time: bool = False) -> dict[int, Refused]:
        """Settle (acknowledge) one or several leases or receipts; see `Lease.settle`.

        For a single lease a refusal is raised. Several are decided one by one: the result maps the
        seqs of the refused ones to the reason. With `on_time`, leases past their deadline are
        refused, too, with `Late`, although nobody else has leased the message; they are left
        unchanged.

        Raises:
            Forged: a receipt or lease is not of this queue; nothing was settled.
            Retry: some of several may have been settled. Repeat the call with the same leases: it
                settles the rest and answers for all of them.
        """
        timed = validate.flag(on_time, "on_time")
        return await self._end(leases, lambda c: Settle(c.lease, c.seqs, c.history, timed))

    async def release(
        self, leases: Leases, *, failed: bool = False, delay: float = 0, on_time: bool = False
    ) -> dict[int, Refused]:
        """Release (nack) one or several leases or receipts; see `Lease.release`.

        Refusals are reported as by `settle`.
        """
        failed = validate.flag(failed, "failed")
        delay_ms = validate.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
        timed = validate.flag(on_time, "on_time")
        return await self._end(
            leases,
            lambda c: Release(c.lease, c.seqs, c.history, failed, delay_ms, on_time=timed),
        )

    async def discard(self, leases: Leases) -> dict[int, Refused]:
        """Turn the messages of one or several leases or receipts into dead letters; see
        `Lease.discard`.

        Refusals are reported as by `settle`.
        """
        return await self._end(leases, lambda c: Discard(c.lease, c.seqs, c.history))

    async def replace(self, receipt: str, body: Body, *, seconds: float = 30) -> Lease:
        """Replace a leased message, given by its receipt, with another one; see `Lease.replace`.

        A `Worker`, `async with` or `Queue.work` of this `Millrace` that holds the message continues
        with the successor. Those of another process or connection are not notified.
        """
        lease_ms = validate.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        [call] = group_by_call(self._engine, self._shards, self._name, [receipt])
        lease = find_followed(self._keepalive, call)
        if lease is not None:
            return await lease.replace(body, seconds=seconds)
        return await replace_call(self._engine, self._keepalive, self._shards, call, body, lease_ms)

    async def extend(
        self, leases: Leases, seconds: float, *, on_time: bool = False
    ) -> dict[int, Refused]:
        """Extend one or several leases or receipts to `seconds` from now.

        Refusals are reported as by `settle`.
        """
        lease_ms = validate.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        timed = validate.flag(on_time, "on_time")
        return await self._end(
            leases, lambda c: Extend(c.lease, c.seqs, c.history, lease_ms, timed)
        )

    async def _end(self, leases: Leases, make: Make) -> dict[int, Refused]:
        return await apply_to_leases(self._engine, self._shards, self._name, leases, make)

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
        """Open a session, which is pushed messages: `async with queue.session() as session: ...`.

        Iterate over the session to receive them. It holds up to `credit` messages at a time, and
        each settled message makes room for another. With `refill=False` it receives `credit`
        messages in total, and more after `Session.grant`. A session owns its messages while it
        lasts, or each for `lease` seconds. After its heartbeats stop, it keeps them for `suspect`
        seconds. `resume` is the id of a session to continue, with the options it was opened with.

        The queue must have one shard.
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
        """Return up to `count` messages after a seq, leased or not, without leasing them.

        Fewer than `count` may be returned although more exist: a call reads at most 64 MiB
        (`limits.PEEK_BYTES_MAX`), but at least one message. Continue after the seq of the last one.
        """
        count = validate.count(count, "count", limits.PEEK_MESSAGES_MAX)
        return await peek_across(self._engine, self._shards, after, count)

    async def get(self, seq: int | None = None, *, id: int | None = None) -> Row | None:
        """Return the message with this seq or id, or None if it does not exist (any more)."""
        return await get_message(self._engine, self._shards, seq, id)

    async def delete(self, ids: Sequence[int]) -> int:
        """Delete messages by id, leased or not; return how many existed.

        Needs a queue whose delivery is "partitions"; on other queues only the worker that leased a
        message can end it.
        """
        return await delete_by_ids(self._engine, self._shards, ids)

    async def partitions(self) -> int:
        """Return the current number of partitions; 0 if the delivery is "messages"."""
        return await count_partitions(self._engine, self._shards)

    async def explain(self, seq: int) -> Explanation:
        """Explain why a message is not delivered: leased, delayed, blocked or throttled until when,
        or dead.

        For a message that is delayed behind thousands of others, `until_ms` is None and
        `not_before_ms` is a lower bound of its delay; if both are None, it may be due already. For
        a dead message, `superseded_by` is the newest revision of its key, as long as the queue
        remembers the replacement.
        """
        return await explain_message(self._engine, self._shards, seq)

    async def stats(self) -> dict[str, int]:
        """Return durable counters: published = live + the sum of all the ways a message can end."""
        return sums(await self.shard_stats())

    async def shard_stats(self) -> list[dict[str, int]]:
        """Return the counters of each shard; `stats` returns their sums."""
        return await shard_counts(self._engine, self._shards)

    async def holders(self) -> Holders:
        """Return what holds back messages that could be removed otherwise, and how many."""
        return await all_holders(self._engine, self._shards)

    # --- Follow -------------------------------------------------------------------------------

    async def cursor(
        self, name: str, *, start: Start = "beginning", retain: bool = False
    ) -> Cursor:
        """Open a durable cursor (a follower's offset), creating it at `start` if it does not exist.

        A cursor has one follower: earlier ones are fenced from now on and get `Fenced`. `start` is
        "beginning", "end", a datetime, a seq of the current history (the first to be read), or a
        position (of a snapshot or a cursor) or its token. Given a position, the cursor continues
        there even if it exists and is elsewhere; this is for followers that store their position
        together with their results. A retaining cursor also reads messages that workers settle
        before it reaches them, up to an age limit.

        Raises:
            Exists: the cursor exists and differs in `retain`.
            Invalid: `start` is not a place in the queue.
            RolledBack: messages up to that position were undone by a restore or takeover; undo what
                you derived after `error.position`, and continue there.
            CursorExpired: the rows at `start` have been removed; begin again.
        """
        checked = validate.name(name, "name")
        retain = validate.flag(retain, "retain")
        cells = await begin_at(
            self._engine,
            self._shards,
            start,
            lambda place: OpenCursor(checked, place, retain, claims=True),
        )
        return Cursor(self._engine, self._shards, checked, cells)

    async def position(self) -> Position:
        """Return the current end of the queue, after every message published before this call."""
        return await locate(self._engine, self._shards)

    async def wait_for(
        self, position: Position | str, *, cursor: str, wait: float | None = 60
    ) -> None:
        """Wait until the follower of a cursor has committed everything up to a position.

        With `queue.position()` after a publish this is synchronous delivery: on return the follower
        has the message, provided that it commits its results and its cursor together. Only
        snapshots that were committed to their end count: a commit within a snapshot does not end
        the wait, even if it is past the position.

        Raises:
            NotYet: the timeout of `wait` seconds has passed; None waits without limit.
            RolledBack: the queue was restored or taken over, and no longer contains the messages up
                to the position; publish them again.
            CursorExpired: the cursor held back rows for too long, and was dropped.
            NotFound: the cursor does not exist, or was deleted during the wait.
        """
        name = validate.name(cursor, "cursor")
        if wait is not None:
            validate.millis(wait, "wait", limits.LEASE_WAIT_MS_MAX, least_ms=0)
        places = read_position(position, self._shards)
        await await_cursor(self._engine, self._shards, name, places, wait)

    async def cursors(self) -> dict[str, int]:
        """Return the cursors of the queue with the seq that each has committed, summed over
        shards."""
        return await cursor_seqs(self._engine, self._shards)

    def snapshot(self, *, seconds: float = 3600) -> Pinned:
        """Take a consistent snapshot: `async with queue.snapshot() as snapshot: ...`.

        It is pinned until the context ends, for at most `seconds`; reads always return the same
        rows.
        """
        pin_ms = validate.millis(seconds, "seconds", limits.PIN_MS_MAX)
        return Pinned(self._engine, self._shards, pin_ms)

    # --- Settings -----------------------------------------------------------------------------

    async def purge(self) -> int:
        """Delete all current messages, leased ones too; return the last seq that was deleted."""
        last_seqs = await self._all(lambda _: Purge(), int)
        return self._shards.place(self._shards.ids[-1], last_seqs[-1])

    async def rewind(self, start: Start) -> int:
        """Deliver the queue again to workers, from `start` on; return the first seq they will get.

        `start` is "beginning", "end", a seq (the first to be delivered) or a datetime. Current
        leases are lost, and all messages count their deliveries from zero.

        Raises:
            Invalid: the queue's retention is not "log", or `start` is not a place in it.
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
        """Move dead letters back: `await dead.redrive().run()`, or iterate over it for its
        progress.

        They return to the queues they came from, or go to the queue `to` (a name in this space, or
        space/name), each exactly once. Dead letters of a pipeline return to the queue that it
        reads, if that is in the same space, under the original keys. `where(row)` selects messages;
        the others stay as if they had never been delivered. `edit(message)` returns what is
        published instead; the headers that describe the failure are removed before. `rate` limits
        messages per second. With `dry_run` messages are only counted. Messages that arrive while it
        runs are left alone. If nothing was moved, `stats.reason` says why.

        On a keyed queue a message that returns becomes the newest revision of its key.
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
        """Return the settings of the queue."""
        return await self._engine.spec(self._shards.first)

    async def configure(self, **settings: Unpack[QueueSettings]) -> QueueSpec:
        """Change settings of the queue (see `Millrace.queue`), and leave the others as they are.

        Raises:
            NotFound: the queue `dead_letter` does not exist.
            Invalid: a setting has an invalid value; or `retention` would change from "log" to
                "work" after messages were delivered: the settled ones would never be removed.
        """
        spec = make_spec(self._space, settings)
        return (await self._all(lambda _: Configure(spec), QueueSpec))[0]


def engine_and_shards(queue: Queue) -> tuple[Engine, Shards]:
    """Return the engine and the shards of a queue."""
    return queue._engine, queue._shards


def engine_and_shard(queue: Queue) -> tuple[Engine, ShardId]:
    """Return the engine and the first shard of a queue."""
    return queue._engine, queue._shards.first


async def configure_notes(
    queue: Queue, notes: Mapping[str, str], most: NotesLimit | None = None
) -> QueueSpec:
    """Change notes of a queue; see `Queue.configure`.

    Raises:
        TooLarge: more names than `most` allows would share a prefix.
    """
    command = Configure(SpecPart(notes=validate.notes(notes)), most)
    return (await queue._all(lambda _: command, QueueSpec))[0]


async def purge_with_ids(queue: Queue) -> None:
    """Purge a queue and forget its de-duplication ids (`Purge.forgets_ids`)."""
    await queue._all(lambda _: Purge(forgets_ids=True), int)


async def settle_any_delivery(queue: Queue, receipt: str) -> None:
    """Settle the message of a receipt, even if it was leased again since."""
    await queue._end(
        receipt, lambda c: Settle(c.lease, c.seqs, c.history, on_time=False, any_delivery=True)
    )


async def extend_within(
    queue: Queue, receipt: str, seconds: float, most_seconds: float, *, any_delivery: bool = False
) -> None:
    """Extend the lease of a receipt that is on time to `seconds` from now.

    With 0 seconds the lease ends now; the receipt stays valid until another worker gets the
    message. `any_delivery`: as `Extend.any_delivery`.

    Raises:
        TooLarge: the message would be held for more than `most_seconds` since its delivery.
    """
    lease_ms = validate.millis(seconds, "seconds", limits.LEASE_MS_MAX, least_ms=0)
    most_ms = validate.millis(most_seconds, "most_seconds", limits.LEASE_MS_MAX)
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


async def lease_with_result(
    queue: Queue, command: LeaseCommand, wait_ms: int, room: int | None = None
) -> LeaseResult:
    """Make a lease call that returns at most `room` bytes; see `LeaseResult`."""
    return await lease_messages(
        queue._engine, queue._keepalive, queue._shards, command, wait_ms, room
    )


async def read_leased(
    queue: Queue, command: LeaseCommand, leased: Leased, room: int | None = None
) -> list[Lease]:
    """Read the messages that a lease call to a queue with one shard was granted."""
    shards = queue._shards
    group = LeaseGroup(
        queue._engine, queue._keepalive, shards, shards.first, leased, command.lease_ms
    )
    return await read_lease_groups(command, [(group, leased)], room)
