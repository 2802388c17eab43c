"""Follows a queue for a stream, at the driver: cursor, offsets and batches.

Rule 1: Spark asks for the rows after an offset once that offset is in its commit log. So the cursor
moves there at that moment, also within a snapshot, and not before.

Rule 2: a snapshot that was not read to its end is offered again, unchanged, before another one is
taken: limits cut within it, and a deleted checkpoint repeats the same ranges.

Rule 3: an offset alone determines the rows of its batch. On a restart, Spark plans the open batch
before any other call.

Rule 4: a named cursor is created at once, so that every offset identifies it. An unnamed one is
created when Spark first asks for rows to read: `begin` is called twice, and again when the first
batch is repeated.

Rule 5: rows that were removed unread are an error, or everything is read again; they are never
skipped.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from millrace import limits
from millrace.client.cursor import Cursor
from millrace.client.millrace import Millrace
from millrace.client.multi_shard_cursor import (
    claim_cursor,
    commit_at,
    cursor_at,
    cursor_ids,
    dropped_cursors,
    find_cursor,
    open_at,
)
from millrace.client.position import see_places
from millrace.client.queue import engine_and_shards
from millrace.client.snapshot_token import (
    claims_of,
    read_snapshot_token,
    resume_at,
    use_claims,
    write_snapshot_token,
)
from millrace.core.model import CursorPosition
from millrace.errors import (
    CursorExpired,
    Exists,
    Fenced,
    NotFound,
    Refused,
    SnapshotExpired,
    Stale,
)
from millrace.spark.limit import BatchLimit, cut
from millrace.spark.offset import Offset
from millrace.spark.options import Options
from millrace.spark.read import ReadPartition, split
from millrace.spark.subject import Subject, look

MINTED = "spark-"
"""Prefix of generated cursor names."""


class Follower:
    """Follows a queue by a retaining cursor, so that rows settled by workers are read, too."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._first: Offset | None = None
        self._subject: Subject | None = None
        self._cursor: Cursor | None = None
        self._committed: tuple[int, ...] = ()
        self._target: tuple[int, ...] | None = None
        self._over: tuple[Offset, Offset] | None = None
        """The offset that Spark still passes after rows were lost, and the offset of the restart
        that replaces it.
        """

    @property
    def is_aimed(self) -> bool:
        """True if the query ends at a fixed target."""
        return self._target is not None

    # --- Start ----------------------------------------------------------------------------------

    async def begin(self, m: Millrace) -> Offset:
        """Return the start of a query without a checkpoint."""
        if self._first is not None:
            return self._first
        options = self._options
        subject = await look(m, options)
        name = options.cursor or MINTED + secrets.token_hex(8)
        found = await find_cursor(subject.queue, name) if options.cursor else None
        ids: tuple[int, ...] = ()
        seqs: tuple[int, ...] = ()
        if found is None:
            seqs = await subject.places(options.starting, "startingOffsets")
            found = await self._made(subject, name, seqs) if options.cursor else None
        if found is not None:
            _check_retains(found)
            ids = cursor_ids(found)
            seqs = tuple(position.seq for position in found.positions)
        shards, history = subject.shards, subject.history
        self._first = Offset(
            1, options.space, options.queue, shards, history, name, ids, "", seqs, seqs
        )
        return self._first

    async def _made(self, subject: Subject, name: str, seqs: Sequence[int]) -> Cursor:
        try:
            kept = subject.history if self._options.starting.position else ""
            return await open_at(subject.queue, name, seqs, retain=True, history=kept)
        except CursorExpired:
            if self._options.fail_on_data_loss:
                raise
        return await open_at(subject.queue, name, (0,) * len(subject.shards), retain=True)

    async def aim(self, m: Millrace) -> None:
        """Set the present end of the queue as the end of the query."""
        self._target = (await look(m, self._options)).lasts

    # --- The next batch -------------------------------------------------------------------------

    async def next(self, m: Millrace, done: Offset, limit: BatchLimit) -> Offset | None:
        """Return the end of the batch after `done`, which Spark has committed; None: no rows are
        available.

        Raises:
            CursorExpired: unread rows were removed, and failOnDataLoss is true.
            Fenced: another driver has opened the cursor since.
            Stale: the cursor is ahead of the checkpoint.
            Refused: the queue was deleted and created again.
        """
        told = done
        if self._over is not None and told == self._over[0]:
            # The follower has started over, and Spark has committed nothing since.
            done = self._over[1]
        try:
            return await self._next(m, done, limit)
        except (CursorExpired, NotFound) as error:
            # NotFound: the queue or cursor was deleted, which loses rows as well.
            if self._options.fail_on_data_loss:
                raise _lost(error) from error
        self._over = told, await self._start_over(m, done)
        return await self._next(m, self._over[1], limit)

    async def _next(self, m: Millrace, done: Offset, limit: BatchLimit) -> Offset | None:
        _, cursor = await self._open(m, done)
        await self.commit(m, done)
        if self._target is not None and _covers(done.seqs, self._target):
            return None
        resume_at(cursor, done.seqs)
        wait = 0 if self.is_aimed else limits.SPARK_WAIT_SECONDS
        snapshot = await cursor.next(wait=wait, seconds=limits.SPARK_PIN_SECONDS)
        if snapshot is None:
            return None
        return msgspec.structs.replace(
            done,
            history=snapshot.id[0].hex(),
            ids=cursor_ids(cursor),
            ticket=write_snapshot_token(snapshot),
            after=done.seqs,
            seqs=await cut(snapshot, done.seqs, limit),
        )

    async def _open(self, m: Millrace, done: Offset) -> tuple[Subject, Cursor]:
        if self._subject is not None and self._cursor is not None:
            return self._subject, self._cursor
        options = self._options
        if options.cursor and options.cursor != done.cursor:
            raise Refused(
                f"cursor is {options.cursor!r}, and the checkpoint is of {done.cursor!r}; name "
                "that, or take another checkpoint",
                field="cursor",
            )
        subject = await self._check(m, done)
        if done.ids:
            history = bytes.fromhex(done.history)
            cursor = cursor_at(subject.queue, done.cursor, done.ids, history, done.seqs)
            # From here on, a driver that still runs elsewhere is fenced and can commit nothing.
            use_claims(cursor, claims_of(await claim_cursor(subject.queue, cursor)))
        else:
            await self._sweep(subject)
            history = bytes.fromhex(done.history)
            engine, shards = engine_and_shards(subject.queue)
            places = {
                shard: CursorPosition(history, seq, seq, seq)
                for shard, seq in zip(shards.ids, done.seqs, strict=True)
            }
            await see_places(engine, shards, places, "Spark has read what is gone")
            kept = subject.history if options.starting.position else ""
            cursor = await open_at(subject.queue, done.cursor, done.seqs, retain=True, history=kept)
        self._subject, self._cursor = subject, cursor
        return subject, cursor

    async def _check(self, m: Millrace, done: Offset) -> Subject:
        subject = await look(m, self._options)
        if (subject.queue.space, subject.queue.name) != (done.space, done.queue):
            raise Refused(
                f"the checkpoint is of queue {done.space}/{done.queue}; take another checkpoint",
                field="checkpointLocation",
            )
        if subject.shards != done.shards:
            raise NotFound(
                f"queue {done.queue!r} was deleted and made anew since the checkpoint was written",
                field="queue",
            )
        return subject

    async def _sweep(self, subject: Subject) -> None:
        """Delete generated cursors that the queue has dropped; their checkpoints no longer
        exist.
        """
        for name in await dropped_cursors(subject.queue, MINTED):
            cursor = await find_cursor(subject.queue, name)
            if cursor is not None:
                await cursor.delete()

    async def _start_over(self, m: Millrace, done: Offset) -> Offset:
        """Return an offset from which everything that is left is read again, with the cursor
        reset.
        """
        subject = await look(m, self._options)
        zeros = (0,) * len(subject.shards)
        found = await find_cursor(subject.queue, done.cursor)
        if found is None:
            found = await open_at(subject.queue, done.cursor, zeros, retain=True)
        else:
            await found.reset("beginning")
        self._subject, self._cursor, self._committed = subject, found, ()
        if self._target is not None:
            self._target = subject.lasts
        return msgspec.structs.replace(
            done,
            shards=subject.shards,
            history=subject.history,
            ids=cursor_ids(found),
            ticket="",
            after=zeros,
            seqs=zeros,
        )

    # --- Commits and plans ----------------------------------------------------------------------

    async def commit(self, m: Millrace, done: Offset) -> None:
        """Move the cursor to the offset that Spark has committed."""
        if not done.ticket or done.seqs == self._committed:
            return
        subject, cursor = await self._open(m, done)
        if (done.shards, done.ids) != (subject.shards, cursor_ids(cursor)):
            # The follower has started over since.
            return
        try:
            snapshot = read_snapshot_token(subject.queue, done.ticket)
            await commit_at(snapshot, done.seqs, claims_of(cursor))
        except SnapshotExpired:
            # The pin expired within the snapshot: the next read continues from there in a new one.
            return
        except Fenced:
            raise
        except Stale as error:
            found = await find_cursor(subject.queue, done.cursor)
            if found is None or _covers(done.seqs, [one.seq for one in found.positions]):
                # The cursor's history was replaced; the next read reports that.
                return
            raise Stale(
                f"cursor {done.cursor!r} stands further on than this checkpoint ({error}): another "
                "query reads by it, or the checkpoint is an older copy; take another cursor, or "
                "delete the checkpoint to go on where the cursor is",
                field="cursor",
            ) from error
        self._committed = done.seqs

    async def plan(self, m: Millrace, upto: Offset) -> list[ReadPartition]:
        """Split a batch into tasks.

        Raises:
            NotFound: its queue was deleted, and the batch with it.
        """
        if not upto.ticket:
            return []
        try:
            subject = await self._check(m, upto)
        except NotFound as error:
            raise NotFound(
                f"{error.message}: the batch that was open cannot be read again; delete the "
                "checkpoint, and empty what it has filled",
                field=error.field,
            ) from error
        snapshot = read_snapshot_token(subject.queue, upto.ticket)
        return split(
            snapshot,
            upto.after,
            upto.seqs,
            row_bytes=subject.row_bytes,
            partition_bytes=self._options.partition_bytes,
            partitions_min=self._options.partitions_min,
        )


def _covers(seqs: Sequence[int], others: Sequence[int]) -> bool:
    return all(seq >= other for seq, other in zip(seqs, others, strict=True))


def _check_retains(cursor: Cursor) -> None:
    if not cursor.retain:
        raise Exists(
            f"cursor {cursor.name!r} is there and does not retain: what workers settle before a "
            "stream comes by would be missed; delete it, or name another one",
            field="cursor",
        )


def _lost(error: CursorExpired | NotFound) -> Refused:
    """Add advice to the error."""
    hint = (
        "delete the checkpoint and empty what it has filled, or set failOnDataLoss=false to read "
        "everything again"
    )
    return type(error)(f"{error.message}; {hint}", field=error.field, limit=error.limit)
