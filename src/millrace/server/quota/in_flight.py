"""Quotas on messages in flight, pins and sessions of each user, over all ways to obtain them.

Rule 1: a call never gets more than its quota leaves. It gets fewer than it asked for before it is
refused.
Rule 2: before a user is refused, the oldest entries are checked against the engine, so that
messages that ended elsewhere (through another process or with other receipts) no longer count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from functools import partial

import msgspec

from millrace import limits
from millrace.client.engine import Engine
from millrace.core.answers import Explanation, Leased, ShardLeases, SnapshotRef
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    Discard,
    Explain,
    Extend,
    LeaseFromShards,
    LeaseMessages,
    Pin,
    Release,
    Settle,
    Unpin,
)
from millrace.core.format.receipt import read
from millrace.core.model import NEVER_MS, Seq, ShardId
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    GrantCredit,
    Granted,
    OpenSession,
    Receive,
    ReceiveResult,
    ResumeSession,
    SessionRef,
)
from millrace.errors import Exhausted, Forged, Gone, MillraceError, NotFound, Refused, Retry
from millrace.rpc.calls import Call, Submit
from millrace.server.auth.access import Principal
from millrace.server.clock import now_ms
from millrace.server.quota.quotas import Kind, Quotas, Reservation

CountedItem = tuple[int, int, int]
"""Identifies a counted item. A leased message: shard, lease call, seq. A session: shard, session,
0. A pin: shard, 0, pin."""

_Sessions = OpenSession | ResumeSession | CloseSession
"""Commands that begin or end a session."""

_TAKES = (LeaseMessages, LeaseFromShards, OpenSession, ResumeSession, GrantCredit, Pin)
_ENDS = (Settle, Release, Discard, Extend, Unpin, ApplyTransaction)


class InFlightQuota:
    """Counts the messages in flight, pins and sessions that users hold of an engine."""

    def __init__(self, engine: Engine, quotas: Quotas) -> None:
        self._engine = engine
        self._quotas = quotas
        self._credits = CreditQuota(engine, quotas)

    async def reserve(self, who: Principal, kind: Kind, count: int) -> Reservation:
        """Reserve up to `count` items for a call that may still fail or return nothing.

        Raises:
            Exhausted: the quota of the user is used up, also after a recount.
        """
        try:
            return self._quotas.reserve(who, kind, count, now_ms())
        except Exhausted:
            if kind == "pins" or not await self._recount(who, kind):
                raise
            return self._quotas.reserve(who, kind, count, now_ms())

    async def _recount(self, who: Principal, kind: Kind) -> bool:
        """Check the user's oldest entries against the engine; return True if some of them have
        ended."""
        if kind == "sessions":
            ids = self._quotas.oldest(who.name, kind, limits.QUOTA_RECOUNT_MAX, ends=False)
            are_held = await asyncio.gather(*map(self._credits.is_open, ids))
            gone: list[Hashable] = [
                id for id, is_held in zip(ids, are_held, strict=True) if not is_held
            ]
        else:
            ids = self._quotas.oldest(who.name, kind, limits.QUOTA_RECOUNT_MAX)
            found = [id for id in ids if isinstance(id, tuple) and len(id) == 3]
            are_held = await asyncio.gather(*map(self._is_held, found))
            gone = [id for id, is_held in zip(found, are_held, strict=True) if not is_held]
        for id in gone:
            self._quotas.let_go(id)
        return bool(gone)

    async def _is_held(self, id: CountedItem) -> bool:
        shard, lease, seq = id
        if not seq:
            return await self._credits.lasts(id)
        try:
            told = await self._engine.ask(ShardId(shard), Explain(Seq(seq)), Explanation)
        except NotFound:
            return False
        except MillraceError:
            # The engine cannot answer now: it counts until it expires.
            return True
        return told.state == "leased" and told.lease == lease

    # --- Receipts -----------------------------------------------------------------------------

    def keep(self, reserved: Reservation, receipts: Iterable[str], until_ms: int) -> None:
        """Count the messages that a call received, by their receipts, until their leases end."""
        if reserved.is_counted:
            reserved.keep_each([held_by(receipt) for receipt in receipts], until_ms)

    def let_go(self, receipts: Iterable[str]) -> None:
        """Stop counting these messages: the caller settled, released or discarded them."""
        if self._quotas.is_holding:
            for receipt in receipts:
                self._quotas.let_go(held_by(receipt))

    def extend(self, receipts: Iterable[str], until_ms: int) -> None:
        """Change the time until which these messages count."""
        if self._quotas.is_holding:
            for receipt in receipts:
                self._quotas.extend(held_by(receipt), until_ms)

    def replace(self, old: str, new: str, until_ms: int) -> None:
        """Count a message under its new receipt instead of its old one."""
        if self._quotas.is_holding:
            self._quotas.replace(held_by(old), held_by(new), until_ms)

    # --- Calls --------------------------------------------------------------------------------

    def wants(self, who: Principal, call: Call) -> bool:
        """Return whether the quotas of this user count anything of a call."""
        if not isinstance(call, Submit):
            return False
        command = call.command
        if isinstance(command, _Sessions) and self._quotas.bounds(who, "sessions"):
            return True
        if isinstance(command, _TAKES):
            kind: Kind = "pins" if isinstance(command, Pin) else "in_flight"
            return self._quotas.bounds(who, kind)
        if isinstance(command, Follows):
            return self._credits.follows(who, call.shard, command)
        return isinstance(command, _ENDS) and self._quotas.is_holding

    async def answer(
        self, who: Principal, call: Submit, do: Callable[[Submit], Awaitable[object]]
    ) -> object:
        """Run a call with `do` and count the items that it takes or ends.

        Raises:
            Exhausted: the quota of the user is used up; the call was not run.
        """
        command = call.command
        if isinstance(command, _Sessions) and self._quotas.bounds(who, "sessions"):
            return await self._answer_bounded(who, call, do)
        if isinstance(command, Takes | Follows):
            return await self._answer_session(who, call, command, do)
        if not isinstance(command, _TAKES):
            answer = await do(call)
            self._end(call.shard, command)
            return answer
        if isinstance(command, Pin):
            reserved = await self.reserve(who, "pins", 1)
        else:
            reserved = await self.reserve(who, "in_flight", command.count)
            command = msgspec.structs.replace(command, count=reserved.count)
        try:
            answer = await do(Submit(call.shard, call.wait_ms, command))
            if isinstance(answer, Leased):
                reserved.keep_each(_seqs(call.shard, answer), answer.deadline_ms)
            elif isinstance(answer, ShardLeases) and answer.parts:
                ids = [id for shard, part in answer.parts for id in _seqs(shard, part)]
                until_ms = max(part.deadline_ms for _, part in answer.parts)
                reserved.keep_each(ids, until_ms)
            elif isinstance(answer, SnapshotRef) and isinstance(command, Pin):
                reserved.keep((call.shard, 0, answer.pin), 1, now_ms() + command.pin_ms)
        finally:
            reserved.cancel()
        return answer

    async def _answer_bounded(
        self, who: Principal, call: Submit, do: Callable[[Submit], Awaitable[object]]
    ) -> object:
        """Run a call that opens, resumes or closes a session of a user with a quota of sessions."""
        command = call.command
        assert isinstance(command, _Sessions)
        is_counted = self._quotas.bounds(who, "in_flight") and (
            not isinstance(command, CloseSession) or self._credits.follows(who, call.shard, command)
        )
        if is_counted:
            do = partial(self._answer_session, who, command=command, do=do)
        if isinstance(command, CloseSession):
            answer = await do(call)
            if not command.keep:
                self._quotas.let_go(open_by(call.shard, command.claim))
            return answer
        # A resumed session is counted even above the quota: it exists already.
        new = isinstance(command, OpenSession)
        reserved = await self.reserve(who, "sessions", 1) if new else None
        try:
            answer = await do(call)
            if isinstance(answer, SessionRef):
                self._credits.count_session(who, call.shard, answer)
        finally:
            if reserved is not None:
                reserved.cancel()
        return answer

    async def _answer_session(
        self,
        who: Principal,
        call: Submit,
        command: Takes | Follows,
        do: Callable[[Submit], Awaitable[object]],
    ) -> object:
        shard, credits = call.shard, self._credits
        if isinstance(command, GrantCredit):
            return await self._grant(who, call, command, do)
        if isinstance(command, OpenSession):
            reserved = await self.reserve(who, "in_flight", command.credit)
            command = msgspec.structs.replace(command, credit=reserved.count)
            try:
                answer = await do(Submit(shard, call.wait_ms, command))
            finally:
                reserved.cancel()
        else:
            answer = await do(call)
        if isinstance(answer, SessionRef):
            credits.begun(who, shard, answer)
        elif isinstance(command, Receive):
            credits.told(who, shard, command.claim, answer)
        elif isinstance(command, CloseSession):
            await credits.closed(shard, command.claim)
        return answer

    async def _grant(
        self,
        who: Principal,
        call: Submit,
        command: GrantCredit,
        do: Callable[[Submit], Awaitable[object]],
    ) -> object:
        reserved = await self.reserve(who, "in_flight", command.credit)
        count, shard, claim = reserved.count, call.shard, command.claim
        reserved.cancel()
        # Before it is granted: a waiting call receives messages as soon as it is.
        self._credits.give(who, shard, claim, count)
        command = msgspec.structs.replace(command, credit=count)
        try:
            answer = await do(Submit(shard, call.wait_ms, command))
        except (Refused, Retry):
            self._credits.give(who, shard, claim, -count)
            raise
        if isinstance(answer, Granted):
            self._credits.give(who, shard, claim, -answer.drained)
        return answer

    def _end(self, shard: ShardId, command: Command) -> None:
        """Stop counting what a command has ended or was refused for: refused items had ended
        before."""
        match command:
            case ApplyTransaction(parts=parts):
                for at, part in parts:
                    self._end(at, part)
            case Settle(lease=lease, seqs=seqs) | Release(lease=lease, seqs=seqs):
                self._let_all_go(shard, lease, seqs)
            case Discard(lease=lease, seqs=seqs):
                self._let_all_go(shard, lease, seqs)
            case Extend(lease=lease, seqs=seqs, lease_ms=lease_ms):
                for seq in seqs:
                    self._quotas.extend((shard, int(lease), seq), now_ms() + lease_ms)
            case Unpin(pin=pin):
                self._quotas.let_go((shard, 0, pin))
            case _:
                return

    def _let_all_go(self, shard: ShardId, lease: int, seqs: Iterable[int]) -> None:
        for seq in seqs:
            self._quotas.let_go((shard, int(lease), seq))


def held_by(receipt: str) -> CountedItem | str:
    """Return the id under which a receipt is counted; the text itself if it is not a valid
    receipt."""
    try:
        found, _ = read(receipt)
    except Forged:
        return receipt
    return found.shard, found.lease, found.seq


def _seqs(shard: ShardId, leased: Leased) -> list[CountedItem]:
    return [(shard, int(leased.lease), seq) for seq in leased.seqs]


# -------------------------------------------------------------------------------------------------
# Accounting of session credit, which counts as messages in flight for as long as the session
# lasts.
#
# Rule 1: a session whose credit is refilled by settling counts with all of its credit. Of other
# sessions, the remaining credit counts, and each delivered message.
# Rule 2: a resumed session is counted even above the quota: it has its credit already.
# Rule 3: a session counts until the engine no longer knows it, whatever its owner reports.

Takes = OpenSession | ResumeSession | GrantCredit
"""Commands that grant credit, or count it anew."""

Follows = Receive | CloseSession
"""Commands that use up or return credit."""

CountedSession = tuple[int, int, int]
"""Identifies a counted session: shard, session, 0."""


def open_by(shard: ShardId, claim: Claim) -> Hashable:
    """Return the id under which a session counts against the quota of open sessions."""
    return "session", shard, int(claim.session)


class _Credit(msgspec.Struct, frozen=True):
    """State of a counted session."""

    claim: Claim
    refill: bool


class CreditQuota:
    """Counts the credit of the sessions that users opened by calls."""

    def __init__(self, engine: Engine, quotas: Quotas) -> None:
        self._engine = engine
        self._quotas = quotas

    def follows(self, who: Principal, shard: ShardId, command: Follows) -> bool:
        """Return whether the answer to a session's command changes the user's count of messages in
        flight."""
        if not self._quotas.bounds(who, "in_flight"):
            return False
        known = self._known((shard, int(command.claim.session), 0))
        if isinstance(command, CloseSession):
            return known is not None and not command.keep
        return known is None or not known.refill

    def give(self, who: Principal, shard: ShardId, claim: Claim, count: int) -> None:
        """Add `count` to the credit counted of a session, before it is granted; negative:
        subtract."""
        id = (shard, int(claim.session), 0)
        known = self._known(id) or _Credit(claim, refill=False)
        self._count(who, shard, known, self._quotas.count(id) + count)

    def begun(self, who: Principal, shard: ShardId, ref: SessionRef) -> None:
        """Count a session that was opened or resumed."""
        self._count(who, shard, _Credit(ref.claim, ref.refill), ref.credit)

    def told(self, who: Principal, shard: ShardId, claim: Claim, answer: object) -> None:
        """Move delivered messages from the session's credit to messages in flight; a repeated
        delivery counts once."""
        assert isinstance(answer, ReceiveResult)
        known = self._known((shard, int(claim.session), 0))
        if known is not None and known.refill:
            return
        new = 0
        for one in answer.deliveries:
            for seq in one.numbers:
                id = (shard, int(one.lease), seq)
                if not self._quotas.count(id):
                    self._quotas.hold(who, "in_flight", 1, id, one.deadline_ms)
                    new += 1
        self.give(who, shard, claim, -new)

    async def closed(self, shard: ShardId, claim: Claim) -> None:
        """Stop counting a session that was reported as closed, if the engine no longer knows it."""
        id = (shard, int(claim.session), 0)
        if not await self.lasts(id):
            self._quotas.let_go(id)

    async def lasts(self, id: CountedSession) -> bool:
        """Return whether a counted session may still exist."""
        known = self._known(id)
        return known is None or await self._lasts(ShardId(id[0]), known.claim)

    def count_session(self, who: Principal, shard: ShardId, ref: SessionRef) -> None:
        """Count a session against the quota of open sessions."""
        at = open_by(shard, ref.claim)
        self._quotas.hold(who, "sessions", 1, at, NEVER_MS, (shard, ref.claim))

    async def is_open(self, id: Hashable) -> bool:
        """Return whether a session counted under this id may still exist."""
        match self._quotas.note(id):
            case (int(shard), Claim() as claim):
                return await self._lasts(ShardId(shard), claim)
        return True

    async def _lasts(self, shard: ShardId, claim: Claim) -> bool:
        # With an epoch that was never used: the engine only answers whether the session has ended.
        claim = msgspec.structs.replace(claim, epoch=claim.epoch + 1)
        try:
            await self._engine.ask(shard, Receive(claim, 0, 0), ReceiveResult)
        except (Gone, NotFound):
            return False
        except MillraceError:
            return True
        return True

    def _known(self, id: CountedSession) -> _Credit | None:
        found = self._quotas.note(id)
        return found if isinstance(found, _Credit) else None

    def _count(self, who: Principal, shard: ShardId, credit: _Credit, count: int) -> None:
        id = (shard, int(credit.claim.session), 0)
        if count > 0:
            self._quotas.hold(who, "in_flight", count, id, NEVER_MS, credit)
        else:
            self._quotas.let_go(id)
