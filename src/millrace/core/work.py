"""The rules of what was handed out: settle, release, extend, purge.

Rule 1: check first, change after.
Rule 2: a receipt holds as long as its lease is the message's latest, past the deadline too. But
where an order allows one lease call at a time, nobody takes back what had run out while another one
has its turn; and a command may ask to be on time.
Rule 3: a command for any delivery acts on a message under its latest lease, also with the receipt
of an earlier one. A transaction has none: its parts are judged side by side, by their leases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from pyroaring import BitMap64, FrozenBitMap64

from millrace.core import aside, groups, partitions, quarantine
from millrace.core.answers import Outcome
from millrace.core.commands import Discard, Extend, Purge, Release, Rewind, Settle
from millrace.core.draft import Draft
from millrace.core.lease_state import NO_SEQS, LeaseState
from millrace.core.leased_commands import Replace
from millrace.core.model import NEVER_MS, Death, Seq, Start
from millrace.core.takeover import shared_index
from millrace.core.view import View
from millrace.errors import Gone, Invalid, Late, NotFound, Refused, Stale, Superseded, TooLarge

Latest = TypeVar("Latest", Settle, Extend)


def deleted() -> NotFound:
    """A new one each time: an error that is raised holds the frames that it came through."""
    return NotFound("the queue was deleted", field="queue")


def judge(draft: Draft, command: Settle | Release | Extend | Discard | Replace) -> Outcome:
    """What each of the named messages would be answered; no cell is changed."""
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
        if draft.now + command.lease_ms > most_ms and (mine := seqs & lease.open):
            long = TooLarge(
                f"the message would be held for more than {command.most_ms} ms since it was handed "
                "out",
                field="lease_ms",
                limit=command.most_ms,
            )
            rest = judge(draft, msgspec.structs.replace(command, seqs=seqs - mine))
            return Outcome(rest.done, {**dict.fromkeys(mine, long), **rest.refused})
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
        # A release that is repeated is answered as the first time, also where it made a dead letter
        # of the message. A message that was discarded was never given back.
        done |= seqs & lease.freed | seqs & (_lost(lease) - lease.discarded)
    elif isinstance(command, Discard):
        done |= seqs & _lost(lease)
    return Outcome(done, {seq: _refusal(lease, seq) for seq in seqs - done})


def _is_shared(view: View, lease: LeaseState, history: bytes) -> bool:
    """Return whether the lease is the one that a receipt of an earlier history names."""
    shared = shared_index(view.takeovers, history, view.history, view.index)
    return shared is not None and lease.index <= shared


def _late(lease: LeaseState, seqs: BitMap64, now: int) -> BitMap64:
    """Those of the messages that the lease still has, although their time is over."""
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
    """The messages that became dead letters under this lease."""
    return lease.buried | BitMap64(lease.doomed) if lease.doomed else lease.buried


def settle(draft: Draft, command: Settle) -> Outcome:
    """Settle what may be settled, in the shortest way."""
    whole = settle_whole(draft, command)
    if whole is not None:
        return whole
    if command.any_delivery:
        parts = _by_latest(draft.view, command)
        return _merged(do_settle(draft, one, judge(draft, one)) for one in parts)
    return do_settle(draft, command, judge(draft, command))


def extend(draft: Draft, command: Extend) -> Outcome:
    """Extend what may be extended."""
    if command.any_delivery:
        parts = _by_latest(draft.view, command)
        return _merged(do_extend(draft, one, judge(draft, one)) for one in parts)
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

    A lease that is no longer remembered is taken to have received what its receipts name, unless
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
    merged, *others = outcomes
    for one in others:
        deadline_ms = max(merged.deadline_ms, one.deadline_ms)
        merged = Outcome(merged.done | one.done, merged.refused | one.refused, deadline_ms)
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
        # The way of a single message, which must cost little.
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
    """As `judge` and `do_settle`, where all that a lease call was given is done.

    The way of a single message, which must cost little. None: there is more to be looked at.
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
    """These messages are done: they die, or are kept for retaining cursors."""
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
        # Its session holds it, for longer than anyone could ask for.
        return Outcome(done, outcome.refused, NEVER_MS)
    if done:
        if done == lease.open:
            if lease.span_ms:
                # 0 would say that it is not known.
                lease.span_ms = max(lease.span_ms + deadline - lease.deadline_ms, 1)
            lease.deadline_ms = deadline
            # What was given back with a delay keeps its own time.
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
    """End all rows; whoever holds one of them will find it gone."""
    view = draft.view
    _end_leases(draft)
    upto = draft.purge()
    aside.purge(draft, upto)
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
    """Hand out again what is there from a place on; who holds anything will find it gone."""
    view = draft.view
    start = _rewind_start(view, command)
    _end_leases(draft)
    if not view.spec.keyed:
        # Nobody looks whether rows that were purged or have expired are live.
        start = max(start, view.ended_to + 1)
    draft.put_pointers(msgspec.structs.replace(view.pointers, next=start))
    view.skipped = 0
    view.scanned = start - 1
    view.hidden.clear()
    return Seq(start)


def _rewind_start(view: View, command: Rewind) -> int:
    if isinstance(command.start, Start):
        return 1 if command.start is Start.BEGINNING else view.last_seq + 1
    return command.start


def _end_leases(draft: Draft) -> None:
    """Nobody holds anything any more, and nothing waits to be handed out again."""
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
