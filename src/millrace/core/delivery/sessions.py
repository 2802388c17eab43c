"""Consumer sessions: credit, delivery numbers, and failure detection.

Rule 1: deliveries to a session are leases like any other, which end with the session: receipts,
failures, dead letters and newer revisions know nothing of sessions.
Rule 2: deliveries of a session are numbered 0, 1, 2… without gaps. It holds all messages that were
delivered to it and not settled; missed deliveries are repeated under the same numbers.
Rule 3: only the newest claim may use a session, under the decider that created it (fencing). Under
a later decider, or after the connection is lost, the session is suspected: it gets no deliveries,
and after a timeout its messages are released as failed.
"""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64, FrozenBitMap64

from millrace import limits
from millrace.core.answers import Outcome
from millrace.core.cells import SessionCell
from millrace.core.commands import LeaseMessages, Release
from millrace.core.delivery import lease as leasing
from millrace.core.delivery import redelivery
from millrace.core.delivery.quarantine import refusal
from millrace.core.model import NEVER_MS, LeaseId
from millrace.core.needs import Need
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    GrantCredit,
    Granted,
    OpenSession,
    Receive,
    ReceiveResult,
    ResumeSession,
    SessionDelivery,
    SessionRef,
    SuspectSession,
)
from millrace.core.state.draft import Draft
from millrace.core.state.histories import shared_index
from millrace.core.state.lease_state import LeaseState
from millrace.core.state.view import View
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
    # Sessions and lease calls share one counter: their numbers never coincide.
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
    """Resume a session; the previous claim is fenced off."""
    view = draft.view
    cell = _find(view, command.session, command.history)
    if cell is None:
        return _ended()
    cell = msgspec.structs.replace(
        cell, claim=cell.claim + 1, epoch=int(view.epoch), suspected_ms=0
    )
    draft.put_session(command.session, cell)
    return _ref(view, command.session, cell)


def receive(draft: Draft, command: Receive) -> ReceiveResult | Refused | Need:
    """Repeat unconfirmed deliveries, then deliver what the credit allows."""
    view = draft.view
    cell = refusal(view) or _find_by_claim(view, command.claim)
    if isinstance(cell, Refused):
        return cell
    if command.expected > cell.next:
        return Invalid(
            f"delivery {command.expected} is above the next one, {cell.next}",
            field="expected",
            limit=cell.next,
        )
    number = command.claim.session
    held = _deliveries_from(view, number, command.expected) if command.expected < cell.next else ()
    if held:
        return ReceiveResult(held, cell.next)
    wanted = min(_room(view, number, cell), command.count)
    checked = _check(draft, cell, wanted)
    if isinstance(checked, Need):
        return checked
    if checked is not None:
        return ReceiveResult((), cell.next)
    made = _deliver(draft, number, cell, wanted)
    return ReceiveResult((made,) if made is not None else (), view.sessions[number].next)


def grant_credit(draft: Draft, command: GrantCredit) -> Granted | Refused | Need:
    view = draft.view
    cell = _find_by_claim(view, command.claim)
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
    cell = _find_by_claim(draft.view, command.claim)
    if isinstance(cell, Refused):
        return False
    _suspect(draft, command.claim.session, cell)
    return True


def close_session(draft: Draft, command: CloseSession) -> int:
    """Close a session; a missing one holds nothing."""
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
    _release_held(draft, number, limits.SESSION_CREDIT_MAX, seen=seen)
    draft.put_session(number, None)
    return count


# --- Waiting -----------------------------------------------------------------------------------


def has_news(view: View, command: Receive, *, may_have_work: bool) -> bool:
    """Return True if a waiting consumer may get news now; cheap, and False is always right."""
    cell = view.sessions.get(command.claim.session)
    if cell is None or _claim_error(view, cell, command.claim) is not None:
        return True
    if command.expected != cell.next:
        return True
    return may_have_work and _room(view, command.claim.session, cell) > 0


def is_empty(command: Receive, answer: object) -> bool:
    """Return True if the answer has nothing new for the consumer."""
    return (
        isinstance(answer, ReceiveResult)
        and not answer.deliveries
        and answer.next == command.expected
    )


# --- Timeouts ----------------------------------------------------------------------------------


def tick_due(view: View, now: int) -> bool:
    return any(
        _is_lost(view, cell) or _is_over(view, number, cell, now)
        for number, cell in view.sessions.items()
    )


def tick(draft: Draft) -> bool:
    """Suspect sessions without a connection, and end those whose timeout has passed.

    Returns True if more messages are due for release than fit into one batch.
    """
    view = draft.view
    left = limits.SESSION_CREDIT_MAX
    for number, cell in sorted(view.sessions.items()):
        if _is_over(view, number, cell, draft.now):
            if left <= 0:
                return True
            left -= _release_held(draft, number, left, seen=None)
            if not view.held[number].total:
                draft.put_session(number, None)
        elif _is_lost(view, cell):
            _suspect(draft, number, cell)
    return any(_is_over(view, number, cell, draft.now) for number, cell in view.sessions.items())


def _is_lost(view: View, cell: SessionCell) -> bool:
    """Return True if the decider that knew the session's connection is gone."""
    return not cell.suspected_ms and cell.epoch != view.epoch


def _is_over(view: View, number: int, cell: SessionCell, now: int) -> bool:
    if cell.cancelled and not view.held[number].total:
        return True
    return bool(cell.suspected_ms) and cell.suspected_ms + cell.suspect_ms <= now


def _suspect(draft: Draft, number: int, cell: SessionCell) -> None:
    draft.put_session(number, msgspec.structs.replace(cell, suspected_ms=max(int(draft.now), 1)))


# --- Parts of the rules --------------------------------------------------------------------------


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
    """Return the session that got this number under that history."""
    cell = view.sessions.get(number)
    if cell is None or history == view.history:
        return cell
    shared = shared_index(view.takeovers, history, view.history, view.index)
    return None if shared is None or cell.index > shared else cell


def _find_by_claim(view: View, claim: Claim) -> SessionCell | Refused:
    """Return the session, if the claim is valid."""
    cell = _find(view, claim.session, claim.history)
    if cell is None:
        return _ended()
    return _claim_error(view, cell, claim) or cell


def _claim_error(view: View, cell: SessionCell, claim: Claim) -> Stale | None:
    """Return the error of an invalid claim, or None."""
    if (claim.number, claim.epoch) != (cell.claim, cell.epoch):
        return Stale("the session was resumed by someone else", field="session")
    if cell.suspected_ms or cell.epoch != view.epoch:
        return Suspected("the session is suspected; resume it to go on", field="session")
    return None


def _room(view: View, number: int, cell: SessionCell) -> int:
    """Return how many messages the session may get now."""
    held = view.held[number].total
    if cell.cancelled:
        return 0
    if cell.refill:
        return cell.credit - held
    return min(cell.credit, limits.SESSION_CREDIT_MAX - held)


def _check(draft: Draft, cell: SessionCell, wanted: int) -> Retry | Need | bool | None:
    """Check whether `wanted` messages may be delivered: None if so; else a Need, or why it has
    to wait."""
    if wanted <= 0:
        return False
    return leasing.check_lease(draft, LeaseMessages(wanted, _lease_ms(cell)))


def _lease_ms(cell: SessionCell) -> int:
    return cell.lease_ms or NEVER_MS


def _deliver(draft: Draft, number: int, cell: SessionCell, wanted: int) -> SessionDelivery | None:
    """Deliver available messages, and number them."""
    view = draft.view
    leased = leasing.do_lease(draft, LeaseMessages(wanted, _lease_ms(cell)))
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


def _deliveries_from(view: View, number: int, expected: int) -> tuple[SessionDelivery, ...]:
    """Return the messages that the session holds, from this delivery number on."""
    held = (view.leases[lease] for lease in sorted(view.held[number].leases))
    deliveries = [_delivery(lease, expected) for lease in held]
    return tuple(delivery for delivery in deliveries if delivery.numbers)


def _delivery(lease: LeaseState, expected: int) -> SessionDelivery:
    numbers = {
        seq: number
        for seq, number in numbers_of(lease).items()
        if number >= expected and seq in lease.open
    }
    counts = {seq: lease.counts[seq] for seq in numbers if seq in lease.counts}
    return SessionDelivery(lease.id, numbers, lease.deadline_ms, counts)


def numbers_of(lease: LeaseState) -> dict[int, int]:
    """Return the delivery number of every message that was in the lease."""
    order = lease.order or lease.handed
    return dict(zip(order, range(lease.first, lease.first + len(order)), strict=True))


def _release_held(draft: Draft, number: int, limit: int, *, seen: int | None) -> int:
    """Release messages of the session, lease after lease, until there were `limit`.

    If it is known which ones the consumer has seen (`seen`), they do not count as failed; else they
    do.
    """
    view = draft.view
    count = 0
    for lease_id in sorted(view.held[number].leases):
        if count >= limit:
            break
        lease = view.leases[lease_id]
        count += len(lease.open)
        if seen is None:
            _release(draft, lease.id, BitMap64(lease.open), failed=True)
            continue
        numbers = numbers_of(lease)
        unseen = BitMap64([seq for seq in lease.open if numbers[seq] >= seen])
        seen_seqs = BitMap64(lease.open) - unseen
        _release(draft, lease.id, seen_seqs)
        _release(draft, lease.id, unseen, unseen=True)
    return count


def _release(
    draft: Draft, lease: LeaseId, seqs: BitMap64, *, failed: bool = False, unseen: bool = False
) -> None:
    if seqs:
        command = Release(lease, seqs, draft.view.history, failed=failed, unseen=unseen)
        redelivery.do_release(draft, command, Outcome(seqs, {}))
