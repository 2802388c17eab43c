"""The calls of one client, from received frames to the buffer with their answers.

Rule 1: when a call is cancelled or its connection is lost, messages that it leased return at once.
Every call has exactly one final answer, also a cancelled one, unless it was sent without one
(`Notify`, `Heartbeat`).
Rule 2: the number of calls in flight per client is bounded; `is_busy` is true when reading must
pause.
Rule 3: answers that become ready in one turn of the event loop are written together, unless their
number exceeds a bound: the client should then begin with them.
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
from millrace.client.reserved import check_command
from millrace.core.answers import (
    Leased,
    Outcome,
    PublishResult,
    ShardLeases,
)
from millrace.core.commands import (
    ApplyTransaction,
    Explain,
    LeaseFromShards,
    LeaseMessages,
    PublishStaged,
    Replace,
)
from millrace.core.model import ShardId
from millrace.core.session_commands import Claim, CloseSession, SessionRef, SuspectSession
from millrace.core.state.fold import Reader
from millrace.engine.command_request import CommandRequest
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
    BatchTaken,
    Call,
    Cancel,
    Heartbeat,
    Notify,
    ReadBatches,
    Submit,
)
from millrace.rpc.codec import FrameWriter
from millrace.rpc.frames import Buffer
from millrace.rpc.proofs import add_proofs
from millrace.rpc.retryable import is_retryable
from millrace.server.counters import LeaseCounters
from millrace.server.quota.in_flight import InFlightQuota
from millrace.server.rpc.call_audit import CallAudit
from millrace.server.rpc.call_authorizer import CallAuthorizer, UnknownShard
from millrace.server.rpc.call_permissions import Caller
from millrace.server.rpc.moved_messages import check_moved
from millrace.server.rpc.queries import answer_to, ask

InFlightCall = CommandRequest | asyncio.Task[None]
"""A call in flight."""


class RpcService:
    """State that all clients of an engine share."""

    def __init__(
        self,
        engine: Engine,
        keeping: CallAudit | None = None,
        holding: InFlightQuota | None = None,
        handed: LeaseCounters | None = None,
    ) -> None:
        """With `keeping`, operations are audited and created objects counted; with `holding`,
        in-flight quotas apply; with `handed`, messages of lease calls are counted."""
        self.handed = handed
        self.engine = engine
        self.keeping = keeping
        self.holding = holding
        self.admission = CallAuthorizer(engine)
        self.quick = engine if isinstance(engine, EmbeddedEngine) else None
        """The engine if it is embedded, so that commands need no task."""


class CallSession:
    """The calls of one client."""

    def __init__(
        self,
        service: RpcService,
        caller: Caller,
        wake: Callable[[], None],
        *,
        lasts: bool = True,
    ) -> None:
        """`wake` is called when answers are ready; `take_answers` returns them.

        With `lasts` false, sessions do not end with the connection but by a missing heartbeat.
        """
        self._lasts = lasts
        self._service = service
        self._caller = caller
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._under: dict[int, InFlightCall] = {}
        self._waiting: set[int] = set()
        """Long polls: calls that wait for messages and can be repeated safely."""
        self._told = count(-1, -1)
        """Internal ids of calls without an answer; several may be in flight."""
        self._streams: dict[int, asyncio.Semaphore] = {}
        self._claims: dict[tuple[ShardId, int], Claim] = {}
        self._sheet = FrameWriter()
        self._is_over = False
        self._stops = False

    @property
    def is_busy(self) -> bool:
        """True if too many calls are in flight to read more."""
        return len(self._under) - len(self._waiting) >= limits.WIRE_WORKING_MAX

    @property
    def is_idle(self) -> bool:
        """True if no call is in flight."""
        return not self._under

    @property
    def is_many(self) -> bool:
        """True if there are enough answers to write them now."""
        return self._sheet.count >= limits.WIRE_TOGETHER_MAX

    @property
    def _has_room(self) -> bool:
        """True if answers of lease calls may include the messages; else the client reads them by
        another call."""
        return self._sheet.size < limits.WIRE_UNSENT_BYTES_MAX

    def take(self, found: Iterable[tuple[int, Call | Refused]]) -> None:
        """Begin the decoded calls of a frame, by id; a `Refused` stands for a call that was
        invalid."""
        for id_, call in found:
            if type(call) is Submit and (call.shard, type(call.command)) in self._caller.passed:
                self._submit(id_, call)
            elif isinstance(call, Refused):
                self._fail(id_, call)
            elif isinstance(call, Cancel):
                self._cancel(call.id)
            elif isinstance(call, BatchTaken):
                room = self._streams.get(call.id)
                if room is not None:
                    room.release()
            elif isinstance(call, Notify | Heartbeat):
                self._begin(next(self._told), call)
            else:
                self._begin(id_, call)

    def take_answers(self) -> list[Buffer]:
        """Return and clear the encoded answers."""
        return self._sheet.take()

    def stop(self) -> None:
        """Answer all waiting calls now: the server shuts down, and clients repeat them
        elsewhere."""
        self._stops = True
        for id_ in list(self._waiting):
            self._cancel(id_)

    def end(self, *, is_gone: bool = False) -> None:
        """Cancel all calls: the client no longer receives answers.

        The sessions of the connection become suspected, and may be resumed. If the program at the
        other end `is_gone`, they are closed instead; but not those of a front end, whose consumers
        may still exist.
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
        """Submit a command without an answer, and retry while the engine is full: no other process
        would submit it."""
        try:
            self._service.engine.tell(shard, command)
        except Full as error:
            self._loop.call_later(error.after_ms / 1000, self._tell, shard, command)
        except MillraceError:
            # The queue or the engine is closed; the next engine will suspect the session.
            return

    # --- Calls ----------------------------------------------------------------------------------

    def _begin(self, id_: int, call: Call) -> None:
        if id_ in self._under:
            self._fail(id_, Invalid(f"the call {id_} is under way", field="id"))
            return
        try:
            self._check_room(id_, call)
            admitted = self._service.admission.admit(self._caller, call)
        except UnknownShard as unknown:
            self._start(id_, call, self._learn(id_, call, unknown.shard))
            return
        except MillraceError as error:
            self._refuse(id_, call, error)
            return
        self._go_on(id_, admitted)

    def _refuse(self, id_: int, call: Call, error: MillraceError) -> None:
        """Answer a call that was not admitted; a denied operation is audited."""
        keeping = self._service.keeping
        if keeping is not None and isinstance(error, Denied | NotFound):
            keeping.denied(self._caller.who, call, self._service.admission.named)
        self._fail(id_, error)

    def _submit(self, id_: int, call: Submit) -> None:
        """Begin a common call: a fast path of `_begin` with fewer steps."""
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

    def _submitted(self, id_: int, request: CommandRequest, wait_ms: int) -> None:
        self._under[id_] = request
        if wait_ms and is_retryable(request.command):
            self._waiting.add(id_)
        request.future.add_done_callback(partial(self._answered, id_, request))

    def _check_room(self, id_: int, call: Call) -> None:
        if isinstance(call, Submit) and call.wait_ms:
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
                except UnknownShard as unknown:
                    # The next part of a transaction has an unknown shard.
                    shard = unknown.shard
        except MillraceError as error:
            self._refuse(id_, call, error)
            return
        if self._under.pop(id_, None) is not None:
            self._waiting.discard(id_)
            self._go_on(id_, admitted)

    def _go_on(self, id_: int, call: Call) -> None:
        quick = self._service.quick
        if isinstance(call, Notify):
            told = call.command
            if (
                isinstance(told, CloseSession | SuspectSession)
                and self._claims.get((call.shard, told.claim.session)) == told.claim
            ):
                # Retried while the engine is full: the connection may last long and not end the
                # session soon.
                del self._claims[call.shard, told.claim.session]
                self._tell(call.shard, told)
            else:
                # Failures are ignored, as if the connection had been lost before: the lease
                # expires.
                with suppress(MillraceError):
                    self._service.engine.tell(call.shard, told)
            # Nothing is answered, and perhaps no call is in flight any more.
            self._wake()
            return
        if isinstance(call, Heartbeat):
            # From now on the session does not end with this connection. If the engine has no room,
            # the heartbeat counts as missing.
            with suppress(MillraceError):
                self._service.engine.heartbeat(call.shard, call.claim)
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
            or not isinstance(call, Submit)
            or isinstance(call.command, Explain | PublishStaged | Replace | ApplyTransaction)
        ):
            self._start(id_, call, self._run(id_, call))
            return
        try:
            request = quick.submit(call.shard, call.command, call.wait_ms)
        except MillraceError as error:
            self._fail(id_, error)
        else:
            self._submitted(id_, request, call.wait_ms)

    def _answered(self, id_: int, request: CommandRequest, future: asyncio.Future[object]) -> None:
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
        if type(answer) is PublishResult or type(answer) is Outcome:
            self._sheet.answer(id_, ANSWERS, answer)
            self._wake()
            return
        handed = self._service.handed
        if handed is not None and isinstance(command, LeaseMessages | LeaseFromShards):
            self._count(handed, shard, command, answer)
        try:
            if isinstance(answer, SessionRef) and not self._lasts:
                self._speak(shard, answer.claim)
            elif isinstance(answer, SessionRef):
                self._claims[shard, answer.claim.session] = answer.claim
            elif isinstance(command, CloseSession) and not command.keep:
                self._claims.pop((shard, command.claim.session), None)
            if quick is not None:
                proved = add_proofs(quick, shard, answer)
                if isinstance(answer, Leased) and answer.seqs and self._has_room:
                    rows = quick.rows_in_memory(shard, answer.seqs, limits.WIRE_BURST_BYTES)
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
        self,
        handed: LeaseCounters,
        shard: ShardId,
        command: LeaseMessages | LeaseFromShards,
        answer: object,
    ) -> None:
        parts = [part for _, part in answer.parts] if isinstance(answer, ShardLeases) else [answer]
        given = sum(len(part.seqs) for part in parts if isinstance(part, Leased))
        with suppress(UnknownShard):
            named = self._service.admission.named(shard)
            handed.note(named.space, named.name, command.count, given)

    def _speak(self, shard: ShardId, claim: Claim) -> None:
        engine = self._service.engine
        try:
            engine.heartbeat(shard, claim)
        except MillraceError:
            with suppress(MillraceError):
                engine.tell(shard, SuspectSession(claim))
            raise

    def _start(self, id_: int, call: Call, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._under[id_] = task
        if isinstance(call, calls.AwaitForwarding) or (
            isinstance(call, Submit) and call.wait_ms and is_retryable(call.command)
        ):
            self._waiting.add(id_)
        task.add_done_callback(partial(self._ended, id_))

    def _ended(self, id_: int, task: asyncio.Task[None]) -> None:
        if self._under.get(id_) is task:
            del self._under[id_]
            self._waiting.discard(id_)
            # Wake callers that wait until no call is in flight.
            self._wake()
        if task.cancelled():
            self._fail(id_, self._given_up())
        elif task.exception() is not None:
            # A bug: the client must get an answer, and the error must be logged.
            error = task.exception()
            self._fail(id_, Fatal(f"the server failed at this call: {type(error).__name__}"))
            self._loop.call_exception_handler({"message": "a call failed", "exception": error})

    async def _run(self, id_: int, call: Call) -> None:
        try:
            if isinstance(call, ReadBatches):
                await self._stream(id_, call)
                return
            if isinstance(call, Submit):
                answer = await self._ask(call)
                self._answer_command(id_, call.shard, call.command, answer)
                return
            found = await answer_to(self._service.engine, self._caller, call)
            self._sheet.answer(id_, calls.CALLS[type(call)].answer, found)
            self._wake()
        except MillraceError as error:
            self._fail(id_, error)

    async def _ask(self, call: Submit) -> object:
        """Run a command, and count its items against in-flight quotas."""
        do, holding, who = (
            partial(ask, self._service.engine),
            self._service.holding,
            self._caller.who,
        )
        if isinstance(call.command, ApplyTransaction | Replace) and not self._caller.is_server:
            await check_moved(self._service.engine, call.shard, call.command)
        if holding is None or not holding.wants(who, call):
            return await do(call)
        return await holding.answer(who, call, do)

    async def _run_kept(self, id_: int, call: Call, keeping: CallAudit) -> None:
        """As `_run`, with audit and counting of created objects."""
        engine, named = self._service.engine, self._service.admission.named
        if isinstance(call, Submit):
            do: Callable[[], Awaitable[object]] = partial(self._ask, call)
        else:
            do = partial(answer_to, engine, self._caller, call)
        try:
            answer = await keeping.answer(self._caller.who, engine, named, call, do)
        except MillraceError as error:
            self._fail(id_, error)
            return
        if isinstance(call, Submit):
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
        if isinstance(under, CommandRequest):
            assert self._service.quick is not None
            self._service.quick.take_back(under)
            self._fail(id_, self._given_up())
        elif under is not None:
            # It is answered by `_ended`: it may be too late to cancel it.
            under.cancel()

    def _given_up(self) -> MillraceError:
        """Return the final answer to a cancelled call."""
        if self._stops:
            return Closed("the server stops; ask again")
        return Unknown("the call was given up: it was done, or it was not; it was handed nothing")

    def _fail(self, id_: int, error: MillraceError) -> None:
        if not self._is_over and id_ >= 0:
            self._sheet.failed(id_, error)
            self._wake()
        # Break the reference from the error's traceback to the call.
        detached(error)


def _told(error: BaseException) -> MillraceError:
    if isinstance(error, MillraceError):
        return error
    return Fatal(f"the engine failed: {type(error).__name__}")
