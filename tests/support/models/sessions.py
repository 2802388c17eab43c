"""The naive model of a shard with sessions: a list of all deliveries."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.core.model import NEVER_MS, NewMessage
from tests.support.models.followers import Answer
from tests.support.models.shard import Model


@dataclass
class ModelSession:
    """A session: its deliveries and its claim."""

    token: int
    """Unlike its id, never given twice, whatever a takeover loses."""
    claim: int
    """As the token: of the newest claim."""
    epoch: int
    credit: int
    refill: bool
    lease_ms: int
    suspect_ms: int
    suspected: int = 0
    cancelled: bool = False
    deliveries: list[tuple[int, int]] = field(default_factory=list)
    """Lease and seq, by delivery number."""


@dataclass
class SessionModel(Model):
    """A shard with sessions."""

    epoch: int = 1
    sessions: dict[int, ModelSession] = field(default_factory=dict)

    def open_session(
        self, token: int, credit: int, lease_ms: int, suspect_ms: int, *, refill: bool
    ) -> Answer:
        self.lease_id += 1
        self.sessions[self.lease_id] = ModelSession(
            token, token, self.epoch, credit, refill, lease_ms, suspect_ms
        )
        return (self.lease_id, credit, 0)

    def resume(self, number: int, token: int, claim: int) -> Answer:
        session = self.sessions.get(number)
        if session is None or session.token != token:
            return "Gone"
        session.claim, session.epoch, session.suspected = claim, self.epoch, 0
        return (number, session.credit, len(session.deliveries))

    def replace(
        self, lease_id: int, token: int, seq: int, message: NewMessage, lease_ms: int, new: int
    ) -> Answer:
        """Not what a session was handed: its deliveries would end without being settled."""
        is_theirs = any(
            lease_id == lease
            for session in self.sessions.values()
            for lease, _ in session.deliveries
        )
        if is_theirs and not self.log:
            word = self.judge("extend", lease_id, token, [seq])[seq]
            return "Invalid" if word == "done" else word
        return super().replace(lease_id, token, seq, message, lease_ms, new)

    def _heard(self, number: int, token: int, claim: int) -> ModelSession | str:
        session = self.sessions.get(number)
        if session is None or session.token != token:
            return "Gone"
        if session.claim != claim:
            return "Stale"
        return "Suspected" if session.suspected or session.epoch != self.epoch else session

    def held(self, session: ModelSession, expected: int = 0) -> dict[int, tuple[int, int]]:
        """Return number → lease and seq, of deliveries that are neither settled nor released."""
        found = {}
        for number, (lease, seq) in enumerate(session.deliveries):
            known = self.leases.get(lease)
            if number >= expected and known is not None and known.seqs.get(seq) == "open":
                found[number] = (lease, seq)
        return found

    def _tell(self, held: dict[int, tuple[int, int]]) -> Answer:
        return tuple(
            (number, lease, seq, self.rows[seq].deliveries, self.rows[seq].failures)
            for number, (lease, seq) in held.items()
        )

    def receive(
        self, number: int, token: int, claim: int, expected: int, count: int, lease_token: int
    ) -> Answer:
        session = self._heard(number, token, claim)
        if isinstance(session, str):
            return session
        if expected > len(session.deliveries):
            return "Invalid"
        held = self.held(session, expected)
        if not held:
            self._deliver(session, count, lease_token)
            held = self.held(session, expected)
        return (self._tell(held), len(session.deliveries))

    def _deliver(self, session: ModelSession, count: int, lease_token: int) -> None:
        room = session.credit - (len(self.held(session)) if session.refill else 0)
        if session.cancelled or min(room, count) <= 0:
            return
        got = self.lease(min(room, count), session.lease_ms or NEVER_MS, lease_token)
        assert isinstance(got, dict)
        session.deliveries += [(self.lease_id, seq) for seq in sorted(got)]
        if not session.refill:
            session.credit -= len(got)

    def grant(
        self, number: int, token: int, claim: int, credit: int, lease_token: int, *, drain: bool
    ) -> Answer:
        session = self._heard(number, token, claim)
        if isinstance(session, str):
            return session
        if session.refill or session.cancelled:
            return "Invalid"
        session.credit += credit
        if not drain:
            return (session.credit, 0)
        self._deliver(session, session.credit, lease_token)
        left, session.credit = session.credit, 0
        return (0, left)

    def suspect(self, number: int, token: int, claim: int) -> Answer:
        session = self._heard(number, token, claim)
        if isinstance(session, str):
            return False
        session.suspected = self.now
        return True

    def close(self, number: int, token: int, claim: int, seen: int, *, keep: bool) -> Answer:
        session = self.sessions.get(number)
        if session is None or session.token != token or session.claim != claim:
            return 0
        if keep:
            session.cancelled, session.credit = True, 0
            return 0
        held = self.held(session)
        for at, (lease, seq) in held.items():
            self.release(lease, self.leases[lease].token, [seq], unseen=at >= seen)
        del self.sessions[number]
        return len(held)

    def extend(
        self, lease_id: int, token: int, seqs: list[int], lease_ms: int, *, on_time: bool = False
    ) -> dict[int, str]:
        known = self.leases.get(lease_id)
        if known is not None and max(known.deadlines.values()) >= NEVER_MS:
            # Its session holds it.
            return self.judge("extend", lease_id, token, seqs)
        return super().extend(lease_id, token, seqs, lease_ms, on_time=on_time)

    def tick(self, remembered_ms: int) -> None:
        super().tick(remembered_ms)
        for number, session in list(self.sessions.items()):
            held = self.held(session)
            is_over = session.suspected and session.suspected + session.suspect_ms <= self.now
            if is_over or (session.cancelled and not held):
                for lease, seq in held.values():
                    self.release(lease, self.leases[lease].token, [seq], failed=True)
                del self.sessions[number]
            elif not session.suspected and session.epoch != self.epoch:
                session.suspected = self.now
