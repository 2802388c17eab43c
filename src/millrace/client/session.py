"""A session: messages as they come, as many at a time as the consumer has credit for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from millrace import limits
from millrace.client.calls import Make, ask_each
from millrace.client.engine import Engine
from millrace.client.feed import Feed
from millrace.client.grant import Keepalive
from millrace.client.lease import Lease
from millrace.core import check, exact
from millrace.core.commands import Discard, Release, Settle
from millrace.core.model import History, LeaseId, Seq, ShardId
from millrace.core.receipt import Receipt
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
    """A consumer that the queue hands messages to as they come; see `Queue.session`.

    Its deliveries are numbered 0, 1, 2… without gaps, and its messages are its own as long as it
    lasts: there is nothing to extend. When it is closed, or its context ends, those that were not
    settled go back at once, and none of them has failed. If it is dropped without a word, or the
    process ends, it is *suspected*: unless it is resumed by its `id`, they go back after
    its time, as failed.
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
        self._feed: Feed | None = None
        self._engine = engine
        self._keepalive = keepalive
        self._shard = shard
        self._opening = opening
        self._ref: SessionRef | None = None

    @property
    def id(self) -> str:
        """Text by which it can be resumed, in this or another process."""
        claim = self._opened().claim
        receipt = Receipt(self._shard, History(claim.history), Seq(0), LeaseId(claim.session))
        return self._engine.seal(receipt)

    @property
    def name(self) -> str:
        """The name that it was given."""
        return self._opened().name

    async def open(self) -> Session:
        """Begin; harmless the second time. What it does at its end is `close`.

        Raises:
            Gone: a session that should be resumed has ended.
            Full: the queue has too many sessions.
        """
        if self._feed is None:
            ref = await self._engine.ask(self._shard, self._opening, SessionRef)
            # What whoever spoke for it before was handed and has not settled comes again.
            self._ref = ref
            self._feed = Feed(self._engine, self._keepalive, self._shard, ref, 0, self._label)
        return self

    def __aiter__(self) -> Session:
        return self

    async def __anext__(self) -> Lease:
        """The next message, as soon as one is there and credit for it.

        Raises:
            StopAsyncIteration: after `cancel`, once nothing more will come.
            NotFound: the queue was deleted.
            Stale: the session was resumed by someone else.
            Closed: this, or the engine, was closed.
        """
        lease = await self._fed().next()
        if lease is None:
            raise StopAsyncIteration
        return lease

    async def grant(self, credit: int, *, drain: bool = False) -> int:
        """Let so many more messages be handed out; returns how many of them were taken back.

        Nothing is taken back unless with `drain`: then what is there now is handed out, and the
        credit that is left after that is no more. A session whose credit is refilled needs none.

        Raises:
            Invalid: the session's credit is refilled by settling; or after `cancel`.
            TooLarge: it would have too much credit.
        """
        number = exact.whole(credit)
        if number is None or number < 0:
            raise Invalid(
                f"credit is {check.shown(credit)}, not a whole number from 0 on", field="credit"
            )
        if number:
            check.count(number, "credit", limits.SESSION_CREDIT_MAX)
        feed, drains = self._fed(), check.flag(drain, "drain")
        while True:
            command = GrantCredit(feed.claim, number, drains)
            try:
                return (await self._engine.ask(self._shard, command, Granted)).drained
            except Suspected:
                if not self._engine.is_far:
                    raise
            await feed.resume(command.claim)

    async def redeliver(self, number: int = 0) -> None:
        """Have what is held from this delivery number on come again, under the same numbers."""
        await self._fed().restart(check.seq(number, "number", least=0))

    async def settle(
        self, numbers: Numbers | None = None, *, upto: int | None = None
    ) -> dict[int, Refused]:
        """Settle deliveries by their numbers, or all up to one; see `Lease.settle`.

        A number that is not held is passed over. Those that were refused come back, with the
        reason.
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
        """Give deliveries back by their numbers, or all up to one; see `Lease.release`.

        Numbers and refusals are as with `settle`.
        """
        failed = check.flag(failed, "failed")
        delay_ms = check.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
        return await self._each(
            numbers, upto, lambda c: Release(c.lease, c.seqs, c.history, failed, delay_ms)
        )

    async def discard(
        self, numbers: Numbers | None = None, *, upto: int | None = None
    ) -> dict[int, Refused]:
        """Make dead letters of deliveries by their numbers, or of all up to one.

        See `Lease.discard`; numbers and refusals are as with `settle`.
        """
        return await self._each(numbers, upto, lambda c: Discard(c.lease, c.seqs, c.history))

    async def _each(
        self, numbers: Numbers | None, upto: int | None, make: Make
    ) -> dict[int, Refused]:
        held = self._fed().held(_chosen(numbers, upto))
        outcomes = await ask_each(self._engine, [call for call, _ in held], make, self._label)
        return {
            known[seq]: error
            for (_, known), outcome in zip(held, outcomes, strict=True)
            for seq, error in outcome.refused.items()
        }

    async def cancel(self) -> None:
        """Be handed nothing more; what it holds it keeps until that is settled.

        Messages that were handed out before still come; then the loop over it ends.
        """
        await self._fed().cancel()

    async def close(self) -> None:
        """End it, and give back at once what it holds; harmless the second time.

        Nothing of it has failed, and what the program has not looked at was not delivered.
        """
        if self._feed is not None:
            # A queue that was deleted holds nothing.
            with suppress(NotFound):
                await self._feed.close()

    async def __aenter__(self) -> Session:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        feed = self._fed()
        if feed.is_cancelled:
            feed.leave()
            return
        try:
            await self.close()
        except MillraceError:
            # What went wrong in the body is what the caller must hear of.
            if error is None:
                raise

    def __del__(self) -> None:
        if self._feed is not None and not self._feed.is_over:
            # The loop may have ended, and its engine with it: the next one will suspect it.
            with suppress(RuntimeError):
                self._feed.loop.call_soon_threadsafe(self._feed.leave)

    def _opened(self) -> SessionRef:
        if self._ref is None:
            raise Invalid("the session is not open; use `async with`", field="session")
        return self._ref

    def _fed(self) -> Feed:
        self._opened()
        assert self._feed is not None
        return self._feed

    def __repr__(self) -> str:
        return f"<Session {self._ref.claim.session}>" if self._ref else "<Session, not open>"


def resuming(engine: Engine, shard: ShardId, text: object) -> ResumeSession:
    """The command that resumes the session of this id.

    Raises:
        Forged: it is no id of a session of this queue.
    """
    plain = exact.text(text)
    receipt = engine.unseal(plain) if plain is not None else None
    if receipt is None or receipt.seq != 0 or receipt.shard != shard:
        raise Forged("this is not the id of a session of this queue", field="resume")
    return ResumeSession(receipt.lease, receipt.history)


def opening(
    credit: object, refill: object, lease: object, suspect: object, name: object
) -> OpenSession:
    """The command that opens a session, checked.

    Raises:
        Invalid, TooLarge: one of them has a value that no session takes.
    """
    does_refill = check.flag(refill, "refill")
    if does_refill or credit != 0:
        credit = check.count(credit, "credit", limits.SESSION_CREDIT_MAX)
    return OpenSession(
        credit if isinstance(credit, int) else 0,
        does_refill,
        0 if lease is None else check.millis(lease, "lease", limits.LEASE_MS_MAX),
        check.millis(suspect, "suspect", limits.SUSPECT_MS_MAX),
        "" if name is None else check.name(name, "name"),
    )


def _chosen(numbers: Numbers | None, upto: int | None) -> Callable[[int], bool]:
    if (numbers is None) == (upto is None):
        raise Invalid("name delivery numbers, or upto, and not both", field="numbers")
    if upto is not None:
        last = check.seq(upto, "upto", least=0)
        return lambda number: number <= last
    listed = numbers if isinstance(numbers, Iterable) else (numbers,)
    wanted = {check.seq(number, "numbers", least=0) for number in listed}
    return wanted.__contains__


def leave(session: Session) -> None:
    """Nobody speaks for it for now: it keeps what it holds for its time, unless it is resumed."""
    if session._feed is not None:
        session._feed.leave()


def lose(session: Session) -> None:
    """Its consumer is known to be gone: it ends at once, and what it holds has failed."""
    if session._feed is not None:
        session._feed.lose()


def count_held(session: Session, numbers: Numbers | None, upto: int | None) -> int:
    """How many of these deliveries it was given and has not ended."""
    held = session._fed().held(_chosen(numbers, upto))
    return sum(len(call.seqs) for call, _ in held)
