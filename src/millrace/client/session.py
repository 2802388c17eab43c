"""`Session`: a consumer that the queue pushes messages to, within its credit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.lease import Lease
from millrace.client.lease_calls import Make, submit_each
from millrace.client.lease_group import Keepalive
from millrace.client.prefetch import PrefetchBuffer
from millrace.core import plain_types, validate
from millrace.core.commands import Discard, Release, Settle
from millrace.core.format.receipt import Receipt
from millrace.core.model import History, LeaseId, Seq, ShardId
from millrace.core.session_commands import (
    GrantCredit,
    Granted,
    OpenSession,
    ResumeSession,
    SessionRef,
)
from millrace.errors import Forged, Invalid, MillraceError, NotFound, Refused, Suspected

Numbers = int | Iterable[int]
"""A delivery number, or several."""


class Session:
    """A consumer to which the queue pushes messages as they arrive; see `Queue.session`.

    Deliveries are numbered 0, 1, 2… without gaps. A session owns its messages while it lasts, so
    that nothing needs to be extended. When it is closed, or its context ends, messages that were
    not settled are released at once and do not count as failed. If the object is dropped without
    closing it, or the process ends, the session is *suspected*: unless it is resumed by its `id`,
    its messages are released as failed after its `suspect` time.
    """

    def __init__(
        self,
        engine: Engine,
        keepalive: Keepalive,
        shard: ShardId,
        opening: OpenSession | ResumeSession,
        label: str = "",
    ) -> None:
        self._label = label
        self._buffer: PrefetchBuffer | None = None
        self._engine = engine
        self._keepalive = keepalive
        self._shard = shard
        self._opening = opening
        self._ref: SessionRef | None = None

    @property
    def id(self) -> str:
        """Id to resume the session with, in this process or another one."""
        claim = self._opened().claim
        receipt = Receipt(self._shard, History(claim.history), Seq(0), LeaseId(claim.session))
        return self._engine.seal(receipt)

    @property
    def name(self) -> str:
        """Name that was given to the session."""
        return self._opened().name

    async def open(self) -> Session:
        """Open the session; opening it twice is harmless. `close` ends it.

        Raises:
            Gone: the session to be resumed has ended.
            Full: the queue has too many sessions.
        """
        if self._buffer is None:
            ref = await self._engine.ask(self._shard, self._opening, SessionRef)
            # Deliveries to the previous owner of a resumed session that it has not settled come
            # again.
            self._ref = ref
            self._buffer = PrefetchBuffer(
                self._engine, self._keepalive, self._shard, ref, 0, self._label
            )
        return self

    def __aiter__(self) -> Session:
        return self

    async def __anext__(self) -> Lease:
        """Return the next message, as soon as one is available and credit allows it.

        Raises:
            StopAsyncIteration: after `cancel`, once no more messages will come.
            NotFound: the queue was deleted.
            Stale: the session was resumed by another program.
            Closed: this session, or the engine, was closed.
        """
        lease = await self._opened_buffer().next()
        if lease is None:
            raise StopAsyncIteration
        return lease

    async def grant(self, credit: int, *, drain: bool = False) -> int:
        """Grant credit for this many more messages; return how much was taken back by `drain`.

        With `drain`, the messages available now are delivered, and the credit left over is removed.
        Without it nothing is taken back. Sessions whose credit is refilled by settling need no
        grant.

        Raises:
            Invalid: the session refills its credit; or `cancel` was called.
            TooLarge: the session would have too much credit.
        """
        number = plain_types.whole(credit)
        if number is None or number < 0:
            raise Invalid(
                f"credit is {validate.shown(credit)}, not a whole number from 0 on", field="credit"
            )
        if number:
            validate.count(number, "credit", limits.SESSION_CREDIT_MAX)
        buffer, drains = self._opened_buffer(), validate.flag(drain, "drain")
        while True:
            command = GrantCredit(buffer.claim, number, drains)
            try:
                return (await self._engine.ask(self._shard, command, Granted)).drained
            except Suspected:
                if not self._engine.is_remote:
                    raise
            await buffer.resume(command.claim)

    async def redeliver(self, number: int = 0) -> None:
        """Deliver again all unsettled messages from this delivery number on, under the same
        numbers."""
        await self._opened_buffer().restart(validate.seq(number, "number", least=0))

    async def settle(
        self, numbers: Numbers | None = None, *, upto: int | None = None
    ) -> dict[int, Refused]:
        """Settle deliveries by number, or all up to one; see `Lease.settle`.

        Numbers that are not held are ignored. Returns the refused ones, with the reason of each.
        """
        return await self._each(numbers, upto, lambda c: Settle(c.lease, c.seqs, c.history))

    async def release(
        self,
        numbers: Numbers | None = None,
        *,
        upto: int | None = None,
        failed: bool = False,
        delay: float = 0,
    ) -> dict[int, Refused]:
        """Release deliveries by number, or all up to one; see `Lease.release`.

        Numbers and refusals are as for `settle`.
        """
        failed = validate.flag(failed, "failed")
        delay_ms = validate.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
        return await self._each(
            numbers, upto, lambda c: Release(c.lease, c.seqs, c.history, failed, delay_ms)
        )

    async def discard(
        self, numbers: Numbers | None = None, *, upto: int | None = None
    ) -> dict[int, Refused]:
        """Turn deliveries into dead letters, by number or all up to one; see `Lease.discard`.

        Numbers and refusals are as for `settle`.
        """
        return await self._each(numbers, upto, lambda c: Discard(c.lease, c.seqs, c.history))

    async def _each(
        self, numbers: Numbers | None, upto: int | None, make: Make
    ) -> dict[int, Refused]:
        held = self._opened_buffer().held(_chosen(numbers, upto))
        outcomes = await submit_each(self._engine, [call for call, _ in held], make, self._label)
        return {
            numbers_by_seq[seq]: error
            for (_, numbers_by_seq), outcome in zip(held, outcomes, strict=True)
            for seq, error in outcome.refused.items()
        }

    async def cancel(self) -> None:
        """Stop receiving new messages; those held stay with the session until they are settled.

        Messages that were sent before still arrive; then the loop over the session ends.
        """
        await self._opened_buffer().cancel()

    async def close(self) -> None:
        """End the session and release its messages at once; closing twice is harmless.

        None of them counts as failed; messages that the program has not received do not count as
        delivered.
        """
        if self._buffer is not None:
            # A deleted queue has no sessions to close.
            with suppress(NotFound):
                await self._buffer.close()

    async def __aenter__(self) -> Session:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        buffer = self._opened_buffer()
        if buffer.is_cancelled:
            buffer.leave()
            return
        try:
            await self.close()
        except MillraceError:
            # The error of the body is raised, not the one of closing.
            if error is None:
                raise

    def __del__(self) -> None:
        if self._buffer is not None and not self._buffer.is_over:
            # The loop may be closed, and its engine too: the next engine suspects the session.
            with suppress(RuntimeError):
                self._buffer.loop.call_soon_threadsafe(self._buffer.leave)

    def _opened(self) -> SessionRef:
        if self._ref is None:
            raise Invalid("the session is not open; use `async with`", field="session")
        return self._ref

    def _opened_buffer(self) -> PrefetchBuffer:
        self._opened()
        assert self._buffer is not None
        return self._buffer

    def __repr__(self) -> str:
        return f"<Session {self._ref.claim.session}>" if self._ref else "<Session, not open>"


def resuming(engine: Engine, shard: ShardId, text: object) -> ResumeSession:
    """Return the command that resumes the session with this id.

    Raises:
        Forged: the text is not the id of a session of this queue.
    """
    plain = plain_types.text(text)
    receipt = engine.unseal(plain) if plain is not None else None
    if receipt is None or receipt.seq != 0 or receipt.shard != shard:
        raise Forged("this is not the id of a session of this queue", field="resume")
    return ResumeSession(receipt.lease, receipt.history)


def opening(
    credit: object, refill: object, lease: object, suspect: object, name: object
) -> OpenSession:
    """Validate the options of a session; return the command that opens it.

    Raises:
        Invalid, TooLarge: an option is not valid.
    """
    does_refill = validate.flag(refill, "refill")
    if does_refill or credit != 0:
        credit = validate.count(credit, "credit", limits.SESSION_CREDIT_MAX)
    return OpenSession(
        credit if isinstance(credit, int) else 0,
        does_refill,
        0 if lease is None else validate.millis(lease, "lease", limits.LEASE_MS_MAX),
        validate.millis(suspect, "suspect", limits.SUSPECT_MS_MAX),
        "" if name is None else validate.name(name, "name"),
    )


def _chosen(numbers: Numbers | None, upto: int | None) -> Callable[[int], bool]:
    if (numbers is None) == (upto is None):
        raise Invalid("name delivery numbers, or upto, and not both", field="numbers")
    if upto is not None:
        last = validate.seq(upto, "upto", least=0)
        return lambda number: number <= last
    listed = numbers if isinstance(numbers, Iterable) else (numbers,)
    wanted = {validate.seq(number, "numbers", least=0) for number in listed}
    return wanted.__contains__


def leave(session: Session) -> None:
    """Suspect the session: it keeps its messages for its `suspect` time, unless it is resumed."""
    if session._buffer is not None:
        session._buffer.leave()


def lose(session: Session) -> None:
    """End the session of a consumer that is known to be gone; its messages count as failed."""
    if session._buffer is not None:
        session._buffer.lose()


def count_held(session: Session, numbers: Numbers | None, upto: int | None) -> int:
    """Return how many of these deliveries the session received and has not ended."""
    held = session._opened_buffer().held(_chosen(numbers, upto))
    return sum(len(call.seqs) for call, _ in held)
