"""The calls of one client, from the frame that brought them to the sheet with their answers.

Rule 1: a call that whoever made it gave up, or whose connection was lost, is taken back: what it
was handed out returns at once. Every call that is not told has one last answer, this one too.
Rule 2: what is under way for one client is bounded; `is_busy` says when to read no more of it.
Rule 3: what becomes ready in one turn of the event loop is written together, unless it is so much
that the other side had better begin with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from functools import partial
from itertools import count

from millrace import limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.engine import Engine
from millrace.client.repeats import may_repeat
from millrace.client.reserved import check_command
from millrace.core.across_commands import LeaseAcross, LeasedAcross
from millrace.core.answers import Leased, Outcome, Published
from millrace.core.commands import Explain, Lease, PublishStaged, Transaction
from millrace.core.fold import Reader
from millrace.core.leased_commands import Replace
from millrace.core.model import ShardId
from millrace.core.session_commands import Claim, CloseSession, SessionRef, SuspectSession
from millrace.engine.request import Request
from millrace.errors import (
    Closed,
    Denied,
    Fatal,
    Full,
    Invalid,
    MillraceError,
    NotFound,
    Refused,
    Unknown,
    detached,
)
from millrace.rpc import calls
from millrace.rpc.answers import ANSWERS
from millrace.rpc.calls import (
    Ask,
    Call,
    Cancel,
    More,
    ReadBatches,
    Speak,
    Tell,
)
from millrace.rpc.codec import Sheet
from millrace.rpc.frames import Buffer
from millrace.rpc.proofs import with_proofs
from millrace.server.admission import Admission, NotKnown
from millrace.server.counted import Handed
from millrace.server.holding import Holding
from millrace.server.keeping import Keeping
from millrace.server.moved import check_moved
from millrace.server.questions import answer_to, ask
from millrace.server.verbs import Caller

Under = Request | asyncio.Task[None]
"""A call that is under way."""


class Service:
    """What all clients of an engine share."""

    def __init__(
        self,
        engine: Engine,
        keeping: Keeping | None = None,
        holding: Holding | None = None,
        handed: Handed | None = None,
    ) -> None:
        """With `keeping`, acts are noted and what is made is counted; with `holding`, what is
        held; with `handed`, what lease calls are given."""
        self.handed = handed
        self.engine = engine
        self.keeping = keeping
        self.holding = holding
        self.admission = Admission(engine)
        self.quick = engine if isinstance(engine, EmbeddedEngine) else None
        """The engine, where a command needs no task of its own."""


class Talk:
    """The calls of one client."""

    def __init__(
        self,
        service: Service,
        caller: Caller,
        wake: Callable[[], None],
        *,
        lasts: bool = True,
    ) -> None:
        """`wake` is called when answers are there; they are taken by `take_answers`.

        Where the connection does not last, sessions do not end with it: they are spoken for.
        """
        self._lasts = lasts
        self._service = service
        self._caller = caller
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._under: dict[int, Under] = {}
        self._waiting: set[int] = set()
        """Calls that wait for something to come, and do no harm if they are asked again."""
        self._told = count(-1, -1)
        """Ids of calls that are not answered: there may be several under way."""
        self._streams: dict[int, asyncio.Semaphore] = {}
        self._claims: dict[tuple[ShardId, int], Claim] = {}
        self._sheet = Sheet()
        self._is_over = False
        self._stops = False

    @property
    def is_busy(self) -> bool:
        """Whether so much is under way that nothing more should be read."""
        return len(self._under) - len(self._waiting) >= limits.WIRE_WORKING_MAX

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._under

    @property
    def is_many(self) -> bool:
        """Whether there are so many answers that they had better be taken now."""
        return self._sheet.count >= limits.WIRE_TOGETHER_MAX

    @property
    def _has_room(self) -> bool:
        """Whether messages go with the lease calls that gave them; else they are asked for."""
        return self._sheet.size < limits.WIRE_UNSENT_BYTES_MAX

    def take(self, found: Iterable[tuple[int, Call | Refused]]) -> None:
        """Begin the calls of a frame, by their ids; in the place of one is why it is refused."""
        for id_, call in found:
            if type(call) is Ask and (call.shard, type(call.command)) in self._caller.passed:
                self._submit(id_, call)
            elif isinstance(call, Refused):
                self._fail(id_, call)
            elif isinstance(call, Cancel):
                self._cancel(call.id)
            elif isinstance(call, More):
                room = self._streams.get(call.id)
                if room is not None:
                    room.release()
            elif isinstance(call, Tell | Speak):
                self._begin(next(self._told), call)
            else:
                self._begin(id_, call)

    def take_answers(self) -> list[Buffer]:
        """What is to be written now."""
        return self._sheet.take()

    def stop(self) -> None:
        """The server ends: whoever waits is answered now, and asks whoever comes after it."""
        self._stops = True
        for id_ in list(self._waiting):
            self._cancel(id_)

    def end(self, *, is_gone: bool = False) -> None:
        """Nobody hears the answers any more.

        The sessions that end with the connection are suspected, and may be resumed. Where the
        program at the other end `is_gone`, nobody will: they end. A front end is no consumer: those
        that it spoke for may be there.
        """
        self._is_over = True
        for id_ in list(self._under):
            self._cancel(id_)
        for (shard, _), claim in self._claims.items():
            if is_gone and not self._caller.is_server:
                self._tell(shard, CloseSession(claim, 0, failed=True))
            else:
                self._tell(shard, SuspectSession(claim))
        self._claims.clear()

    def _tell(self, shard: ShardId, command: CloseSession | SuspectSession) -> None:
        """Have it decided, when there is room: nobody else would say it."""
        try:
            self._service.engine.tell(shard, command)
        except Full as error:
            self._loop.call_later(error.after_ms / 1000, self._tell, shard, command)
        except MillraceError:
            # The queue or the engine has ended; the next engine will suspect the session.
            return

    # --- Calls ----------------------------------------------------------------------------------

    def _begin(self, id_: int, call: Call) -> None:
        if id_ in self._under:
            self._fail(id_, Invalid(f"the call {id_} is under way", field="id"))
            return
        try:
            self._check_room(id_, call)
            admitted = self._service.admission.admit(self._caller, call)
        except NotKnown as unknown:
            self._start(id_, call, self._learn(id_, call, unknown.shard))
            return
        except MillraceError as error:
            self._refuse(id_, call, error)
            return
        self._go_on(id_, admitted)

    def _refuse(self, id_: int, call: Call, error: MillraceError) -> None:
        """Answer a call that was not admitted; if it asks for an act, that was denied."""
        keeping = self._service.keeping
        if keeping is not None and isinstance(error, Denied | NotFound):
            keeping.denied(self._caller.who, call, self._service.admission.named)
        self._fail(id_, error)

    def _submit(self, id_: int, call: Ask) -> None:
        """The way of what is asked most, which must cost little: as `_begin`, with fewer steps."""
        service, wait_ms = self._service, call.wait_ms
        quick = service.quick
        if (
            quick is None
            or service.keeping is not None
            or service.holding is not None
            or id_ in self._under
            or (wait_ms and len(self._waiting) >= limits.WIRE_WAITING_MAX)
        ):
            self._begin(id_, call)
            return
        try:
            if not self._caller.is_server:
                check_command(call.command)
            request = quick.submit(call.shard, quick.judge(call.shard, call.command), wait_ms)
        except MillraceError as error:
            self._fail(id_, error)
        else:
            self._submitted(id_, request, wait_ms)

    def _submitted(self, id_: int, request: Request, wait_ms: int) -> None:
        self._under[id_] = request
        if wait_ms and may_repeat(request.command):
            self._waiting.add(id_)
        request.future.add_done_callback(partial(self._answered, id_, request))

    def _check_room(self, id_: int, call: Call) -> None:
        if isinstance(call, Ask) and call.wait_ms:
            most, found, what = limits.WIRE_WAITING_MAX, len(self._waiting), "calls wait"
        elif isinstance(call, ReadBatches):
            most, found, what = limits.WIRE_STREAMS_MAX, len(self._streams), "snapshots are read"
        else:
            return
        if found >= most:
            raise Full(f"{most} {what} on this connection; open another", field="call", limit=most)

    async def _learn(self, id_: int, call: Call, shard: ShardId) -> None:
        admission = self._service.admission
        try:
            admitted: Call | None = None
            while admitted is None:
                await admission.learn(self._caller, shard)
                try:
                    admitted = admission.admit(self._caller, call)
                except NotKnown as unknown:
                    # Of a transaction, the next part's.
                    shard = unknown.shard
        except MillraceError as error:
            self._refuse(id_, call, error)
            return
        if self._under.pop(id_, None) is not None:
            self._waiting.discard(id_)
            self._go_on(id_, admitted)

    def _go_on(self, id_: int, call: Call) -> None:
        quick = self._service.quick
        if isinstance(call, Tell):
            told = call.command
            if (
                isinstance(told, CloseSession | SuspectSession)
                and self._claims.get((call.shard, told.claim.session)) == told.claim
            ):
                # The connection may last for long: it does not end the session soon.
                del self._claims[call.shard, told.claim.session]
                self._tell(call.shard, told)
            else:
                # As if whoever told it had been cut off: a lease runs out.
                with suppress(MillraceError):
                    self._service.engine.tell(call.shard, told)
            # Nothing is answered, and perhaps nothing is under way any more.
            self._wake()
            return
        if isinstance(call, Speak):
            # From now on it does not end with this connection. If there is no room, it is as if
            # nobody had spoken.
            with suppress(MillraceError):
                self._service.engine.speak(call.shard, call.claim)
                self._claims.pop((call.shard, call.claim.session), None)
            self._wake()
            return
        keeping, holding = self._service.keeping, self._service.holding
        if keeping is not None and keeping.wants(call):
            self._start(id_, call, self._run_kept(id_, call, keeping))
            return
        if holding is not None and holding.wants(self._caller.who, call):
            self._start(id_, call, self._run(id_, call))
            return
        if (
            quick is None
            or not isinstance(call, Ask)
            or isinstance(call.command, Explain | PublishStaged | Replace | Transaction)
        ):
            self._start(id_, call, self._run(id_, call))
            return
        try:
            request = quick.submit(call.shard, call.command, call.wait_ms)
        except MillraceError as error:
            self._fail(id_, error)
        else:
            self._submitted(id_, request, call.wait_ms)

    def _answered(self, id_: int, request: Request, future: asyncio.Future[object]) -> None:
        if self._under.get(id_) is not request:
            return
        del self._under[id_]
        self._waiting.discard(id_)
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._fail(id_, _told(error))
            return
        self._answer_command(id_, request.shard, request.command, future.result())

    def _answer_command(self, id_: int, shard: ShardId, command: object, answer: object) -> None:
        quick = self._service.quick
        if type(answer) is Published or type(answer) is Outcome:
            self._sheet.answer(id_, ANSWERS, answer)
            self._wake()
            return
        handed = self._service.handed
        if handed is not None and isinstance(command, Lease | LeaseAcross):
            self._count(handed, shard, command, answer)
        try:
            if isinstance(answer, SessionRef) and not self._lasts:
                self._speak(shard, answer.claim)
            elif isinstance(answer, SessionRef):
                self._claims[shard, answer.claim.session] = answer.claim
            elif isinstance(command, CloseSession) and not command.keep:
                self._claims.pop((shard, command.claim.session), None)
            if quick is not None:
                proved = with_proofs(quick, shard, answer)
                if isinstance(answer, Leased) and answer.seqs and self._has_room:
                    rows = quick.rows_at_hand(shard, answer.seqs, limits.WIRE_BURST_BYTES)
                    if rows is not None and len(rows) == len(answer.seqs):
                        self._sheet.leased(id_, ANSWERS, proved, rows)
                        self._wake()
                        return
                answer = proved
            self._sheet.answer(id_, ANSWERS, answer)
        except MillraceError as error:
            self._sheet.failed(id_, error)
        self._wake()

    def _count(
        self, handed: Handed, shard: ShardId, command: Lease | LeaseAcross, answer: object
    ) -> None:
        parts = [part for _, part in answer.parts] if isinstance(answer, LeasedAcross) else [answer]
        given = sum(len(part.seqs) for part in parts if isinstance(part, Leased))
        with suppress(NotKnown):
            named = self._service.admission.named(shard)
            handed.note(named.space, named.name, command.count, given)

    def _speak(self, shard: ShardId, claim: Claim) -> None:
        engine = self._service.engine
        try:
            engine.speak(shard, claim)
        except MillraceError:
            with suppress(MillraceError):
                engine.tell(shard, SuspectSession(claim))
            raise

    def _start(self, id_: int, call: Call, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._under[id_] = task
        if isinstance(call, calls.Arrive) or (
            isinstance(call, Ask) and call.wait_ms and may_repeat(call.command)
        ):
            self._waiting.add(id_)
        task.add_done_callback(partial(self._ended, id_))

    def _ended(self, id_: int, task: asyncio.Task[None]) -> None:
        if self._under.get(id_) is task:
            del self._under[id_]
            self._waiting.discard(id_)
            # Whoever waits until nothing is under way looks again.
            self._wake()
        if task.cancelled():
            self._fail(id_, self._given_up())
        elif task.exception() is not None:
            # A defect: whoever asked must not wait for ever, and it must not go unnoticed.
            error = task.exception()
            self._fail(id_, Fatal(f"the server failed at this call: {type(error).__name__}"))
            self._loop.call_exception_handler({"message": "a call failed", "exception": error})

    async def _run(self, id_: int, call: Call) -> None:
        try:
            if isinstance(call, ReadBatches):
                await self._stream(id_, call)
                return
            if isinstance(call, Ask):
                answer = await self._ask(call)
                self._answer_command(id_, call.shard, call.command, answer)
                return
            found = await answer_to(self._service.engine, self._caller, call)
            self._sheet.answer(id_, calls.CALLS[type(call)].answer, found)
            self._wake()
        except MillraceError as error:
            self._fail(id_, error)

    async def _ask(self, call: Ask) -> object:
        """Have a command decided, and what is held of it counted."""
        do, holding, who = (
            partial(ask, self._service.engine),
            self._service.holding,
            self._caller.who,
        )
        if isinstance(call.command, Transaction | Replace) and not self._caller.is_server:
            await check_moved(self._service.engine, call.shard, call.command)
        if holding is None or not holding.wants(who, call):
            return await do(call)
        return await holding.answer(who, call, do)

    async def _run_kept(self, id_: int, call: Call, keeping: Keeping) -> None:
        """As `_run`, with what is written down of it."""
        engine, named = self._service.engine, self._service.admission.named
        if isinstance(call, Ask):
            do: Callable[[], Awaitable[object]] = partial(self._ask, call)
        else:
            do = partial(answer_to, engine, self._caller, call)
        try:
            answer = await keeping.answer(self._caller.who, engine, named, call, do)
        except MillraceError as error:
            self._fail(id_, error)
            return
        if isinstance(call, Ask):
            self._answer_command(id_, call.shard, call.command, answer)
            return
        self._sheet.answer(id_, calls.CALLS[type(call)].answer, answer)
        self._wake()

    async def _stream(self, id_: int, call: ReadBatches) -> None:
        room = self._streams[id_] = asyncio.Semaphore(limits.WIRE_AHEAD_MAX)
        shape = calls.CALLS[ReadBatches].answer
        reader = Reader(call.pin, call.retain)
        try:
            found = self._service.engine.batches(call.shard, call.after, call.upto, reader)
            async with aclosing(found) as batches:
                async for batch in batches:
                    await room.acquire()
                    self._sheet.part(id_, shape, batch)
                    self._wake()
            self._sheet.end(id_)
            self._wake()
        finally:
            del self._streams[id_]

    def _cancel(self, id_: int) -> None:
        under = self._under.pop(id_, None)
        self._waiting.discard(id_)
        if isinstance(under, Request):
            assert self._service.quick is not None
            self._service.quick.take_back(under)
            self._fail(id_, self._given_up())
        elif under is not None:
            # It is answered when it has ended: it may be too far to be called off.
            under.cancel()

    def _given_up(self) -> MillraceError:
        """The last word on a call that was called off: it can be forgotten."""
        if self._stops:
            return Closed("the server stops; ask again")
        return Unknown("the call was given up: it was done, or it was not; it was handed nothing")

    def _fail(self, id_: int, error: MillraceError) -> None:
        if not self._is_over and id_ >= 0:
            self._sheet.failed(id_, error)
            self._wake()
        # Whoever else holds it does not hold the call.
        detached(error)


def _told(error: BaseException) -> MillraceError:
    if isinstance(error, MillraceError):
        return error
    return Fatal(f"the engine failed: {type(error).__name__}")
