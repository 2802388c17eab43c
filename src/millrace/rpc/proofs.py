"""Whether leases and sessions that another process names were handed out."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Protocol, TypeVar, cast

import msgspec

from millrace.core.across_commands import LeasedAcross
from millrace.core.answers import Leased, Outcome, Published
from millrace.core.commands import (
    Command,
    Discard,
    Extend,
    Lease,
    Part,
    Publish,
    Release,
    Settle,
    Transaction,
)
from millrace.core.leased_commands import Replace
from millrace.core.model import LeaseId, ShardId
from millrace.core.receipt import Proved
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    Delivered,
    GrantCredit,
    Receive,
    ResumeSession,
    SessionRef,
    SuspectSession,
)
from millrace.errors import Forged

T = TypeVar("T")


class Prove(Protocol):
    """Makes the proof of a lease call or session."""

    def __call__(self, shard: int, history: bytes, number: int, *, session: bool) -> bytes: ...


def judged(prove: Prove, shard: ShardId, command: Command) -> Command:
    """The command with plain numbers, if what it names was handed out.

    Raises:
        Forged: it was not.
    """
    kind = type(command)
    if kind is Publish or kind is Lease:
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
        case Transaction(parts=parts):
            return Transaction(tuple(_parts(prove, parts)))
        case _:
            return command


def _parts(prove: Prove, parts: Iterable[tuple[ShardId, Part]]) -> Iterable[tuple[ShardId, Part]]:
    for at, part in parts:
        found = judged(prove, at, part)
        assert type(found) is type(part)
        yield at, found


def _lease(prove: Prove, shard: ShardId, lease: LeaseId, history: bytes) -> LeaseId:
    return LeaseId(_number(prove, shard, lease, history, session=False))


def _number(prove: Prove, shard: ShardId, number: int, history: bytes, *, session: bool) -> int:
    if isinstance(number, Proved):
        plain = int(number)
        proof = prove(shard, history, plain, session=session)
        if hmac.compare_digest(number.proof, proof):
            return plain
    raise Forged("this lease was not made here, or was changed", field="lease")


class Proving(Protocol):
    """Proves what it has handed out itself."""

    def proved(
        self, shard: ShardId, number: int, history: bytes | None = None, *, session: bool = False
    ) -> Proved: ...


def with_proofs(engine: Proving, shard: ShardId, answer: object) -> object:
    """The answer, with the proofs of all leases and sessions in it."""
    kind = type(answer)
    if kind is Published or kind is Outcome:
        return answer
    match answer:
        case Leased(lease, seqs, deadline_ms, counts, turns, firsts=firsts) if lease:
            proof = cast("LeaseId", engine.proved(shard, lease))
            return Leased(proof, seqs, deadline_ms, counts, turns, firsts=firsts)
        case LeasedAcross(parts=parts):
            return LeasedAcross(
                tuple((at, _leased(with_proofs(engine, at, part))) for at, part in parts)
            )
        case Delivered(deliveries=deliveries):
            proved = tuple(
                msgspec.structs.replace(one, lease=engine.proved(shard, one.lease))
                for one in deliveries
            )
            return Delivered(proved, answer.next)
        case SessionRef(claim=claim):
            session = engine.proved(shard, claim.session, claim.history, session=True)
            proved_claim = Claim(session, claim.history, claim.number, claim.epoch)
            return msgspec.structs.replace(answer, claim=proved_claim)
        case _:
            return answer


def _leased(answer: object) -> Leased:
    assert isinstance(answer, Leased)
    return answer
