"""Forwards the messages of topics to the subscribed queues.

A commit to a topic wakes the forwarder, which takes the new rows from the batch as blocks. For a
subscription that lags behind, it reads rows from the store on an I/O thread. It keeps no state that
matters: the progress of each subscription is in its cell.

Rule 1: one round per topic is in flight. Rows that arrive during a round go with the next one.
Rule 2: a round serves all subscriptions that lag, at their different positions. A subscription
whose queue refuses is skipped until the next tick; the others go on.
Rule 3: an obstacle to all of them (no room, a closing engine) ends the round; the next commit or
tick starts another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
import numpy as np

from millrace import limits
from millrace.core.cells import Kind, SubscriptionCell, TopicCell
from millrace.core.changes import Batch
from millrace.core.format import block_ops
from millrace.core.format.block import Block
from millrace.core.format.codec import decode_cell
from millrace.core.model import CATALOG, ShardId
from millrace.core.publishing import life_headers
from millrace.core.state.view import View
from millrace.core.topic_commands import (
    Forward,
    ForwardedParcel,
    ForwardResult,
    Parcel,
)
from millrace.core.topics import filters
from millrace.core.topics.filters import Filter
from millrace.core.topics.topic import passed_by_all
from millrace.engine.command_request import CommandRequest, estimate_record_bytes
from millrace.engine.commit_loop import CommitLoop
from millrace.engine.forward_waiters import (
    ForwardOutcomes,
    ForwardWaiters,
    ParcelResult,
    RowPlaces,
)
from millrace.engine.topic_row_cache import (
    Chunk,
    ChunkLimits,
    TopicRowCache,
    TopicRowReader,
    read_chunk,
)
from millrace.errors import Corrupt, Fatal, Full, MillraceError, TooLarge, detached
from millrace.store.unreadable import Unreadable
from millrace.wal.io_thread import IoThread

_SUBSCRIPTION = Kind.SUBSCRIPTION


class _TopicState:
    """State of one topic."""

    def __init__(self) -> None:
        self.row_cache = TopicRowCache()
        self.waiters = ForwardWaiters()
        self.task: asyncio.Task[None] | None = None
        self.refused: dict[int, MillraceError] = {}
        """Subscriptions that are skipped until the next tick, with the reason."""
        self.errors: dict[int, MillraceError] = {}
        """Subscriptions whose last attempt failed, with the error."""
        self.turn = 0
        """The subscription that was served last."""
        self.rows_max = limits.PUBLISH_MESSAGES_MAX
        """Rows of one parcel that fit into a record, as an adaptive estimate."""
        self.filters: dict[str, Filter | None] = {}


class TopicForwarder:
    """Forwards the messages of a group's topics."""

    def __init__(
        self,
        commit_loop: CommitLoop,
        rows: TopicRowReader,
        read_thread: IoThread,
        now_ms: Callable[[], int],
        record_bytes_max: int,
    ) -> None:
        self._commit_loop = commit_loop
        self._rows = rows
        self._read_thread = read_thread
        self._now_ms = now_ms
        self._record_bytes = min(limits.RECORD_BYTES_TARGET, record_bytes_max)
        """Target size of the parcels in one record; it is halved if a record is refused as too
        large."""
        self._chunk_bytes = min(limits.FORWARD_BYTES_MAX, record_bytes_max // 2)
        self._loop = asyncio.get_running_loop()
        self._topics: dict[ShardId, _TopicState] = {}
        self._is_stopping = False
        self._failed: Fatal | None = None
        commit_loop.add_listener(self)

    def begin(self) -> None:
        """Resume topics with a backlog that an earlier engine left."""
        rows = self._rows
        for _, _, value in rows.cells(CATALOG, Kind.TOPIC):
            topic = decode_cell(Kind.TOPIC, value)
            shard = ShardId(topic.shard) if isinstance(topic, TopicCell) else CATALOG
            meta = rows.meta(shard)
            cells = [decode_cell(kind, cell) for kind, _, cell in rows.cells(shard, _SUBSCRIPTION)]
            places = [cell.passed for cell in cells if isinstance(cell, SubscriptionCell)]
            if meta is not None and any(place < meta.last_seq for place in places):
                view = self._commit_loop.view(shard)
                if view is not None:
                    self.on_commit(view, None)

    async def stop(self) -> None:
        """Start no more rounds; commands that were submitted may still be executed."""
        self._is_stopping = True
        tasks = [state.task for state in self._topics.values() if state.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for state in self._topics.values():
            state.waiters.close()

    def arrived(self, shard: ShardId, first: int, count: int) -> asyncio.Future[ForwardOutcomes]:
        """Return a future of the outcomes of rows that were published to a topic.

        It is done once all queues have the rows, or the engine is closed.

        Raises:
            Fatal: the commit loop has failed.
        """
        if self._failed is not None:
            raise self._failed.again()
        view = None if self._is_stopping else self._commit_loop.view(shard)
        subscriptions = view.subscriptions if view is not None else {}
        state = self._state_of(shard)
        future = state.waiters.expect(first, count, subscriptions)
        self._resolve_waits(state, view)
        return future

    def trouble(self, shard: ShardId) -> dict[int, MillraceError]:
        """Return the subscriptions whose queues refuse their messages, with the errors."""
        state = self._topics.get(shard)
        return dict(state.errors) if state is not None else {}

    def _state_of(self, shard: ShardId) -> _TopicState:
        return self._topics.setdefault(shard, _TopicState())

    def on_failure(self, error: Fatal) -> None:
        """Fail all waits: the outcomes are unknown."""
        self._failed = detached(error.again())
        for state in self._topics.values():
            state.waiters.fail(error)

    def on_commit(self, view: View, batch: Batch | None) -> None:
        """Cache new rows, and start a round if a subscription lags and none is running."""
        if view.topic is None or self._is_stopping:
            return
        if view.dropped:
            state = self._topics.pop(view.shard, None)
            if state is not None:
                state.waiters.look({})
            return
        state = self._state_of(view.shard)
        if batch is None:
            state.refused.clear()
        elif batch.changes.firsts and view.subscriptions:
            state.row_cache.add(batch)
        self._resolve_waits(state, view)
        if state.task is None and view.is_behind():
            state.task = self._loop.create_task(self._run(view.shard, state))

    def _resolve_waits(self, state: _TopicState, view: View | None) -> None:
        if state.task is None:
            state.waiters.look(view.subscriptions if view is not None else {})

    async def _run(self, shard: ShardId, state: _TopicState) -> None:
        """Forward everything that can be forwarded now."""
        try:
            while parcels := await self._next_parcels(shard, state):
                await self._send(shard, state, parcels)
                state.waiters.look(self._cells(shard))
                view = self._commit_loop.view(shard)
                state.row_cache.drop_to(passed_by_all(view) if view is not None else 0)
            state.waiters.look(self._cells(shard))
        except MillraceError:
            # Nothing was moved, or the engine has ended: a commit or the next tick retries.
            return
        finally:
            state.task = None

    # --- Parcels of the next round ----------------------------------------------------------------

    async def _next_parcels(
        self, shard: ShardId, state: _TopicState
    ) -> list[tuple[Parcel, RowPlaces | None]]:
        """Return a parcel for each lagging subscription, up to the size of a round."""
        view, meta = self._commit_loop.view(shard), self._rows.meta(shard)
        if view is None or meta is None:
            return []
        upto = meta.last_seq
        behind = [
            (number, cell)
            for number, cell in view.subscriptions.items()
            if cell.passed < upto and number not in state.refused
        ]
        behind.sort(key=lambda item: (item[0] <= state.turn, item[0]))
        chunks: dict[int, Chunk] = {}
        packed: dict[tuple[int, str], tuple[Parcel, RowPlaces | None]] = {}
        parcels: list[tuple[Parcel, RowPlaces | None]] = []
        size = 0
        for number, cell in behind:
            try:
                if cell.passed not in chunks:
                    chunks[cell.passed] = await self._chunk(shard, state, cell.passed, upto)
                cache_key = (cell.passed, cell.filter)
                if cache_key not in packed:
                    packed[cache_key] = await self._filter_chunk(state, chunks[cell.passed], cell)
            except Corrupt as error:
                if isinstance(error, Unreadable):
                    self._commit_loop.quarantine(error)
                # The other subscriptions may be at other rows.
                state.refused[number] = state.errors[number] = detached(error)
                continue
            parcel, at = packed[cache_key]
            parcels.append((_addressed(parcel, number), at))
            state.turn = number
            size += estimate_record_bytes(Forward((parcel,)))
            if size >= limits.FORWARD_ROUND_BYTES_MAX or len(parcels) == limits.FORWARD_PARCELS_MAX:
                break
        return parcels

    async def _chunk(self, shard: ShardId, state: _TopicState, after: int, upto: int) -> Chunk:
        chunk_limits = ChunkLimits(state.rows_max, self._chunk_bytes)
        chunk = state.row_cache.find(after, chunk_limits)
        if chunk is None:
            chunk = await read_chunk(
                self._rows, self._read_thread, shard, after, upto, chunk_limits
            )
        return chunk._replace(block=life_headers.number(chunk.block, chunk.after))

    async def _filter_chunk(
        self, state: _TopicState, chunk: Chunk, cell: SubscriptionCell
    ) -> tuple[Parcel, RowPlaces | None]:
        """Return the rows of a chunk that pass the filter as a parcel, with their indexes unless
        all pass."""
        if cell.filter not in state.filters:
            if len(state.filters) >= limits.SUBSCRIPTIONS_MAX:
                state.filters.clear()
            state.filters[cell.filter] = filters.load(cell.filter)
        policy = state.filters[cell.filter]
        block, at = chunk.block, None
        times: Sequence[tuple[int, int]] = chunk.times
        if not block.count:
            # The rows have expired or were dropped: no queue gets them.
            at = np.empty(0, np.int64)
        elif policy is not None:
            mask = await self._apply_filter(policy, block)
            if not mask.all():
                at = np.flatnonzero(mask)
                block = block_ops.take(block, at)
                every = [time_ms for many, time_ms in times for _ in range(many)]
                times = [(1, every[place]) for place in at.tolist()]
        aside, lives = life_headers.unpack(block, times, self._now_ms())
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

    async def _apply_filter(self, policy: Filter, block: Block) -> filters.Flags:
        """Return which rows pass a filter.

        Expensive filters run in steps and take at most half of the event loop's time, so that a
        costly filter delays no other client.
        """
        steps = policy.judge(block)
        while True:
            began = self._loop.time()
            try:
                next(steps)
            except StopIteration as end:
                return cast("filters.Flags", end.value)
            await asyncio.sleep(self._loop.time() - began)

    # --- Submitting -------------------------------------------------------------------------------

    async def _send(
        self, shard: ShardId, state: _TopicState, parcels: list[tuple[Parcel, RowPlaces | None]]
    ) -> None:
        """Submit the parcels and record the results."""
        sent = {parcel.subscription: (parcel, at) for parcel, at in parcels}
        submitted: list[tuple[Forward, asyncio.Future[object]]] = []
        failure: MillraceError | None = None
        for command in self._commands([parcel for parcel, _ in parcels], self._cells(shard)):
            request = CommandRequest(shard, command, self._loop.create_future())
            try:
                self._commit_loop.submit(request)
            except TooLarge as error:
                self._shrink(state, command, error)
            except MillraceError as error:
                failure = error
                break
            else:
                submitted.append((command, request.future))
        answers = await asyncio.gather(*(f for _, f in submitted), return_exceptions=True)
        for (command, _), answer in zip(submitted, answers, strict=True):
            if isinstance(answer, ForwardResult):
                state.rows_max = min(2 * state.rows_max, limits.PUBLISH_MESSAGES_MAX)
                for brought in answer.parcels:
                    self._record_result(state, *sent[brought.subscription], brought)
            elif isinstance(answer, TooLarge):
                self._shrink(state, command, answer)
            elif isinstance(answer, MillraceError):
                failure = answer
        if failure is not None:
            raise failure

    def _shrink(self, state: _TopicState, command: Forward, error: TooLarge) -> None:
        """Reduce the parcel size: with its cells it does not fit into a record."""
        if len(command.parcels) > 1:
            self._record_bytes = max(self._record_bytes // 2, 1)
            return
        [parcel] = command.parcels
        rows = parcel.upto - parcel.after
        if rows > 1:
            state.rows_max = rows // 2
        else:
            # It exceeds a record of this log; the other subscriptions can go on.
            state.refused[parcel.subscription] = state.errors[parcel.subscription] = detached(error)

    def _commands(
        self, parcels: Sequence[Parcel], cells: dict[int, SubscriptionCell]
    ) -> list[Forward]:
        """Pack parcels into as few commands as records allow, with at most one parcel per queue
        each."""
        commands: list[Forward] = []
        group: list[Parcel] = []
        queues: set[int | str] = set()
        size = 0
        for parcel in parcels:
            weight = estimate_record_bytes(Forward((parcel,)))
            cell = cells.get(parcel.subscription)
            # Without their queue, rows go to the subscription's dead-letter queue or are dropped.
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
        view = self._commit_loop.view(shard)
        return view.subscriptions if view is not None else {}

    def _record_result(
        self, state: _TopicState, parcel: Parcel, at: RowPlaces | None, brought: ForwardedParcel
    ) -> None:
        number = brought.subscription
        if brought.moved:
            state.errors.pop(number, None)
            is_gone = brought.outcome != "forwarded"
            state.waiters.note(
                ParcelResult(
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
            state.errors[number] = brought.error
            rows = parcel.upto - parcel.after
            if rows > 1 and isinstance(brought.error, Full | TooLarge):
                # The queue may have room for part of them.
                state.rows_max = min(state.rows_max, rows // 2)
            else:
                state.refused[number] = brought.error


def _addressed(parcel: Parcel, number: int) -> Parcel:
    return msgspec.structs.replace(parcel, subscription=number)
