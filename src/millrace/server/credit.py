"""The credit of sessions, which counts as messages in flight for as long as they last.

Rule 1: one that settling refills counts by all of its credit; of one that is used up, what is left
counts, and each message that was told.
Rule 2: a session that goes on is counted, however much it has: it has it already.
Rule 3: a session counts until the engine knows it no more, whatever its owner says.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from millrace.client.engine import Engine
from millrace.core.model import NEVER_MS, ShardId
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    Delivered,
    GrantCredit,
    OpenSession,
    Receive,
    ResumeSession,
    SessionRef,
)
from millrace.errors import Gone, MillraceError, NotFound
from millrace.server.access import Principal
from millrace.server.quota import Quotas

Takes = OpenSession | ResumeSession | GrantCredit
"""What gives credit, or counts it anew."""

Follows = Receive | CloseSession
"""What comes of credit that was given."""

Held = tuple[int, int, int]
"""A session as it is counted: shard, session, 0."""


def open_by(shard: ShardId, claim: Claim) -> Hashable:
    """What a session is counted by among those that somebody has."""
    return "session", shard, int(claim.session)


class _Credit(msgspec.Struct, frozen=True):
    """What has to be known of a session that is counted."""

    claim: Claim
    refill: bool


class Credits:
    """Counts the credit of sessions that are had by calls."""

    def __init__(self, engine: Engine, quotas: Quotas) -> None:
        self._engine = engine
        self._quotas = quotas

    def follows(self, who: Principal, shard: ShardId, command: Follows) -> bool:
        """Whether something is counted of what a session asks."""
        if not self._quotas.bounds(who, "in_flight"):
            return False
        known = self._known((shard, int(command.claim.session), 0))
        if isinstance(command, CloseSession):
            return known is not None and not command.keep
        return known is None or not known.refill

    def give(self, who: Principal, shard: ShardId, claim: Claim, count: int) -> None:
        """So much more credit is about to be granted to a session, or less than was thought."""
        id = (shard, int(claim.session), 0)
        known = self._known(id) or _Credit(claim, refill=False)
        self._count(who, shard, known, self._quotas.count(id) + count)

    def begun(self, who: Principal, shard: ShardId, ref: SessionRef) -> None:
        """A session was opened, or goes on."""
        self._count(who, shard, _Credit(ref.claim, ref.refill), ref.credit)

    def told(self, who: Principal, shard: ShardId, claim: Claim, answer: object) -> None:
        """A session was told of messages, perhaps again."""
        assert isinstance(answer, Delivered)
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
        """Somebody says that a session has ended."""
        id = (shard, int(claim.session), 0)
        if not await self.lasts(id):
            self._quotas.let_go(id)

    async def lasts(self, id: Held) -> bool:
        """Whether a session that is counted may still be there."""
        known = self._known(id)
        return known is None or await self._lasts(ShardId(id[0]), known.claim)

    def count_session(self, who: Principal, shard: ShardId, ref: SessionRef) -> None:
        """Count a session among those that somebody has."""
        at = open_by(shard, ref.claim)
        self._quotas.hold(who, "sessions", 1, at, NEVER_MS, (shard, ref.claim))

    async def is_open(self, id: Hashable) -> bool:
        """Whether a session that is counted so may still be there."""
        match self._quotas.note(id):
            case (int(shard), Claim() as claim):
                return await self._lasts(ShardId(shard), claim)
        return True

    async def _lasts(self, shard: ShardId, claim: Claim) -> bool:
        # As it was never spoken for: nothing is told, but that it has ended or that it has not.
        claim = msgspec.structs.replace(claim, epoch=claim.epoch + 1)
        try:
            await self._engine.ask(shard, Receive(claim, 0, 0), Delivered)
        except (Gone, NotFound):
            return False
        except MillraceError:
            return True
        return True

    def _known(self, id: Held) -> _Credit | None:
        found = self._quotas.note(id)
        return found if isinstance(found, _Credit) else None

    def _count(self, who: Principal, shard: ShardId, credit: _Credit, count: int) -> None:
        id = (shard, int(credit.claim.session), 0)
        if count > 0:
            self._quotas.hold(who, "in_flight", count, id, NEVER_MS, credit)
        else:
            self._quotas.let_go(id)
