"""The forwarder of topics: brings what was published to the queues that are subscribed.

It is woken by the commit of what was published, and takes the rows from there, as blocks; where a
subscription has fallen behind, they are read from the store, beside the loop. It remembers nothing
that matters: how far each subscription has come stands in its cell.

Rule 1: one round per topic is on its way. What comes meanwhile goes with the next one.
Rule 2: a round serves all subscriptions that are behind, those of different places side by side.
One whose queue refuses is left alone until the next tick; the others go on.
Rule 3: what is in the way of all of them (no room, an engine that ends) ends the round; the next
commit or tick begins another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
import numpy as np

from millrace import limits
from millrace.core import carry, filters, picking
from millrace.core.block import Block
from millrace.core.changes import Batch
from millrace.core.codec import decode_cell
from millrace.core.filters import Filter
from millrace.core.model import CATALOG, Kind, ShardId
from millrace.core.topic import passed_by_all
from millrace.core.topic_cells import SubscriptionCell, TopicCell
from millrace.core.topic_commands import Brought, Forward, Forwarded, Parcel
from millrace.core.view import View
from millrace.engine.commit_loop import CommitLoop
from millrace.engine.forward_waiters import (
    Fates,
    ForwardWaiters,
    Places,
    Result,
)
from millrace.engine.request import Request, size_of
from millrace.engine.topic_row_cache import (
    Bounds,
    Chunk,
    Rows,
    TopicRowCache,
    read,
)
from millrace.errors import Corrupt, Fatal, Full, MillraceError, TooLarge, detached
from millrace.store.unreadable import Unreadable
from millrace.wal.io_thread import IoThread

_SUBSCRIPTION = Kind.SUBSCRIPTION


class _Line:
    """One topic at work."""

    def __init__(self) -> None:
        self.shelf = TopicRowCache()
        self.arrivals = ForwardWaiters()
        self.task: asyncio.Task[None] | None = None
        self.refused: dict[int, MillraceError] = {}
        """Subscriptions that wait for the next tick, and why."""
        self.trouble: dict[int, MillraceError] = {}
        """Subscriptions that got nowhere lately, and why."""
        self.turn = 0
        """The subscription that was served last."""
        self.rows_max = limits.PUBLISH_MESSAGES_MAX
        """So many rows of a parcel fit into a record, as far as is known."""
        self.filters: dict[str, Filter | None] = {}


class TopicForwarder:
    """Forwards what was published to a group's topics."""

    def __init__(
        self,
        host: CommitLoop,
        rows: Rows,
        reading: IoThread,
        now_ms: Callable[[], int],
        record_bytes_max: int,
    ) -> None:
        self._host = host
        self._rows = rows
        self._reading = reading
        self._now_ms = now_ms
        self._record_bytes = min(limits.RECORD_BYTES_TARGET, record_bytes_max)
        """Parcels that are brought together have so many bytes; it falls where that is too much."""
        self._chunk_bytes = min(limits.FORWARD_BYTES_MAX, record_bytes_max // 2)
        self._loop = asyncio.get_running_loop()
        self._lines: dict[ShardId, _Line] = {}
        self._is_stopping = False
        self._failed: Fatal | None = None
        host.tell(self)

    def begin(self) -> None:
        """Go on where an earlier engine has stopped."""
        rows = self._rows
        for _, _, value in rows.cells(CATALOG, Kind.TOPIC):
            topic = decode_cell(Kind.TOPIC, value)
            shard = ShardId(topic.shard) if isinstance(topic, TopicCell) else CATALOG
            meta = rows.meta(shard)
            cells = [decode_cell(kind, cell) for kind, _, cell in rows.cells(shard, _SUBSCRIPTION)]
            places = [cell.passed for cell in cells if isinstance(cell, SubscriptionCell)]
            if meta is not None and any(place < meta.last_seq for place in places):
                view = self._host.view(shard)
                if view is not None:
                    self.stir(view, None)

    async def stop(self) -> None:
        """Begin nothing more; what the host was asked for it may still do."""
        self._is_stopping = True
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for line in self._lines.values():
            line.arrivals.close()

    def arrived(self, shard: ShardId, first: int, count: int) -> asyncio.Future[Fates]:
        """What became of rows that were published to a topic, once every queue has them.

        Nothing is said of an engine that is being closed.

        Raises:
            Fatal: the host has failed.
        """
        if self._failed is not None:
            raise self._failed.again()
        view = None if self._is_stopping else self._host.view(shard)
        subscriptions = view.subscriptions if view is not None else {}
        line = self._line(shard)
        future = line.arrivals.expect(first, count, subscriptions)
        self._look(line, view)
        return future

    def trouble(self, shard: ShardId) -> dict[int, MillraceError]:
        """The subscriptions of a topic whose queues refuse what they are sent, and why."""
        line = self._lines.get(shard)
        return dict(line.trouble) if line is not None else {}

    def _line(self, shard: ShardId) -> _Line:
        return self._lines.setdefault(shard, _Line())

    def end(self, error: Fatal) -> None:
        """Those who wait hear that nothing is known any more."""
        self._failed = detached(error.again())
        for line in self._lines.values():
            line.arrivals.fail(error)

    def stir(self, view: View, batch: Batch | None) -> None:
        """Take new rows to hand, and forward what is behind, unless that is being done."""
        if view.topic is None or self._is_stopping:
            return
        if view.dropped:
            line = self._lines.pop(view.shard, None)
            if line is not None:
                line.arrivals.look({})
            return
        line = self._line(view.shard)
        if batch is None:
            line.refused.clear()
        elif batch.changes.firsts and view.subscriptions:
            line.shelf.add(batch)
        self._look(line, view)
        if line.task is None and view.is_behind():
            line.task = self._loop.create_task(self._run(view.shard, line))

    def _look(self, line: _Line, view: View | None) -> None:
        if line.task is None:
            line.arrivals.look(view.subscriptions if view is not None else {})

    async def _run(self, shard: ShardId, line: _Line) -> None:
        """Forward all that can be forwarded now."""
        try:
            while parcels := await self._gather(shard, line):
                await self._send(shard, line, parcels)
                line.arrivals.look(self._cells(shard))
                view = self._host.view(shard)
                line.shelf.drop_to(passed_by_all(view) if view is not None else 0)
            line.arrivals.look(self._cells(shard))
        except MillraceError:
            # Nothing was moved, or the engine has ended: a commit or the next tick tries again.
            return
        finally:
            line.task = None

    # --- What goes next -------------------------------------------------------------------------

    async def _gather(self, shard: ShardId, line: _Line) -> list[tuple[Parcel, Places | None]]:
        """A parcel for each subscription that is behind, as many as one round holds."""
        view, meta = self._host.view(shard), self._rows.meta(shard)
        if view is None or meta is None:
            return []
        upto = meta.last_seq
        behind = [
            (number, cell)
            for number, cell in view.subscriptions.items()
            if cell.passed < upto and number not in line.refused
        ]
        behind.sort(key=lambda item: (item[0] <= line.turn, item[0]))
        chunks: dict[int, Chunk] = {}
        made: dict[tuple[int, str], tuple[Parcel, Places | None]] = {}
        parcels: list[tuple[Parcel, Places | None]] = []
        size = 0
        for number, cell in behind:
            try:
                if cell.passed not in chunks:
                    chunks[cell.passed] = await self._chunk(shard, line, cell.passed, upto)
                known = (cell.passed, cell.filter)
                if known not in made:
                    made[known] = await self._pack(line, chunks[cell.passed], cell)
            except Corrupt as error:
                if isinstance(error, Unreadable):
                    self._host.quarantine(error)
                # The others may be elsewhere.
                line.refused[number] = line.trouble[number] = detached(error)
                continue
            parcel, at = made[known]
            parcels.append((_addressed(parcel, number), at))
            line.turn = number
            size += size_of(Forward((parcel,)))
            if size >= limits.FORWARD_ROUND_BYTES_MAX or len(parcels) == limits.FORWARD_PARCELS_MAX:
                break
        return parcels

    async def _chunk(self, shard: ShardId, line: _Line, after: int, upto: int) -> Chunk:
        bounds = Bounds(line.rows_max, self._chunk_bytes)
        found = line.shelf.find(after, bounds)
        if found is None:
            found = await read(self._rows, self._reading, shard, after, upto, bounds)
        return found._replace(block=carry.number(found.block, found.after))

    async def _pack(
        self, line: _Line, chunk: Chunk, cell: SubscriptionCell
    ) -> tuple[Parcel, Places | None]:
        """What passes the subscription's filter, and which rows that are if not all."""
        if cell.filter not in line.filters:
            if len(line.filters) >= limits.SUBSCRIPTIONS_MAX:
                line.filters.clear()
            line.filters[cell.filter] = filters.load(cell.filter)
        wanted = line.filters[cell.filter]
        block, at = chunk.block, None
        times: Sequence[tuple[int, int]] = chunk.times
        if not block.count:
            # The rows have ended: no queue gets them.
            at = np.empty(0, np.int64)
        elif wanted is not None:
            mask = await self._judge(wanted, block)
            if not mask.all():
                at = np.flatnonzero(mask)
                block = picking.take(block, at)
                every = [time_ms for many, time_ms in times for _ in range(many)]
                times = [(1, every[place]) for place in at.tolist()]
        aside, lives = carry.unpack(block, times, self._now_ms())
        return (
            Parcel(
                0,
                chunk.after,
                chunk.upto,
                block if block.count else None,
                chunk.block.count - block.count,
                aside,
                lives,
                cell.filter,
            ),
            at,
        )

    async def _judge(self, wanted: Filter, block: Block) -> filters.Flags:
        """Which rows pass a filter. What takes long is done in steps, and has half of the loop's
        time at most: whoever publishes and filters holds up nobody else."""
        steps = wanted.judge(block)
        while True:
            began = self._loop.time()
            try:
                next(steps)
            except StopIteration as end:
                return cast("filters.Flags", end.value)
            await asyncio.sleep(self._loop.time() - began)

    # --- On its way -------------------------------------------------------------------------------

    async def _send(
        self, shard: ShardId, line: _Line, parcels: list[tuple[Parcel, Places | None]]
    ) -> None:
        """Have the parcels brought, and note what became of them."""
        sent = {parcel.subscription: (parcel, at) for parcel, at in parcels}
        asked: list[tuple[Forward, asyncio.Future[object]]] = []
        failed: MillraceError | None = None
        for command in self._commands([parcel for parcel, _ in parcels], self._cells(shard)):
            request = Request(shard, command, self._loop.create_future())
            try:
                self._host.submit(request)
            except TooLarge as error:
                self._shrink(line, command, error)
            except MillraceError as error:
                failed = error
                break
            else:
                asked.append((command, request.future))
        answers = await asyncio.gather(*(f for _, f in asked), return_exceptions=True)
        for (command, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, Forwarded):
                line.rows_max = min(2 * line.rows_max, limits.PUBLISH_MESSAGES_MAX)
                for brought in answer.parcels:
                    self._note(line, *sent[brought.subscription], brought)
            elif isinstance(answer, TooLarge):
                self._shrink(line, command, answer)
            elif isinstance(answer, MillraceError):
                failed = answer
        if failed is not None:
            raise failed

    def _shrink(self, line: _Line, command: Forward, error: TooLarge) -> None:
        """With what is written down beside it, it does not fit into a record: bring less."""
        if len(command.parcels) > 1:
            self._record_bytes = max(self._record_bytes // 2, 1)
            return
        [parcel] = command.parcels
        rows = parcel.upto - parcel.after
        if rows > 1:
            line.rows_max = rows // 2
        else:
            # No record of this log holds it; others can be brought.
            line.refused[parcel.subscription] = line.trouble[parcel.subscription] = detached(error)

    def _commands(
        self, parcels: Sequence[Parcel], cells: dict[int, SubscriptionCell]
    ) -> list[Forward]:
        """As few commands as records can hold; none brings a queue two parcels."""
        commands: list[Forward] = []
        group: list[Parcel] = []
        queues: set[int | str] = set()
        size = 0
        for parcel in parcels:
            weight = size_of(Forward((parcel,)))
            cell = cells.get(parcel.subscription)
            # Rows of those that wait for their queues go to one of dead letters, or nowhere.
            queue = (cell.queue or cell.dead_letter) if cell is not None else 0
            if group and (size + weight > self._record_bytes or queue in queues):
                commands.append(Forward(tuple(group)))
                group, queues, size = [], set(), 0
            group.append(parcel)
            if queue:
                queues.add(queue)
            size += weight
        if group:
            commands.append(Forward(tuple(group)))
        return commands

    def _cells(self, shard: ShardId) -> dict[int, SubscriptionCell]:
        view = self._host.view(shard)
        return view.subscriptions if view is not None else {}

    def _note(self, line: _Line, parcel: Parcel, at: Places | None, brought: Brought) -> None:
        number = brought.subscription
        if brought.moved:
            line.trouble.pop(number, None)
            is_gone = brought.outcome != "forwarded"
            line.arrivals.note(
                Result(
                    number,
                    parcel.after,
                    parcel.upto,
                    brought.first,
                    at,
                    brought.places,
                    is_gone,
                    brought.gone,
                )
            )
        elif brought.error is not None:
            line.trouble[number] = brought.error
            rows = parcel.upto - parcel.after
            if rows > 1 and isinstance(brought.error, Full | TooLarge):
                # There may be room for some of them.
                line.rows_max = min(line.rows_max, rows // 2)
            else:
                line.refused[number] = brought.error


def _addressed(parcel: Parcel, number: int) -> Parcel:
    return msgspec.structs.replace(parcel, subscription=number)
