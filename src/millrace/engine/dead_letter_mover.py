"""Moves dead letters: reads their rows on an I/O thread and submits `MoveDeadLetters` commands.

The mover keeps no state: doomed messages are listed in the cells of their leases. After an obstacle
(no room, no dead-letter queue) the next tick retries. A message that cannot be read, or is too
large for a record of this log, stays doomed and does not delay the others.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from pyroaring import BitMap64

from millrace import limits
from millrace.core.changes import Batch
from millrace.core.commands import MoveDeadLetters
from millrace.core.model import NewMessage, ShardId
from millrace.core.state.view import View
from millrace.engine.command_request import CommandRequest
from millrace.engine.commit_loop import CommitLoop
from millrace.errors import Corrupt, Fatal, Full, MillraceError, TooLarge
from millrace.store.base import Store
from millrace.store.unreadable import Unreadable
from millrace.wal.io_thread import IoThread


class DeadLetterMover:
    """Moves the dead letters of a group's queues to their dead-letter queues."""

    def __init__(self, commit_loop: CommitLoop, store: Store, read_thread: IoThread) -> None:
        self._commit_loop = commit_loop
        self._store = store
        self._read_thread = read_thread
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[ShardId, asyncio.Task[None]] = {}
        self._is_stopping = False
        commit_loop.add_listener(self)

    async def stop(self) -> None:
        """Start no more moves; commands that were submitted may still be executed."""
        self._is_stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def on_failure(self, error: Fatal) -> None:
        """Do nothing: a running move gets the error from its own request."""

    def on_commit(self, view: View, batch: Batch | None) -> None:
        """Start moving the doomed messages of a shard, unless a move is running."""
        shard = view.shard
        if view.doomed and not (self._is_stopping or shard in self._tasks or view.quarantine):
            task = self._loop.create_task(self._move(shard))
            self._tasks[shard] = task
            task.add_done_callback(lambda _: self._tasks.pop(shard, None))

    async def _move(self, shard: ShardId) -> None:
        """Move all dead letters that can be moved now."""
        passed, count = 0, limits.BURY_MESSAGES_MAX
        try:
            while seqs := self._doomed(shard, passed, count):
                try:
                    if not await self._bury(shard, seqs):
                        return
                    count = min(2 * count, limits.BURY_MESSAGES_MAX)
                except (TooLarge, Corrupt) as error:
                    if isinstance(error, Unreadable):
                        self._commit_loop.quarantine(error)
                    if len(seqs) == 1:
                        # This message cannot be read or exceeds a record of this log; the others
                        # can be moved.
                        passed = seqs.max()
                    count = max(len(seqs) // 2, 1)
                except Full:
                    if len(seqs) == 1:
                        return
                    # The dead-letter queue may have room for part of them.
                    count = len(seqs) // 2
        except MillraceError:
            # Nothing was moved, or the engine has ended: the messages stay doomed until the next
            # tick.
            return

    def _doomed(self, shard: ShardId, passed: int, count: int) -> BitMap64:
        """Return up to `count` doomed seqs above `passed`."""
        view = self._commit_loop.view(shard)
        if view is None or self._store.meta(shard) is None:
            return BitMap64()
        return BitMap64(islice((seq for seq in view.doomed if seq > passed), count))

    async def _bury(self, shard: ShardId, seqs: BitMap64) -> bool:
        """Move these messages, or the first that fit; return True if more may be left."""
        store = self._store
        if not store.hot(shard, seqs):
            await self._read_thread.submit(store.warm(shard, seqs))
            if store.meta(shard) is None:
                return False
        rows = store.rows(shard, seqs, limits.BURY_BYTES_MAX)
        if not rows:
            return False
        letters = tuple(
            (row.seq, row.time_ms, NewMessage(row.body, row.key, row.headers)) for row in rows
        )
        request = CommandRequest(shard, MoveDeadLetters(letters), self._loop.create_future())
        self._commit_loop.submit(request)
        return bool(await request.future)
