"""Accounting of session credit, which counts as messages in flight for as long as the session
lasts.

Rule 1: a session whose credit is refilled by settling counts with all of its credit. Of other
sessions, the remaining credit counts, and each delivered message.
Rule 2: a resumed session is counted even above the quota: it has its credit already.
Rule 3: a session counts until the engine no longer knows it, whatever its owner reports.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from millrace.client.engine import Engine
from millrace.core.model import NEVER_MS, ShardId
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    GrantCredit,
    OpenSession,
    Receive,
    ReceiveResult,
    ResumeSession,
    SessionRef,
)
from millrace.errors import Gone, MillraceError, NotFound
from millrace.server.auth.access import Principal
from millrace.server.quota.quotas import Quotas

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
