"""Settles, releases, extends and deletes messages, and purges and rewinds queues.

Rule 1: check first, change after.
Rule 2: a receipt is valid as long as its lease is the message's latest, past the deadline too. But
where an order allows one lease call at a time, a message whose lease has run out can be neither
extended nor replaced while another lease call has its turn (it can still be settled); and a command
may ask to be refused after the deadline (`on_time`).
Rule 3: a command for any delivery acts on a message under its latest lease, also with the receipt
of an earlier one. Transactions do not allow it: their parts are checked one by one, by their
leases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from pyroaring import BitMap64, FrozenBitMap64

from millrace.core.answers import Outcome
from millrace.core.cells import Kind
from millrace.core.commands import Delete, Discard, Extend, Purge, Release, Replace, Rewind, Settle
from millrace.core.delivery import quarantine
from millrace.core.delivery.lease import take_out
from millrace.core.format.message_id import id_of
from millrace.core.model import (
    NEVER_MS,
    Death,
    Seq,
    StartPoint,
)
from millrace.core.needs import Need
from millrace.core.ordering import deferred, groups, partitions
from millrace.core.state import cell_lookup
from millrace.core.state.draft import Draft
from millrace.core.state.histories import shared_index
from millrace.core.state.lease_state import NO_SEQS, LeaseState
from millrace.core.state.view import View
from millrace.errors import Gone, Invalid, Late, NotFound, Refused, Stale, Superseded, TooLarge

Latest = TypeVar("Latest", Settle, Extend)


def queue_deleted() -> NotFound:
    """Return a new error each time: an error that is raised holds its stack frames."""
    return NotFound("the queue was deleted", field="queue")


def judge(draft: Draft, command: Settle | Release | Extend | Discard | Replace) -> Outcome:
    """Return the outcome that each message would have; no cell is changed."""
    view, seqs = draft.view, command.seqs
    lease = view.leases.get(command.lease)
    if lease is None:
        error = Gone(
            "the lease is no longer remembered; whether it was settled cannot be known",
            field="receipt",
        )
        return Outcome(BitMap64(), dict.fromkeys(seqs, error))
    if command.history != view.history and not _is_shared(view, lease, command.history):
        error = Gone("the receipt is of a history that was replaced", field="receipt")
        return Outcome(BitMap64(), dict.fromkeys(seqs, error))
    if isinstance(command, Settle | Release | Extend) and command.on_time:
        late = _late(lease, seqs, draft.now)
        if late:
            over = Late(
                "the deadline of the message was over, and it was asked to be on time",
                field="receipt",
            )
            rest = judge(draft, msgspec.structs.replace(command, seqs=seqs - late))
            return Outcome(rest.done, {**dict.fromkeys(late, over), **rest.refused})
    if isinstance(command, Extend) and command.most_ms and lease.span_ms:
        most_ms = lease.deadline_ms - lease.span_ms + command.most_ms
        if draft.now + command.lease_ms > most_ms and (held_seqs := seqs & lease.open):
            long = TooLarge(
                f"the message would be held for more than {command.most_ms} ms since it was handed "
                "out",
                field="lease_ms",
                limit=command.most_ms,
            )
            rest = judge(draft, msgspec.structs.replace(command, seqs=seqs - held_seqs))
            return Outcome(rest.done, {**dict.fromkeys(held_seqs, long), **rest.refused})
    if isinstance(command, Extend | Replace):
        passed = groups.passed_on(draft, lease, seqs & lease.open)
        if passed:
            stale = Stale(
                "the lease had run out, and another call has what comes before or with the "
                "message; it can still be settled",
                field="receipt",
            )
            rest = judge(draft, msgspec.structs.replace(command, seqs=seqs - passed))
            return Outcome(rest.done, {**dict.fromkeys(passed, stale), **rest.refused})
    if seqs.issubset(lease.open):
        return Outcome(seqs, {})
    done = seqs & lease.open
    if isinstance(command, Settle):
        done |= seqs & lease.settled
    elif isinstance(command, Release):
        # A repeated release is answered as the first one, even if that made a dead letter of the
        # message. A discarded message was never released.
        done |= seqs & lease.freed | seqs & (_lost(lease) - lease.discarded)
    elif isinstance(command, Discard):
        done |= seqs & _lost(lease)
    return Outcome(done, {seq: _refusal(lease, seq) for seq in seqs - done})


def _is_shared(view: View, lease: LeaseState, history: bytes) -> bool:
    """Return whether the lease is the one that a receipt of an earlier history names."""
    shared = shared_index(view.takeovers, history, view.history, view.index)
    return shared is not None and lease.index <= shared


def _late(lease: LeaseState, seqs: BitMap64, now: int) -> BitMap64:
    """Return the messages that the lease still has although their deadline has passed."""
    return BitMap64([seq for seq in seqs & lease.open if lease.deadline_of(seq) <= now])


def _refusal(lease: LeaseState, seq: int) -> Refused:
    if seq in lease.superseded:
        return Superseded("a newer revision has replaced the message", field="receipt")
    if seq in lease.overtaken:
        return Stale("the message was leased again by someone else", field="receipt")
    if seq in lease.freed:
        return Stale("the message was given back under this receipt", field="receipt")
    if seq in lease.settled:
        return Stale("the message was settled under this receipt", field="receipt")
    if seq in lease.doomed or seq in lease.buried:
        return Stale("the message is a dead letter, by this receipt", field="receipt")
    return Gone(
        "the lease is no longer there: the message expired, the queue was purged or rewound, or it "
        "was never given",
        field="receipt",
    )


def _lost(lease: LeaseState) -> FrozenBitMap64:
    """Return the messages that became dead letters under this lease."""
    return lease.buried | BitMap64(lease.doomed) if lease.doomed else lease.buried


def settle(draft: Draft, command: Settle) -> Outcome:
    """Settle messages, by the fast path if possible."""
    whole = settle_whole(draft, command)
    if whole is not None:
        return whole
    if command.any_delivery:
        parts = _by_latest(draft.view, command)
        return _merged(do_settle(draft, part, judge(draft, part)) for part in parts)
    return do_settle(draft, command, judge(draft, command))


def extend(draft: Draft, command: Extend) -> Outcome:
    """Extend the deadline of messages."""
    if command.any_delivery:
        parts = _by_latest(draft.view, command)
        return _merged(do_extend(draft, part, judge(draft, part)) for part in parts)
    return do_extend(draft, command, judge(draft, command))


def _by_latest(view: View, command: Latest) -> list[Latest]:
    """Split a command for any delivery into one for each lease that holds its messages now.

    Messages that no later lease holds stay with the lease that the command names, to be refused
    as usual.
    """
    later: dict[int, BitMap64] = {}
    for seq in _received_before(view, command):
        holder = view.holder.get(seq, 0)
        if holder > command.lease:
            later.setdefault(holder, BitMap64()).add(seq)
    if not later:
        return [command]
    rest = command.seqs - BitMap64.union(*later.values())
    parts = [msgspec.structs.replace(command, seqs=rest)] if rest else []
    for holder, seqs in later.items():
        history = view.history
        parts.append(msgspec.structs.replace(command, lease=holder, seqs=seqs, history=history))
    return parts


def _received_before(view: View, command: Settle | Extend) -> BitMap64:
    """Return the seqs that the lease received and may hold no longer.

    A lease that is forgotten counts as having received the messages that its receipts name, unless
    they are of a history that was replaced, where the same numbers may mean other messages.
    """
    lease = view.leases.get(command.lease)
    is_current = command.history == view.history
    if lease is None:
        return command.seqs if is_current else BitMap64()
    if not is_current and not _is_shared(view, lease, command.history):
        return BitMap64()
    return command.seqs & lease.overtaken


def _merged(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome of a command that was split by leases."""
    merged, *rest = outcomes
    for outcome in rest:
        deadline_ms = max(merged.deadline_ms, outcome.deadline_ms)
        merged = Outcome(merged.done | outcome.done, merged.refused | outcome.refused, deadline_ms)
    return merged


def do_settle(draft: Draft, command: Settle, outcome: Outcome) -> Outcome:
    view = draft.view
    lease = view.leases.get(command.lease)
    if lease is None:
        return outcome
    is_whole = outcome.done == lease.open
    done = outcome.done if is_whole else outcome.done & lease.open
    if not done:
        return outcome
    if is_whole and lease.settled is NO_SEQS:
        # The fast path of a single message.
        lease.open, lease.settled = NO_SEQS, lease.open
    else:
        lease.open -= done
        lease.settled |= done
    _forget(view, lease, done)
    groups.ended(draft, lease, done)
    partitions.ended(draft, done)
    draft.put_lease(lease)
    if view.spec.retention == "work":
        end_settled(draft, done)
    return outcome


def settle_whole(draft: Draft, command: Settle) -> Outcome | None:
    """Settle all messages of a lease call, as `judge` and `do_settle` would.

    This is the fast path of single messages. None: the command needs the long way.
    """
    view, seqs = draft.view, command.seqs
    lease = view.leases.get(command.lease)
    if (
        lease is None
        or command.on_time
        or command.history != view.history
        or lease.settled is not NO_SEQS
        or lease.session
        or lease.counts
        or lease.deadlines
        or lease.groups
        or view.partition is not None
        or view.retaining
        or view.returned
        or view.spec.retention != "work"
        or not seqs
        or seqs != lease.open
    ):
        return None
    lease.open, lease.settled = NO_SEQS, lease.open
    for seq in seqs:
        del view.holder[seq]
    if lease.is_over():
        draft.end_lease(lease)
    else:
        draft.put_lease(lease)
    draft.die(Death.SETTLED, seqs)
    return Outcome(seqs, {})


def end_settled(draft: Draft, done: BitMap64) -> None:
    """End settled messages: they die, or are kept for retaining cursors."""
    floor = draft.view.retain_floor()
    if done.max() <= floor:
        draft.die(Death.SETTLED, done)
        return
    passed = done.copy()
    passed.remove_range(floor + 1, done.max() + 1)
    if passed:
        draft.die(Death.SETTLED, passed)
    draft.keep(done - passed)


def do_extend(draft: Draft, command: Extend, outcome: Outcome) -> Outcome:
    view = draft.view
    lease = view.leases.get(command.lease)
    if lease is None:
        return outcome
    done = outcome.done
    deadline = draft.now + command.lease_ms
    if lease.deadline_ms >= NEVER_MS:
        # Its session holds it, for longer than any extension.
        return Outcome(done, outcome.refused, NEVER_MS)
    if done:
        if done == lease.open:
            if lease.span_ms:
                # 0 would mean unknown.
                lease.span_ms = max(lease.span_ms + deadline - lease.deadline_ms, 1)
            lease.deadline_ms = deadline
            # A message that was released with a delay keeps its own time.
            _forget_deadlines(lease, done)
        else:
            lease.deadlines.update(dict.fromkeys(done, deadline))
        view.returned -= done
        groups.held(draft, lease, done)
        draft.push_deadline(deadline, lease.id)
        draft.put_lease(lease)
    return Outcome(done, outcome.refused, deadline)


def _forget_deadlines(lease: LeaseState, seqs: BitMap64) -> None:
    for seq in seqs if lease.deadlines else ():
        lease.deadlines.pop(seq, None)


def _forget(view: View, lease: LeaseState, seqs: BitMap64) -> None:
    for seq in seqs:
        del view.holder[seq]
    if lease.counts or lease.deadlines:
        for seq in seqs:
            lease.forget_counts(seq)
            lease.deadlines.pop(seq, None)
    if view.returned:
        view.returned -= seqs


# --- Purge -------------------------------------------------------------------------------------


def do_purge(draft: Draft, command: Purge) -> Seq:
    """End all rows, in flight or not; late receipts are told that they are gone."""
    view = draft.view
    _end_leases(draft)
    upto = draft.purge()
    deferred.purge(draft, upto)
    quarantine.forget(draft)
    pointers = view.pointers
    forgotten = upto if command.forgets_ids else pointers.forgotten
    draft.put_pointers(
        msgspec.structs.replace(pointers, next=upto + 1, floor=upto, forgotten=forgotten)
    )
    return upto


def check_rewind(draft: Draft, command: Rewind) -> Refused | None:
    view = draft.view
    if view.spec.retention != "log":
        return Invalid(
            "only a queue with retention 'log' keeps what was settled; there is nothing to go "
            "back to",
            field="retention",
        )
    start = _rewind_start(view, command)
    if not 1 <= start <= view.last_seq + 1:
        return Invalid(
            f"start {start} is not within 1 and {view.last_seq + 1}",
            field="start",
            limit=view.last_seq + 1,
        )
    return None


def do_rewind(draft: Draft, command: Rewind) -> Seq:
    """Deliver all rows from a place on again; leases of them end."""
    view = draft.view
    start = _rewind_start(view, command)
    _end_leases(draft)
    if not view.spec.keyed:
        # It is not checked whether purged or expired rows are live.
        start = max(start, view.ended_to + 1)
    draft.put_pointers(msgspec.structs.replace(view.pointers, next=start))
    view.skipped = 0
    view.scanned = start - 1
    view.hidden.clear()
    return Seq(start)


def _rewind_start(view: View, command: Rewind) -> int:
    if isinstance(command.start, StartPoint):
        return 1 if command.start is StartPoint.BEGINNING else view.last_seq + 1
    return command.start


def _end_leases(draft: Draft) -> None:
    """End all leases, and forget all released messages."""
    view = draft.view
    for holder in sorted(set(view.holder.values())):
        lease = view.leases[holder]
        lease.open = lease.freed = NO_SEQS
        lease.counts.clear()
        lease.firsts.clear()
        lease.deadlines.clear()
        lease.doomed.clear()
        lease.groups.clear()
        draft.put_lease(lease)
    view.holder.clear()
    view.returned.clear()
    view.postponed.clear()
    view.doomed.clear()
    view.groups.flights.clear()
    view.groups.again.clear()


# --- Deletion by id ------------------------------------------------------------------------------
# Rule 1: a leased message counts as settled for its worker, whose later settle succeeds. A dead
# letter is on its way to the dead-letter queue, and counts as missing.


def delete_by_id(draft: Draft, command: Delete) -> int | Refused | Need:
    """End existing messages by their ids; returns how many there were."""
    view = draft.view
    cell = view.partition
    if cell is None:
        return Invalid(
            "messages have ids where the queue's delivery is 'partitions'; lease and settle them",
            field="delivery",
        )
    era = view.pointers.era
    names = {
        seq: (Kind.ID, partitions.id_key(era, id_of(cell.key, seq)))
        for seq in command.seqs
        if seq <= view.last_seq
    }
    need = cell_lookup.need(draft, names.values())
    if need is not None:
        return need
    live = BitMap64(
        [seq for seq, name in names.items() if cell_lookup.look(draft, name) is not None]
    )
    live -= view.doomed
    if not live:
        return 0
    held = BitMap64([seq for seq in live if seq in view.holder])
    touched: dict[int, LeaseState] = {}
    for seq in held:
        lease = view.leases[view.holder.pop(seq)]
        lease.settled |= take_out(lease, (seq,))
        touched[lease.id] = lease
    view.returned -= held
    view.postponed -= held
    for lease in touched.values():
        draft.put_lease(lease)
    partitions.ended(draft, live, fresh=len(live) - len(held))
    end_settled(draft, live)
    return len(live)
