"""Proofs of leases and sessions for other processes: issued in answers, verified in commands."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Protocol, TypeVar, cast

import msgspec

from millrace.core.answers import (
    Leased,
    Outcome,
    PublishResult,
    ShardLeases,
)
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    Discard,
    Extend,
    LeaseMessages,
    Part,
    Publish,
    Release,
    Replace,
    Settle,
)
from millrace.core.format.receipt import Proved
from millrace.core.model import LeaseId, ShardId
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    GrantCredit,
    Receive,
    ReceiveResult,
    ResumeSession,
    SessionRef,
    SuspectSession,
)
from millrace.errors import Forged

T = TypeVar("T")


class ProofFunction(Protocol):
    """Computes the proof of a lease call or session."""

    def __call__(self, shard: int, history: bytes, number: int, *, session: bool) -> bytes: ...


def check_proofs(prove: ProofFunction, shard: ShardId, command: Command) -> Command:
    """Verify the proofs in a command and replace them by plain numbers.

    Raises:
        Forged: a lease or session was not issued here.
    """
    kind = type(command)
    if kind is Publish or kind is LeaseMessages:
        return command
    match command:
        case Settle(lease=lease, seqs=seqs, history=history):
            proved = _lease(prove, shard, lease, history)
            return Settle(proved, seqs, history, command.on_time, command.any_delivery)
        case Release() | Extend() | Discard() | Replace():
            lease = _lease(prove, shard, command.lease, command.history)
            return msgspec.structs.replace(command, lease=lease)
        case ResumeSession(session=session, history=history):
            return ResumeSession(_number(prove, shard, session, history, session=True), history)
        case Receive() | GrantCredit() | SuspectSession() | CloseSession():
            claim = command.claim
            number = _number(prove, shard, claim.session, claim.history, session=True)
            plain = Claim(number, claim.history, claim.number, claim.epoch)
            return msgspec.structs.replace(command, claim=plain)
        case ApplyTransaction(parts=parts):
            return ApplyTransaction(tuple(_parts(prove, parts)))
        case _:
            return command


def _parts(
    prove: ProofFunction, parts: Iterable[tuple[ShardId, Part]]
) -> Iterable[tuple[ShardId, Part]]:
    for at, part in parts:
        checked = check_proofs(prove, at, part)
        assert type(checked) is type(part)
        yield at, checked


def _lease(prove: ProofFunction, shard: ShardId, lease: LeaseId, history: bytes) -> LeaseId:
    return LeaseId(_number(prove, shard, lease, history, session=False))


def _number(
    prove: ProofFunction, shard: ShardId, number: int, history: bytes, *, session: bool
) -> int:
    if isinstance(number, Proved):
        plain = int(number)
        proof = prove(shard, history, plain, session=session)
        if hmac.compare_digest(number.proof, proof):
            return plain
    raise Forged("this lease was not made here, or was changed", field="lease")


class ProofIssuer(Protocol):
    """Issues the proofs of leases and sessions."""

    def proved(
        self, shard: ShardId, number: int, history: bytes | None = None, *, session: bool = False
    ) -> Proved: ...


def add_proofs(engine: ProofIssuer, shard: ShardId, answer: object) -> object:
    """Return an answer with proofs of all leases and sessions in it."""
    kind = type(answer)
    if kind is PublishResult or kind is Outcome:
        return answer
    match answer:
        case Leased(lease, seqs, deadline_ms, counts, turns, firsts=firsts) if lease:
            proof = cast("LeaseId", engine.proved(shard, lease))
            return Leased(proof, seqs, deadline_ms, counts, turns, firsts=firsts)
        case ShardLeases(parts=parts):
            return ShardLeases(
                tuple((at, _leased(add_proofs(engine, at, part))) for at, part in parts)
            )
        case ReceiveResult(deliveries=deliveries):
            proved = tuple(
                msgspec.structs.replace(delivery, lease=engine.proved(shard, delivery.lease))
                for delivery in deliveries
            )
            return ReceiveResult(proved, answer.next)
        case SessionRef(claim=claim):
            session = engine.proved(shard, claim.session, claim.history, session=True)
            proved_claim = Claim(session, claim.history, claim.number, claim.epoch)
            return msgspec.structs.replace(answer, claim=proved_claim)
        case _:
            return answer


def _leased(answer: object) -> Leased:
    assert isinstance(answer, Leased)
    return answer
