"""The commit loop of one commit group: inbox → decide → append → fold → answer.

Rule 1: all waiting commands are decided together: one batch per shard, one entry, one WAL record.
Rule 2: no request is answered, refused or delivered before the entry that it depends on is
committed.
Rule 3: decisions run ahead of the commit in the views alone; the store holds committed batches
only.
Rule 4: a failed append drops the views. `Fatal` ends the commit loop.
Rule 5: a view is loaded only after everything that it must know is folded: entries in flight that
an earlier commit loop left, or that precede a dropped entry.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from millrace import limits
from millrace.core import ticks
from millrace.core.answers import Leased
from millrace.core.changes import Batch, Entry
from millrace.core.commands import Command, LeaseMessages, Tick
from millrace.core.decide import publish_plain
from millrace.core.delivery import lease
from millrace.core.model import History, Index, Millis, ShardId
from millrace.core.needs import Need
from millrace.core.state.draft import BatchContext
from millrace.core.state.view import View
from millrace.engine import quarantine_reports
from millrace.engine.command_request import (
    CommandRequest,
    estimate_cell_bytes,
    ignore_result,
    undo_commands,
)
from millrace.engine.in_flight_entries import Decision, InFlightEntries, PendingAnswers
from millrace.engine.inbox import Inbox
from millrace.engine.long_polls import LongPolls, is_empty_result
from millrace.engine.quarantine_reports import QuarantineReports
from millrace.engine.view_cache import (
    UnvisitedShards,
    decide_with_reads,
    load_view,
    prefetch_keys,
    views_to_drop,
)
from millrace.errors import Closed, Corrupt, Fatal, Full, MillraceError, detached
from millrace.journal.base import Journal
from millrace.store.base import Store
from millrace.store.unreadable import Unreadable
from millrace.wal.record import LogPosition


class CommitLoop:
    """Decides the commands of one commit group until it is stopped."""

    def __init__(self, journal: Journal, store: Store, now_ms: Callable[[], int]) -> None:
        self._journal = journal
        self._store = store
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._views: dict[ShardId, View] = {}
        self._ticking: dict[ShardId, None] = {}
        """Shards in which something may expire or is not at rest; thousands of idle ones need no
        tick."""
        self._inbox = Inbox(
            batch_bytes=min(limits.RECORD_BYTES_TARGET, journal.record_bytes_max),
            record_bytes_max=journal.record_bytes_max,
        )
        self._taken: list[CommandRequest] = []
        self._in_flight = InFlightEntries()
        self._long_polls = LongPolls(
            self._loop, now_ms, self._views, self._on_alarm, self._on_wait_timeout
        )
        self._unvisited = UnvisitedShards(store)
        self._pumping = False
        self._stopped: MillraceError | None = None
        self._idle: asyncio.Future[None] | None = None
        self._after_commit: Callable[[], None] | None = None
        self._listeners: list[CommitListener] = []
        self._reports = QuarantineReports(self._internal_request)
        self._damaged: dict[int, Corrupt] = {}
        self.short_of_space = False
        """True if the disk is full: commands that grow are refused at once instead of waiting for
        room."""
        self.shortage: Full | None = None
        """The resource that is short, if it is not disk space."""
        self._draining = journal.waiting() > 0
        journal.listen(self._committed, self._dropped, self._failed)

    # --- Requests ---------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """History of everything that is decided here; still valid after the loop has ended."""
        return self._journal.history

    def check_alive(self) -> None:
        """Raise if the commit loop has ended.

        Raises:
            Closed, Fatal: the error that ended it.
        """
        if self._stopped is not None:
            raise self._stopped.again()

    def submit(self, request: CommandRequest) -> None:
        """Enqueue a request; its future is set when it is answered.

        Raises:
            TooLarge: the request does not fit into a WAL record.
            Full: the inbox has no room; nothing was accepted.
            Closed, Fatal: the commit loop has ended.
        """
        if self._stopped is not None:
            raise self._stopped.again()
        if request.grows:
            request.size += estimate_cell_bytes(request.shard, request.command, self._views)
        if request.wait_until and not self._inbox and self._park_at_once(request):
            return
        self._inbox.add(request)
        if not self._pumping:
            self._wake()

    def take_back(self, request: CommandRequest, result: object) -> None:
        """Undo a result whose caller has gone: its leases and pins are returned now, not at their
        timeout."""
        undos = undo_commands(request.shard, request.command, result, self._journal.history)
        for shard, undo in undos if self._stopped is None else ():
            self._inbox.put(self._internal_request(shard, undo))
            self._wake()

    def quarantine(self, error: Unreadable) -> asyncio.Future[object]:
        """Submit the quarantine of the queue with these unreadable rows.

        The returned future is done when that is committed, or has failed. Staged rows belong to no
        queue yet: commands that need them are refused, and no queue is quarantined.
        """
        if self._stopped is not None or not error.first:
            future: asyncio.Future[object] = self._loop.create_future()
            future.set_result(False)
            return future
        request, is_new = self._reports.take(error)
        if is_new and error.file is not None:
            self._damaged[error.file] = Corrupt(error.message, field=error.field)
        if is_new:
            self._inbox.put(request)
            self._wake()
        return request.future

    def take_damaged_files(self) -> dict[int, Corrupt]:
        """Return the sealed files in which unreadable rows were found since the last call."""
        damaged, self._damaged = self._damaged, {}
        return damaged

    def _internal_request(self, shard: ShardId, command: Command) -> CommandRequest:
        """Create an internal request, whose result is ignored."""
        future: asyncio.Future[object] = self._loop.create_future()
        future.add_done_callback(ignore_result)
        return CommandRequest(shard, command, future)

    def set_after_commit(self, callback: Callable[[], None]) -> None:
        """Call `call` after each commit; the checkpointer uses it."""
        self._after_commit = callback

    def add_listener(self, listener: CommitListener) -> None:
        """Register a listener for commits, ticks and failure."""
        self._listeners.append(listener)

    def _notify_listeners(self, view: View, batch: Batch | None) -> None:
        for listener in self._listeners:
            listener.on_commit(view, batch)

    def view(self, shard: ShardId) -> View | None:
        """Return the view of a shard, loaded from the store on first use."""
        view = self._views.get(shard)
        if view is None:
            view = load_view(shard, self._journal, self._store)
            if view is not None:
                self._views[shard] = view
                self._ticking[shard] = None
        return view

    def adopt(self, view: View) -> None:
        """Add a view that is not stored yet: the catalog of a new group."""
        self._views[view.shard] = view
        self._ticking[view.shard] = None

    def tick(self) -> None:
        """Let shards drop expired items, evict idle views, and call `check_waiting`."""
        if self._stopped is not None:
            return
        now = self._now_ms()
        if not self._draining:
            self._unvisited.load_next(self._views, self.view)
        for shard in list(self._ticking):
            view = self._views.get(shard)
            if view is not None and not view.dropped and ticks.tick_due(view, now):
                self._tick(shard)
            if view is not None and (view.doomed or view.topic is not None):
                self._notify_listeners(view, None)
            elif view is None or not ticks.may_age(view):
                del self._ticking[shard]
        for view in views_to_drop(self._views.values(), self._long_polls.waits):
            del self._views[view.shard]
        self.check_waiting()

    def _tick(self, shard: ShardId) -> None:
        request = self._internal_request(shard, Tick())
        request.future.add_done_callback(lambda done: self._tick_if_more(shard, done))
        self._inbox.put_tick(request)

    def _tick_if_more(self, shard: ShardId, done: asyncio.Future[object]) -> None:
        """Submit another tick at once: one batch expires a bounded number of items, and more are
        due."""
        if not done.cancelled() and done.exception() is None and done.result() is True:
            self._tick(shard)
            self._wake()

    def check_waiting(self) -> None:
        """Answer long polls that timed out, and resume requests that waited for room in the log."""
        if self._stopped is not None:
            return
        self._answer_timed_out(self._long_polls.sweep())
        if self.short_of_space:
            full = Full("the disk is full: settle or purge, or give it more space", field="disk")
            self._inbox.refuse_stalled(self.shortage or full)
        self._inbox.resume(self._free_log_bytes())
        if self._inbox:
            self._wake()

    async def stop(self) -> None:
        """Stop accepting requests and wait until entries in flight are committed.

        A journal that cannot commit blocks this; `fail` ends the wait, and the results in flight
        are then UNKNOWN.
        """
        if self._stopped is None:
            self._stopped = Closed("the engine was closed before this was accepted; open it again")
        self._refuse_waiting(self._stopped)
        if self._in_flight:
            if self._idle is None:
                self._idle = self._loop.create_future()
            # Several callers may await the same future.
            await asyncio.shield(self._idle)
        self._views.clear()
        self._long_polls.cancel_timers()

    # --- Decide -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._pumping and self._journal.waiting() < limits.ENTRIES_AHEAD_MAX:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._stopped is not None or not self._may_decide():
            return
        requests = self._inbox.take(self._free_log_bytes())
        if not requests:
            return
        self._taken = list(requests)
        try:
            if self._decide_all(requests) and self._inbox:
                self._wake()
        except Exception as error:
            # A defect in the rules: earlier decisions of the batch cannot be trusted, so that the
            # group ends here, and all waiting requests fail.
            fatal = error if isinstance(error, Fatal) else Fatal(f"deciding failed: {error!r}")
            self._failed(fatal)
            for request in self._taken:
                request.fail(fatal)
            if fatal is not error:
                raise
        finally:
            self._taken = []

    def _may_decide(self) -> bool:
        waiting = self._journal.waiting()
        if self._draining and not waiting:
            # Views that were loaded while draining lack the entries that are folded now.
            self._views.clear()
            self._draining = False
        return (
            not self._draining
            and waiting < limits.ENTRIES_AHEAD_MAX
            and self._in_flight.answers < limits.ANSWERS_IN_FLIGHT_MAX
        )

    def _decide_all(self, requests: deque[CommandRequest]) -> bool:
        """Decide requests and append the result; return False if the rest must await a commit."""
        context = BatchContext(self.view, Millis(self._now_ms()))
        answers: PendingAnswers = []
        needs_commit = False
        prefetch_keys(requests, self.view, self._store)
        while requests:
            if requests[0].is_plain and self._publish_plain(context, requests, answers):
                continue
            request = requests.popleft()
            if request.future.done():
                # The caller has gone before anything was decided: skip the request.
                continue
            result = self._decide(context, request)
            if isinstance(result, Need):
                # It depends on rows in flight, which must be folded first: retry it first after the
                # commit.
                requests.appendleft(request)
                self._inbox.put_first(requests)
                needs_commit = True
                break
            if (
                request.wait_until
                and is_empty_result(request.command, result)
                and request.wait_until > self._loop.time()
            ):
                too_many = self._long_polls.add(request)
                if too_many is None:
                    continue
                result = too_many
            answers.append((request, result))
        self._long_polls.serve(context, self._decide, answers, self._taken)
        self._finish(context, answers)
        return not needs_commit

    def _publish_plain(
        self, context: BatchContext, requests: deque[CommandRequest], answers: PendingAnswers
    ) -> bool:
        """Decide a run of plain publishes to one queue at once; return False if the draft takes
        none."""
        shard = requests[0].shard
        draft = context.draft(shard)
        if draft is None or not draft.takes_plain:
            return False
        run: list[CommandRequest] = []
        while requests and requests[0].is_plain and requests[0].shard == shard:
            request = requests.popleft()
            if not request.future.done():
                # A request whose caller has gone is skipped, as in `_decide_all`.
                run.append(request)
        results = publish_plain(draft, [request.command for request in run])
        answers.extend(zip(run, results, strict=True))
        return True

    def _free_log_bytes(self) -> int:
        """Return the bytes that may still be decided; entries in flight already occupy part of the
        log."""
        return self._journal.room(reserve=False) - self._in_flight.bytes - limits.RECORD_SLACK_BYTES

    def fail(self, error: Fatal) -> None:
        """End the commit loop after the store has failed."""
        self._failed(error)

    def _decide(self, context: BatchContext, request: CommandRequest) -> Decision | Need:
        result = decide_with_reads(context, request, self._store, in_flight=bool(self._in_flight))
        if isinstance(result, Unreadable):
            self.quarantine(result)
            return quarantine_reports.quarantined_error(result)
        return result

    def _finish(self, context: BatchContext, answers: PendingAnswers) -> None:
        drafts = [draft for draft in context.drafts.values() if not draft.empty()]
        for shard, draft in context.drafts.items():
            draft.view.facts.clear()
            self._ticking[shard] = None
        if not drafts:
            self._answer_after(answers)
            return
        for draft in drafts:
            self._views.setdefault(draft.view.shard, draft.view)
        journal = self._journal
        entry = Entry(
            journal.group,
            journal.epoch,
            journal.next_index(),
            journal.history,
            [draft.finish() for draft in drafts],
        )
        reserve = not any(request.grows for request, _ in answers)
        self._in_flight.add(entry.index, answers)
        try:
            # With no request waiting, writing on a thread would only add its switching delay.
            journal.append(entry, alone=not self._inbox, reserve=reserve)
        except Fatal as error:
            self._failed(error)
        except MillraceError as error:
            self._dropped(entry.index, error)

    def _answer_after(self, answers: PendingAnswers) -> None:
        """Nothing was changed: answer once the entries that the results depend on are committed."""
        if not self._in_flight.join(answers):
            self._answer(answers)

    def _answer(self, answers: PendingAnswers) -> None:
        for request, result in answers:
            if not request.answer(result):
                self.take_back(request, result)

    # --- Long polls -------------------------------------------------------------------------------

    def _on_alarm(self) -> None:
        """Serve long polls after a lease or delay may have ended."""
        if self._stopped is not None:
            return
        now = self._now_ms()
        # A rollback may have dropped the views; until it ends, no view can be trusted.
        is_draining = self._draining and self._journal.waiting() > 0
        for shard in self._long_polls.pop_due_shards():
            if is_draining:
                self._long_polls.arm_later(shard)
                continue
            at_ms = lease.next_end(self.view(shard))
            if at_ms is not None and at_ms > now:
                self._long_polls.arm(shard)
            elif at_ms is not None:
                # The batch of this tick serves the waiting requests in their order.
                self._tick(shard)
        if self._inbox:
            self._wake()

    def _on_wait_timeout(self) -> None:
        """Answer long polls whose timeout has expired."""
        if self._stopped is not None:
            return
        self._answer_timed_out(self._long_polls.expire_due())
        if self._inbox:
            self._wake()

    def _park_at_once(self, request: CommandRequest) -> bool:
        """Park a lease call that obviously finds nothing, if no request is queued before it.

        This saves a decision: thousands of workers poll as many empty queues again and again.
        """
        if self._find_empty(request, self._now_ms()) is None:
            return False
        return request.wait_until > self._loop.time() and self._long_polls.add(request) is None

    def _answer_timed_out(self, requests: list[CommandRequest]) -> None:
        """Answer requests whose wait timed out with the current state."""
        now = self._now_ms()
        for request in requests:
            empty = None if self._in_flight else self._find_empty(request, now)
            if empty is None:
                self._inbox.put(request.without_wait())
            else:
                request.answer(empty)

    def _find_empty(self, request: CommandRequest, now: int) -> Leased | None:
        """Return the empty result of a lease call that obviously finds nothing; None if it must be
        decided."""
        view = self._views.get(request.shard)
        if (
            type(request.command) is not LeaseMessages
            or view is None
            or view.dropped
            or self._draining
        ):
            return None
        return lease.find_empty(view, request.command, now)

    # --- Committed --------------------------------------------------------------------------------

    def _committed(self, entry: Entry, position: LogPosition) -> None:
        # Also after a defect has ended the loop: the entry is committed, and the next checkpoint
        # will record that the store has it.
        try:
            self._store.fold(entry, position)
        except Fatal as error:
            # The entry is committed but must not be acknowledged; the next open folds it.
            self._failed(error)
            return
        for batch in entry.batches:
            view = self._views.get(batch.shard)
            if view is not None:
                view.folded(batch.index)
                if batch.changes.dropped:
                    # Not earlier: a reloaded view would not know that the shard is about to end.
                    del self._views[batch.shard]
                if view.doomed or view.topic is not None:
                    self._notify_listeners(view, batch)
        if self._in_flight.is_next(entry.index):
            if entry.epoch != self._journal.epoch:
                # Another owner's entry has this index, which says nothing about our own entry.
                self._failed(Fatal(f"entry {entry.index} is not the one that was decided here"))
                return
            self._answer(self._in_flight.land())
        if self._after_commit is not None:
            self._after_commit()
        if self._inbox:
            self._wake()
        self._check_idle()

    def _dropped(self, first: Index, error: MillraceError) -> None:
        """Roll back: the journal refused the entries from `first` on."""
        self._views.clear()
        self._draining = True
        self._long_polls.reset_seen()
        again = self._in_flight.drop(first, error, may_repeat=self._stopped is None)
        self._inbox.put_first(again)
        if self._inbox:
            self._wake()
        self._check_idle()

    def _failed(self, error: Fatal) -> None:
        """End the commit loop: whether entries in flight are committed is unknown."""
        self._views.clear()
        self._stopped = error = detached(error.again())
        self._in_flight.fail(error)
        self._refuse_waiting(error)
        for listener in self._listeners:
            listener.on_failure(error)
        self._check_idle()

    def _check_idle(self) -> None:
        if not self._in_flight and self._idle is not None:
            if not self._idle.done():
                self._idle.set_result(None)
            self._idle = None

    def _refuse_waiting(self, error: MillraceError) -> None:
        for request in (*self._inbox.drop_all(), *self._long_polls.drop_all()):
            request.fail(error)


# --- Listeners ------------------------------------------------------------------------------------


class CommitListener(Protocol):
    """Reacts to commits of a group, for example by moving rows from one shard to another."""

    def on_commit(self, view: View, batch: Batch | None) -> None:
        """Handle a committed batch of a shard with dead letters or of a topic; None after a tick.

        For a shard that has ended, this is the last call.
        """
        ...

    def on_failure(self, error: Fatal) -> None:
        """Handle the failure of the commit loop; no further call follows."""
        ...
