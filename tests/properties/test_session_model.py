"""The core with sessions against the naive model with sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import pytest
from hypothesis import strategies as st

from millrace.core.commands import Command
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
    SuspectSession,
)
from tests.properties import test_core_model as core
from tests.properties.test_core_model import SOMETIMES, WEIGHTS, CoreMachine, Driver, Receipt
from tests.support.models.commit_group import Result
from tests.support.models.parts import Limits
from tests.support.models.sessions import SessionModel


@dataclass
class Known:
    """A session, as one who opened or resumed it knows it."""

    claim: Claim
    token: int
    claim_token: int
    entry: int


def plain(answer: Result) -> object:
    match answer:
        case SessionRef():
            return (answer.claim.session, answer.credit, answer.next)
        case ReceiveResult():
            told = [
                (number, one.lease, seq, *one.counts.get(seq, (1, 0)))
                for one in answer.deliveries
                for seq, number in one.numbers.items()
            ]
            return (tuple(sorted(told)), answer.next)
        case Granted():
            return (answer.credit, answer.drained)
        case _:
            return core.plain(answer)


class SessionDriver(Driver):
    """Consumers with sessions, next to all other users."""

    model_class = SessionModel

    def __init__(self, *, keyed: bool, log: bool, retain: bool, limits: Limits) -> None:
        self.known: list[Known] = []
        super().__init__(keyed=keyed, log=log, retain=retain, limits=limits)

    @property
    def sessions(self) -> SessionModel:
        return cast("SessionModel", self.model)

    def plain(self, answer: Result) -> object:
        return plain(answer)

    def decide(self) -> None:
        self.sessions.epoch = self.group.epoch
        super().decide()

    def _lose_answers(self) -> None:
        super()._lose_answers()
        committed = len(self.group.log)
        self.known = [known for known in self.known if known.entry <= committed]

    def open_session(self, command: OpenSession) -> None:
        self.token += 1
        token = self.token

        def keep(answer: Result) -> None:
            assert isinstance(answer, SessionRef)
            self.known.append(Known(answer.claim, token, token, self.entries()))

        self.ask(
            command,
            lambda: self.sessions.open_session(
                token,
                command.credit,
                command.lease_ms,
                command.suspect_ms,
                refill=command.refill,
            ),
            keep,
        )

    def resume(self, known: Known) -> None:
        self.token += 1
        claim_token = self.token

        def keep(answer: Result) -> None:
            if isinstance(answer, SessionRef):
                self.known.append(Known(answer.claim, known.token, claim_token, self.entries()))

        number = known.claim.session
        self.ask(
            ResumeSession(number, known.claim.history),
            lambda: self.sessions.resume(number, known.token, claim_token),
            keep,
        )

    def receive(self, known: Known, back: int, count: int) -> None:
        """Receive with an expected number `back` before the next one."""
        session = self.sessions.sessions.get(known.claim.session)
        expected = max(0, len(session.deliveries) - back) if session is not None else 0
        self.token += 1
        token = self.token

        def keep(answer: Result) -> None:
            for one in answer.deliveries if isinstance(answer, ReceiveResult) else ():
                given = self.model.leases[one.lease].token
                history, seqs = self.group.history, sorted(one.numbers)
                self.receipts.append(Receipt(one.lease, given, history, seqs, self.entries()))

        self.ask(
            Receive(known.claim, expected, count),
            lambda: self.sessions.receive(
                known.claim.session, known.token, known.claim_token, expected, count, token
            ),
            keep,
        )

    def speak(
        self, known: Known, command: Command, expect: Callable[[int, int, int], object]
    ) -> None:
        """Ask for something that nothing is kept of."""
        self.ask(command, lambda: expect(known.claim.session, known.token, known.claim_token))

    def suspect(self, number: int, token: int, claim: int) -> object:
        return self.sessions.suspect(number, token, claim)

    def grant(self, known: Known, credit: int, *, drain: bool) -> None:
        self.token += 1
        token = self.token
        self.speak(
            known,
            GrantCredit(known.claim, credit, drain),
            lambda a, b, c: self.sessions.grant(a, b, c, credit, token, drain=drain),
        )


SESSION_WEIGHTS = {
    "open_session": 4,
    "receive": 14,
    "grant": 5,
    "resume": 3,
    "suspect": 3,
    "close": 2,
    "cancel": 1,
}
CREDITS = st.sampled_from([1, 2, 2, 5])


class SessionMachine(CoreMachine):
    """Random commands to one queue, those of sessions among them."""

    driver_class = SessionDriver
    weights: ClassVar[dict[str, int]] = WEIGHTS | SESSION_WEIGHTS

    def _act(self, kind: str, data: st.DataObject) -> None:
        if kind not in SESSION_WEIGHTS:
            super()._act(kind, data)
            return
        driver = cast("SessionDriver", self.driver)
        if kind == "open_session":
            refill = data.draw(st.booleans())
            credit = data.draw(CREDITS) if refill else data.draw(st.sampled_from([0, 1, 3]))
            lease_ms = data.draw(st.sampled_from([0, 0, 5_000]))
            driver.open_session(OpenSession(credit, refill, lease_ms, 6_000))
            return
        if not driver.known:
            return
        known = data.draw(st.sampled_from([*driver.known, *driver.known[-2:] * 3]))
        match kind:
            case "receive":
                back = data.draw(st.sampled_from([0, 0, 0, 1, 2, 100, -1]))
                driver.receive(known, back, data.draw(st.integers(1, 4)))
            case "grant":
                driver.grant(known, data.draw(st.integers(0, 3)), drain=data.draw(SOMETIMES))
            case "resume":
                driver.resume(known)
            case "suspect":
                driver.speak(known, SuspectSession(known.claim), driver.suspect)
            case _:
                keep = kind == "cancel"
                seen = data.draw(st.sampled_from([0, 1, 2, 100]))
                driver.speak(
                    known,
                    CloseSession(known.claim, seen, keep),
                    lambda a, b, c: driver.sessions.close(a, b, c, seen, keep=keep),
                )


SessionMachine.TestCase.settings = CoreMachine.TestCase.settings
TestSessionModel = pytest.mark.slow(SessionMachine.TestCase)
