"""The host of a commit group: inbox → decide → append → fold → answer.

Rule 1: all commands that wait are decided together: one batch per shard, one entry, one record.
Rule 2: nothing is answered, refused or delivered before the entry that it depends on is committed.
Rule 3: the decider works ahead of the commit in its views alone; the store holds what is committed.
Rule 4: when an append fails, the views are dropped. After `Fatal` the host is dead.
Rule 5: a view is loaded only when nothing is in flight that it would have to know: what an earlier
decider left, or what stands before an entry that was dropped, is folded first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from millrace import limits
from millrace.core import age, lease
from millrace.core.answers import Leased
from millrace.core.changes import Batch, Entry
from millrace.core.commands import Command, Lease, Need, Tick
from millrace.core.decide import publish_plain
from millrace.core.desk import Desk
from millrace.core.model import History, Index, Millis, ShardId
from millrace.core.view import View
from millrace.engine import damage
from millrace.engine.commit_listener import CommitListener
from millrace.engine.damage import Reports
from millrace.engine.in_flight_entries import Answers, InFlightEntries, Result
from millrace.engine.inbox import Inbox
from millrace.engine.prefetch import decide_fetching, fetch_keys
from millrace.engine.request import (
    Request,
    ignore,
    size_of_cells,
    undo_of,
)
from millrace.engine.view_cache import Unseen, load_view, views_to_drop
from millrace.engine.waiters import is_empty
from millrace.engine.waiting_room import WaitingRoom
from millrace.errors import Closed, Corrupt, Fatal, Full, MillraceError, detached
from millrace.journal.base import Journal
from millrace.store.base import Store
from millrace.store.unreadable import Unreadable
from millrace.wal.record import Position


class CommitLoop:
    """Decides for one commit group, until it is stopped."""

    def __init__(self, journal: Journal, store: Store, now_ms: Callable[[], int]) -> None:
        self._journal = journal
        self._store = store
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._views: dict[ShardId, View] = {}
        self._ageing: dict[ShardId, None] = {}
        """Where something may go by age, or does not rest: thousands of others need no tick."""
        self._inbox = Inbox(
            batch_bytes=min(limits.RECORD_BYTES_TARGET, journal.record_bytes_max),
            record_bytes_max=journal.record_bytes_max,
        )
        self._taken: list[Request] = []
        self._ahead = InFlightEntries()
        self._waiting = WaitingRoom(self._loop, now_ms, self._views, self._woken, self._tired)
        self._unseen = Unseen(store)
        self._pumping = False
        self._stopped: MillraceError | None = None
        self._idle: asyncio.Future[None] | None = None
        self._after_commit: Callable[[], None] | None = None
        self._beside: list[CommitListener] = []
        self._reports = Reports(self._ask)
        self._damaged: dict[int, Corrupt] = {}
        self.short_of_space = False
        """The disk is full: what grows is refused at once instead of waiting for room."""
        self.shortage: Full | None = None
        """What there is not enough of, if it is not the disk."""
        self._draining = journal.waiting() > 0
        journal.listen(self._committed, self._dropped, self._failed)

    # --- In -----------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """The history of all that is decided here; known also when it has ended."""
        return self._journal.history

    def check_alive(self) -> None:
        """See that it still decides.

        Raises:
            Closed, Fatal: what has ended it.
        """
        if self._stopped is not None:
            raise self._stopped.again()

    def submit(self, request: Request) -> None:
        """Take a request; its future is set when it is answered.

        Raises:
            TooLarge: it does not fit into a record.
            Full: the inbox has no room; nothing was accepted.
            Closed, Fatal: the host has ended.
        """
        if self._stopped is not None:
            raise self._stopped.again()
        if request.grows:
            request.size += size_of_cells(request.shard, request.command, self._views)
        if request.wait_until and not self._inbox and self._waits_at_once(request):
            return
        self._inbox.add(request)
        if not self._pumping:
            self._wake()

    def take_back(self, request: Request, result: object) -> None:
        """Nobody heard the answer: what it handed out returns now, not when its time is over."""
        undos = undo_of(request.shard, request.command, result, self._journal.history)
        for shard, undo in undos if self._stopped is None else ():
            self._inbox.put(self._ask(shard, undo))
            self._wake()

    def quarantine(self, error: Unreadable) -> asyncio.Future[object]:
        """Have the queue of unreadable rows quarantined; done when that is committed, or failed.

        Staged rows are nobody's yet: what needs them is refused, and no queue is quarantined.
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

    def take_damaged(self) -> dict[int, Corrupt]:
        """Sealed files in which rows were found that cannot be read; each is given once."""
        found, self._damaged = self._damaged, {}
        return found

    def _ask(self, shard: ShardId, command: Command) -> Request:
        """A request of our own, whose answer nobody waits for."""
        future: asyncio.Future[object] = self._loop.create_future()
        future.add_done_callback(ignore)
        return Request(shard, command, future)

    def on_commit(self, call: Callable[[], None]) -> None:
        """Have `call` made after each commit: the keeper of log and store looks around then."""
        self._after_commit = call

    def tell(self, other: CommitListener) -> None:
        """Have `other` told what happens from now on."""
        self._beside.append(other)

    def _stir(self, view: View, batch: Batch | None) -> None:
        for other in self._beside:
            other.stir(view, batch)

    def view(self, shard: ShardId) -> View | None:
        """The decider's view, loaded from the store when it is first needed."""
        view = self._views.get(shard)
        if view is None:
            view = load_view(shard, self._journal, self._store)
            if view is not None:
                self._views[shard] = view
                self._ageing[shard] = None
        return view

    def adopt(self, view: View) -> None:
        """Begin with a view that is not stored yet: the catalog of a new group."""
        self._views[view.shard] = view
        self._ageing[view.shard] = None

    def tick(self) -> None:
        """Time has passed: let the shards drop what is too old, and look around."""
        if self._stopped is not None:
            return
        now = self._now_ms()
        if not self._draining:
            self._unseen.look(self._views, self.view)
        for shard in list(self._ageing):
            view = self._views.get(shard)
            if view is not None and not view.dropped and age.tick_due(view, now):
                self._tick(shard)
            if view is not None and (view.doomed or view.topic is not None):
                self._stir(view, None)
            elif view is None or not age.may_age(view):
                del self._ageing[shard]
        for view in views_to_drop(self._views.values(), self._waiting.waits):
            del self._views[view.shard]
        self.look()

    def _tick(self, shard: ShardId) -> None:
        request = self._ask(shard, Tick())
        request.future.add_done_callback(lambda done: self._tick_again(shard, done))
        self._inbox.put_tick(request)

    def _tick_again(self, shard: ShardId, done: asyncio.Future[object]) -> None:
        """One batch ends so much and no more: where more is due, the next one goes on."""
        if not done.cancelled() and done.exception() is None and done.result() is True:
            self._tick(shard)
            self._wake()

    def look(self) -> None:
        """Answer who waited long enough, and let those go on who wait for room that is there."""
        if self._stopped is not None:
            return
        self._answer_over(self._waiting.look())
        if self.short_of_space:
            full = Full("the disk is full: settle or purge, or give it more space", field="disk")
            self._inbox.refuse_stalled(self.shortage or full)
        self._inbox.resume(self._room())
        if self._inbox:
            self._wake()

    async def stop(self) -> None:
        """Take nothing more, finish what is in flight, and let another host go on.

        A journal that cannot commit keeps this waiting; `fail` ends it, and what is in flight is
        then UNKNOWN.
        """
        if self._stopped is None:
            self._stopped = Closed("the engine was closed before this was accepted; open it again")
        self._refuse_waiting(self._stopped)
        if self._ahead:
            if self._idle is None:
                self._idle = self._loop.create_future()
            # Others may wait for the same.
            await asyncio.shield(self._idle)
        self._views.clear()
        self._waiting.rest()

    # --- Decide -------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._pumping and self._journal.waiting() < limits.ENTRIES_AHEAD_MAX:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._stopped is not None or not self._may_decide():
            return
        requests = self._inbox.take(self._room())
        if not requests:
            return
        self._taken = list(requests)
        try:
            if self._decide_all(requests) and self._inbox:
                self._wake()
        except Exception as error:
            # A defect in the rules: what was decided so far cannot be trusted, so that the group
            # ends here. Everyone who waits is told.
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
            # Whatever was loaded meanwhile did not know of what is folded now.
            self._views.clear()
            self._draining = False
        return (
            not self._draining
            and waiting < limits.ENTRIES_AHEAD_MAX
            and self._ahead.answers < limits.ANSWERS_IN_FLIGHT_MAX
        )

    def _decide_all(self, requests: deque[Request]) -> bool:
        """Decide, and append what was decided; False if the rest must wait for a commit."""
        desk = Desk(self.view, Millis(self._now_ms()))
        answers: Answers = []
        needs_commit = False
        fetch_keys(requests, self.view, self._store)
        while requests:
            if requests[0].is_plain and self._publish_plain(desk, requests, answers):
                continue
            request = requests.popleft()
            if request.future.done():
                # Whoever asked has left before anything was decided: nothing is.
                continue
            result = self._decide(desk, request)
            if isinstance(result, Need):
                # It needs what is in flight to be folded first: it goes first next time.
                requests.appendleft(request)
                self._inbox.put_first(requests)
                needs_commit = True
                break
            if (
                request.wait_until
                and is_empty(request.command, result)
                and request.wait_until > self._loop.time()
            ):
                too_many = self._waiting.add(request)
                if too_many is None:
                    continue
                result = too_many
            answers.append((request, result))
        self._waiting.serve(desk, self._decide, answers, self._taken)
        self._finish(desk, answers)
        return not needs_commit

    def _publish_plain(self, desk: Desk, requests: deque[Request], answers: Answers) -> bool:
        """Decide a run of plain publishes to one queue at once; False if they are not so plain."""
        shard = requests[0].shard
        draft = desk.draft(shard)
        if draft is None or not draft.takes_plain:
            return False
        run: list[Request] = []
        while requests and requests[0].is_plain and requests[0].shard == shard:
            request = requests.popleft()
            if not request.future.done():
                # As everyone who has left before anything was decided.
                run.append(request)
        found = publish_plain(draft, [request.command for request in run])
        answers.extend(zip(run, found, strict=True))
        return True

    def _room(self) -> int:
        """Bytes that may still be decided: what is decided ahead takes room as well."""
        return self._journal.room(reserve=False) - self._ahead.bytes - limits.RECORD_SLACK_BYTES

    def fail(self, error: Fatal) -> None:
        """The store has failed: nothing more is decided or answered."""
        self._failed(error)

    def _decide(self, desk: Desk, request: Request) -> Result | Need:
        result = decide_fetching(desk, request, self._store, in_flight=bool(self._ahead))
        if isinstance(result, Unreadable):
            self.quarantine(result)
            return damage.refused(result)
        return result

    def _finish(self, desk: Desk, answers: Answers) -> None:
        drafts = [draft for draft in desk.drafts.values() if not draft.empty()]
        for shard, draft in desk.drafts.items():
            draft.view.facts.clear()
            self._ageing[shard] = None
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
        self._ahead.add(entry.index, answers)
        try:
            # Where nobody waits to be decided meanwhile, a thread would only add its own delay.
            journal.append(entry, alone=not self._inbox, reserve=reserve)
        except Fatal as error:
            self._failed(error)
        except MillraceError as error:
            self._dropped(entry.index, error)

    def _answer_after(self, answers: Answers) -> None:
        """Nothing was changed: the answers wait for what they were judged by."""
        if not self._ahead.join(answers):
            self._answer(answers)

    def _answer(self, answers: Answers) -> None:
        for request, result in answers:
            if not request.answer(result):
                self.take_back(request, result)

    # --- Waiting for messages -------------------------------------------------------------------

    def _woken(self) -> None:
        """A lease or a delay has ended."""
        if self._stopped is not None:
            return
        now = self._now_ms()
        # A rollback may have dropped the views; while it goes on, none is to be trusted.
        is_draining = self._draining and self._journal.waiting() > 0
        for shard in self._waiting.woken():
            if is_draining:
                self._waiting.arm_later(shard)
                continue
            at_ms = lease.next_end(self.view(shard))
            if at_ms is not None and at_ms > now:
                self._waiting.arm(shard)
            elif at_ms is not None:
                # The batch of this tick serves whoever waits there, in the order of the row.
                self._tick(shard)
        if self._inbox:
            self._wake()

    def _tired(self) -> None:
        """Someone's time to wait is over."""
        if self._stopped is not None:
            return
        self._answer_over(self._waiting.over())
        if self._inbox:
            self._wake()

    def _waits_at_once(self, request: Request) -> bool:
        """Let a lease call wait that plainly finds nothing, if nobody is to be decided before it.

        Thousands wait at as many queues, and ask again and again: deciding would come to the same.
        """
        if self._find_none(request, self._now_ms()) is None:
            return False
        return request.wait_until > self._loop.time() and self._waiting.add(request) is None

    def _answer_over(self, requests: list[Request]) -> None:
        """Their time to wait is over: they are answered as things are."""
        now = self._now_ms()
        for request in requests:
            none = None if self._ahead else self._find_none(request, now)
            if none is None:
                self._inbox.put(request.without_wait())
            else:
                request.answer(none)

    def _find_none(self, request: Request, now: int) -> Leased | None:
        """What a lease call comes to where it plainly finds nothing; None: it has to be decided."""
        view = self._views.get(request.shard)
        if type(request.command) is not Lease or view is None or view.dropped or self._draining:
            return None
        return lease.find_none(view, request.command, now)

    # --- Committed ------------------------------------------------------------------------------

    def _committed(self, entry: Entry, position: Position) -> None:
        # Even after a defect has ended this host: the entry is committed, and the next checkpoint
        # will say that the store has it.
        try:
            self._store.fold(entry, position)
        except Fatal as error:
            # It is committed, and nobody may be told so: the next open folds it.
            self._failed(error)
            return
        for batch in entry.batches:
            view = self._views.get(batch.shard)
            if view is not None:
                view.folded(batch.index)
                if batch.changes.dropped:
                    # Not before: a new view would not know that the shard is about to end.
                    del self._views[batch.shard]
                if view.doomed or view.topic is not None:
                    self._stir(view, batch)
        if self._ahead.is_next(entry.index):
            if entry.epoch != self._journal.epoch:
                # Someone else's entry stands where ours was: it says nothing about our answers.
                self._failed(Fatal(f"entry {entry.index} is not the one that was decided here"))
                return
            self._answer(self._ahead.land())
        if self._after_commit is not None:
            self._after_commit()
        if self._inbox:
            self._wake()
        self._look_idle()

    def _dropped(self, first: Index, error: MillraceError) -> None:
        """The entries from `first` on were not accepted."""
        self._views.clear()
        self._draining = True
        self._waiting.look_again()
        again = self._ahead.drop(first, error, may_repeat=self._stopped is None)
        self._inbox.put_first(again)
        if self._inbox:
            self._wake()
        self._look_idle()

    def _failed(self, error: Fatal) -> None:
        """Nothing that is in flight is committed, as far as anyone knows."""
        self._views.clear()
        self._stopped = error = detached(error.again())
        self._ahead.fail(error)
        self._refuse_waiting(error)
        for other in self._beside:
            other.end(error)
        self._look_idle()

    def _look_idle(self) -> None:
        if not self._ahead and self._idle is not None:
            if not self._idle.done():
                self._idle.set_result(None)
            self._idle = None

    def _refuse_waiting(self, error: MillraceError) -> None:
        for request in (*self._inbox.drop_all(), *self._waiting.empty()):
            request.fail(error)
