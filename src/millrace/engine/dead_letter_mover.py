"""The mover of dead letters: reads them beside the loop, and has the host bury them.

It remembers nothing: what is doomed stands in the cells of the leases. Where something is in the
way (no room, no queue to take them), the next look tries again. One that cannot be read, or is too
large for a record of this log, stays doomed, and keeps no other from being moved.
"""

from __future__ import annotations

import asyncio
from itertools import islice

from pyroaring import BitMap64

from millrace import limits
from millrace.core.changes import Batch
from millrace.core.commands import Bury
from millrace.core.model import Message, ShardId
from millrace.core.view import View
from millrace.engine.commit_loop import CommitLoop
from millrace.engine.request import Request
from millrace.errors import Corrupt, Fatal, Full, MillraceError, TooLarge
from millrace.store.base import Store
from millrace.store.unreadable import Unreadable
from millrace.wal.io_thread import IoThread


class DeadLetterMover:
    """Takes the dead letters of a group's queues to where they go."""

    def __init__(self, host: CommitLoop, store: Store, reading: IoThread) -> None:
        self._host = host
        self._store = store
        self._reading = reading
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[ShardId, asyncio.Task[None]] = {}
        self._is_stopping = False
        host.tell(self)

    async def stop(self) -> None:
        """Begin nothing more; what the host was asked for it may still do."""
        self._is_stopping = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def end(self, error: Fatal) -> None:
        """Who moves finds out by itself."""

    def stir(self, view: View, batch: Batch | None) -> None:
        """Move what is doomed, unless that is being done."""
        shard = view.shard
        if view.doomed and not (self._is_stopping or shard in self._tasks or view.quarantine):
            task = self._loop.create_task(self._move(shard))
            self._tasks[shard] = task
            task.add_done_callback(lambda _: self._tasks.pop(shard, None))

    async def _move(self, shard: ShardId) -> None:
        """Bury all that can be buried now."""
        passed, count = 0, limits.BURY_MESSAGES_MAX
        try:
            while seqs := self._doomed(shard, passed, count):
                try:
                    if not await self._bury(shard, seqs):
                        return
                    count = min(2 * count, limits.BURY_MESSAGES_MAX)
                except (TooLarge, Corrupt) as error:
                    if isinstance(error, Unreadable):
                        self._host.quarantine(error)
                    if len(seqs) == 1:
                        # It cannot be read, or no record of this log holds it: the others can.
                        passed = seqs.max()
                    count = max(len(seqs) // 2, 1)
                except Full:
                    if len(seqs) == 1:
                        return
                    # Where they go there may be room for some of them.
                    count = len(seqs) // 2
        except MillraceError:
            # Nothing was moved, or the engine has ended: they stay doomed until the next look.
            return

    def _doomed(self, shard: ShardId, passed: int, count: int) -> BitMap64:
        """The first ones that come after `passed`."""
        view = self._host.view(shard)
        if view is None or self._store.meta(shard) is None:
            return BitMap64()
        return BitMap64(islice((seq for seq in view.doomed if seq > passed), count))

    async def _bury(self, shard: ShardId, seqs: BitMap64) -> bool:
        """Have these buried, or the first of them; whether there may be more."""
        store = self._store
        if not store.hot(shard, seqs):
            await self._reading.submit(store.warm(shard, seqs))
            if store.meta(shard) is None:
                return False
        rows = store.rows(shard, seqs, limits.BURY_BYTES_MAX)
        if not rows:
            return False
        letters = tuple(
            (row.seq, row.time_ms, Message(row.body, row.key, row.headers)) for row in rows
        )
        request = Request(shard, Bury(letters), self._loop.create_future())
        self._host.submit(request)
        return bool(await request.future)
