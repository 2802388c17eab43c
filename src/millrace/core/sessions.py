"""The rules of consumer sessions: credit, delivery numbers, suspicion.

Rule 1: what a session is handed is a lease like any other, whose time is over when the session is:
receipts, failures, dead letters and newer revisions know nothing of sessions.
Rule 2: deliveries of a session are numbered 0, 1, 2… without gaps. It holds what it was handed and
has not settled; what it missed is told again, under the same numbers.
Rule 3: one claim speaks for a session: the newest, under the decider that it was made with. Under a
later one, or once nobody speaks for it, the session is suspected; then it gets nothing, and after a
time of its own what it holds is given back, as failed.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64, FrozenBitMap64

from millrace import limits
from millrace.core import failures
from millrace.core import lease as leasing
from millrace.core.answers import Outcome
from millrace.core.commands import Lease, Need, Release
from millrace.core.draft import Draft
from millrace.core.lease_state import LeaseState
from millrace.core.model import NEVER_MS, LeaseId, SessionCell
from millrace.core.quarantine import refusal
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    Delivered,
    Delivery,
    GrantCredit,
    Granted,
    OpenSession,
    Receive,
    ResumeSession,
    SessionRef,
    SuspectSession,
)
from millrace.core.takeover import shared_index
from millrace.core.view import View
from millrace.errors import Full, Gone, Invalid, Refused, Retry, Stale, Suspected, TooLarge


def open_session(draft: Draft, command: OpenSession) -> SessionRef | Full | Refused:
    view = draft.view
    if view.spec.is_partitioned:
        return Invalid(
            "a session would lock partitions for as long as it lasts; lease messages instead",
            field="delivery",
        )
    if len(view.sessions) >= limits.SESSIONS_MAX:
        return Full(
            f"the queue has {limits.SESSIONS_MAX} sessions; close one first",
            field="session",
            limit=limits.SESSIONS_MAX,
        )
    # Sessions and lease calls are counted together: neither's number is ever the other's.
    number = view.pointers.lease + 1
    draft.put_pointers(msgspec.structs.replace(view.pointers, lease=number))
    cell = SessionCell(
        draft.index,
        1,
        view.epoch,
        command.credit,
        refill=command.refill,
        lease_ms=command.lease_ms,
        suspect_ms=command.suspect_ms,
        name=command.name,
    )
    draft.put_session(number, cell)
    return _ref(view, number, cell)


def resume_session(draft: Draft, command: ResumeSession) -> SessionRef | Refused:
    """Whoever spoke for it before is not heard any more."""
    view = draft.view
    cell = _find(view, command.session, command.history)
    if cell is None:
        return _ended()
    cell = msgspec.structs.replace(
        cell, claim=cell.claim + 1, epoch=int(view.epoch), suspected_ms=0
    )
    draft.put_session(command.session, cell)
    return _ref(view, command.session, cell)


def receive(draft: Draft, command: Receive) -> Delivered | Refused | Need:
    """What it holds and was not heard of comes first; then what its credit allows."""
    view = draft.view
    cell = refusal(view) or _heard(view, command.claim)
    if isinstance(cell, Refused):
        return cell
    if command.expected > cell.next:
        return Invalid(
            f"delivery {command.expected} is above the next one, {cell.next}",
            field="expected",
            limit=cell.next,
        )
    number = command.claim.session
    held = _told(view, number, command.expected) if command.expected < cell.next else ()
    if held:
        return Delivered(held, cell.next)
    wanted = min(_room(view, number, cell), command.count)
    checked = _check(draft, cell, wanted)
    if isinstance(checked, Need):
        return checked
    if checked is not None:
        return Delivered((), cell.next)
    made = _deliver(draft, number, cell, wanted)
    return Delivered((made,) if made is not None else (), view.sessions[number].next)


def grant_credit(draft: Draft, command: GrantCredit) -> Granted | Refused | Need:
    view = draft.view
    cell = _heard(view, command.claim)
    if isinstance(cell, Refused):
        return cell
    if cell.refill:
        return Invalid(
            "this session's credit is refilled by settling; open it with refill=False to grant",
            field="credit",
        )
    if cell.cancelled:
        return Invalid("the session was cancelled: nothing more is handed out", field="session")
    credit = cell.credit + command.credit
    if credit > limits.SESSION_CREDIT_MAX:
        return TooLarge(
            f"the session would have a credit of {credit}, up to {limits.SESSION_CREDIT_MAX} is "
            "allowed",
            field="credit",
            limit=limits.SESSION_CREDIT_MAX,
        )
    number = command.claim.session
    granted = msgspec.structs.replace(cell, credit=credit)
    if not command.drain:
        if granted != cell:
            draft.put_session(number, granted)
        return Granted(credit)
    refused = refusal(view)
    if refused is not None:
        return refused
    wanted = _room(view, number, granted)
    checked = _check(draft, cell, wanted)
    if isinstance(checked, Need):
        return checked
    made = _deliver(draft, number, granted, wanted) if checked is None else None
    left = granted if made is None else view.sessions[number]
    drained = msgspec.structs.replace(left, credit=0)
    if drained != cell:
        draft.put_session(number, drained)
    return Granted(0, drained=left.credit)


def suspect_session(draft: Draft, command: SuspectSession) -> bool:
    cell = _heard(draft.view, command.claim)
    if isinstance(cell, Refused):
        return False
    _suspect(draft, command.claim.session, cell)
    return True


def close_session(draft: Draft, command: CloseSession) -> int:
    """A session that is not there any more holds nothing."""
    view = draft.view
    number = command.claim.session
    cell = _find(view, number, command.claim.history)
    if cell is None or (cell.claim, cell.epoch) != (command.claim.number, command.claim.epoch):
        return 0
    if command.keep:
        draft.put_session(number, msgspec.structs.replace(cell, cancelled=True, credit=0))
        return 0
    count = view.held[number].total
    seen = None if command.failed else command.seen
    _give_back(draft, number, limits.SESSION_CREDIT_MAX, seen=seen)
    draft.put_session(number, None)
    return count


# --- Waiting -----------------------------------------------------------------------------------


def has_news(view: View, command: Receive, *, may_have_work: bool) -> bool:
    """Whether one who waits might be told something now; cheap, and never wrong when it says no."""
    cell = view.sessions.get(command.claim.session)
    if cell is None or _deaf(view, cell, command.claim) is not None:
        return True
    if command.expected != cell.next:
        return True
    return may_have_work and _room(view, command.claim.session, cell) > 0


def is_empty(command: Receive, answer: object) -> bool:
    """Whether it was told nothing that it did not know."""
    return (
        isinstance(answer, Delivered) and not answer.deliveries and answer.next == command.expected
    )


# --- Time --------------------------------------------------------------------------------------


def tick_due(view: View, now: int) -> bool:
    return any(
        _is_lost(view, cell) or _is_over(view, number, cell, now)
        for number, cell in view.sessions.items()
    )


def tick(draft: Draft) -> bool:
    """Suspect whom nobody speaks for, and end those that were suspected for long.

    Returns whether more is due than one batch gives back.
    """
    view = draft.view
    left = limits.SESSION_CREDIT_MAX
    for number, cell in sorted(view.sessions.items()):
        if _is_over(view, number, cell, draft.now):
            if left <= 0:
                return True
            left -= _give_back(draft, number, left, seen=None)
            if not view.held[number].total:
                draft.put_session(number, None)
        elif _is_lost(view, cell):
            _suspect(draft, number, cell)
    return any(_is_over(view, number, cell, draft.now) for number, cell in view.sessions.items())


def _is_lost(view: View, cell: SessionCell) -> bool:
    """Whether the decider that knew who speaks for it is no more."""
    return not cell.suspected_ms and cell.epoch != view.epoch


def _is_over(view: View, number: int, cell: SessionCell, now: int) -> bool:
    if cell.cancelled and not view.held[number].total:
        return True
    return bool(cell.suspected_ms) and cell.suspected_ms + cell.suspect_ms <= now


def _suspect(draft: Draft, number: int, cell: SessionCell) -> None:
    draft.put_session(number, msgspec.structs.replace(cell, suspected_ms=max(int(draft.now), 1)))


# --- Small rules -------------------------------------------------------------------------------


def _ref(view: View, number: int, cell: SessionCell) -> SessionRef:
    return SessionRef(
        Claim(number, view.history, cell.claim, cell.epoch),
        cell.credit,
        cell.refill,
        cell.lease_ms,
        cell.suspect_ms,
        cell.next,
        cell.name,
    )


def _ended() -> Gone:
    return Gone(
        "the session has ended: it was closed, or nobody spoke for it for too long; open another",
        field="session",
    )


def _find(view: View, number: int, history: bytes) -> SessionCell | None:
    """The session that was given this number under that history."""
    cell = view.sessions.get(number)
    if cell is None or history == view.history:
        return cell
    shared = shared_index(view.takeovers, history, view.history, view.index)
    return None if shared is None or cell.index > shared else cell


def _heard(view: View, claim: Claim) -> SessionCell | Refused:
    """The session, if the claim speaks for it."""
    cell = _find(view, claim.session, claim.history)
    if cell is None:
        return _ended()
    return _deaf(view, cell, claim) or cell


def _deaf(view: View, cell: SessionCell, claim: Claim) -> Stale | None:
    """Why the claim is not heard."""
    if (claim.number, claim.epoch) != (cell.claim, cell.epoch):
        return Stale("the session was resumed by someone else", field="session")
    if cell.suspected_ms or cell.epoch != view.epoch:
        return Suspected("the session is suspected; resume it to go on", field="session")
    return None


def _room(view: View, number: int, cell: SessionCell) -> int:
    """How many messages the session may be handed now."""
    held = view.held[number].total
    if cell.cancelled:
        return 0
    if cell.refill:
        return cell.credit - held
    return min(cell.credit, limits.SESSION_CREDIT_MAX - held)


def _check(draft: Draft, cell: SessionCell, wanted: int) -> Retry | Need | bool | None:
    """None: so many may be handed out; a need, or why it has to wait."""
    if wanted <= 0:
        return False
    return leasing.check_lease(draft, Lease(wanted, _lease_ms(cell)))


def _lease_ms(cell: SessionCell) -> int:
    return cell.lease_ms or NEVER_MS


def _deliver(draft: Draft, number: int, cell: SessionCell, wanted: int) -> Delivery | None:
    """Hand out what there is, and number it."""
    view = draft.view
    leased = leasing.do_lease(draft, Lease(wanted, _lease_ms(cell)))
    if not leased.seqs:
        return None
    lease = view.leases[leased.lease]
    lease.session, lease.first = number, cell.next
    lease.handed = FrozenBitMap64(leased.seqs)
    if leased.turns:
        lease.order = tuple(seq for turn in leased.turns for seq in turn)
    if not cell.lease_ms:
        lease.deadline_ms, lease.span_ms = NEVER_MS, 0
    draft.put_lease(lease)
    count = len(leased.seqs)
    credit = cell.credit if cell.refill else cell.credit - count
    draft.put_session(number, msgspec.structs.replace(cell, next=cell.next + count, credit=credit))
    return _delivery(lease, 0)


def _told(view: View, number: int, expected: int) -> tuple[Delivery, ...]:
    """What the session holds, from this number on."""
    held = (view.leases[lease] for lease in sorted(view.held[number].leases))
    found = [_delivery(lease, expected) for lease in held]
    return tuple(one for one in found if one.numbers)


def _delivery(lease: LeaseState, expected: int) -> Delivery:
    numbers = {
        seq: number
        for seq, number in numbers_of(lease).items()
        if number >= expected and seq in lease.open
    }
    counts = {seq: lease.counts[seq] for seq in numbers if seq in lease.counts}
    return Delivery(lease.id, numbers, lease.deadline_ms, counts)


def numbers_of(lease: LeaseState) -> dict[int, int]:
    """The delivery number of every message that was in the lease."""
    order = lease.order or lease.handed
    return dict(zip(order, range(lease.first, lease.first + len(order)), strict=True))


def _give_back(draft: Draft, number: int, most: int, *, seen: int | None) -> int:
    """Release what the session holds, of lease after lease until there were `most`.

    Politely where it is known which ones the consumer has seen; as failed where it is not.
    """
    view = draft.view
    count = 0
    for lease_id in sorted(view.held[number].leases):
        if count >= most:
            break
        lease = view.leases[lease_id]
        count += len(lease.open)
        if seen is None:
            _release(draft, lease.id, BitMap64(lease.open), failed=True)
            continue
        numbers = numbers_of(lease)
        unseen = BitMap64([seq for seq in lease.open if numbers[seq] >= seen])
        known = BitMap64(lease.open) - unseen
        _release(draft, lease.id, known)
        _release(draft, lease.id, unseen, unseen=True)
    return count


def _release(
    draft: Draft, lease: LeaseId, seqs: BitMap64, *, failed: bool = False, unseen: bool = False
) -> None:
    if seqs:
        command = Release(lease, seqs, draft.view.history, failed=failed, unseen=unseen)
        failures.do_release(draft, command, Outcome(seqs, {}))
