"""The rules of work: publish, lease, settle, release, extend, purge.

Rule 1: check first, change after. A check that needs the store returns `Need`, unchanged.
Rule 2: a producer's number is looked at before anything else, so that a late retry of an old
revision never becomes the newest.
Rule 3: a message that was delivered and not ended is in exactly one lease: its latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec
from pyroaring import BitMap64

from millrace import limits
from millrace.core.block import Block
from millrace.core.commands import (
    Extend,
    Lease,
    Leased,
    Need,
    Numbered,
    Outcome,
    Publish,
    Published,
    PublishStaged,
    Release,
    Settle,
)
from millrace.core.draft import Draft
from millrace.core.model import Death, LeaseId, ProducerCell, Seq
from millrace.core.takeover import shared_seq
from millrace.core.view import LeaseState, View
from millrace.errors import (
    Full,
    Gone,
    Invalid,
    NotFound,
    OutOfOrder,
    Refused,
    Retry,
    Stale,
    Superseded,
)

# --- Publish -----------------------------------------------------------------------------------


def check_publish(draft: Draft, command: Publish) -> Published | Refused | Need | None:
    """None: it may be done. `Published`: it was done before."""
    repeat = _check_number(draft.view, command.numbered)
    if repeat is not None:
        return repeat
    rows = command.rows
    if not draft.view.spec.keyed:
        deletes = (
            bool(len(rows.bodies.validity))
            if isinstance(rows, Block)
            else any(message.body is None for message in rows)
        )
        return _NO_DELETES if deletes else None
    return _need_keys(draft, key_list(rows))


DELETED = NotFound("the queue was deleted", field="queue")

_NO_DELETES = Invalid("a message without a body deletes its key: the queue is not keyed")


def do_publish(draft: Draft, command: Publish) -> Published:
    rows = command.rows
    first = draft.put_rows(rows)
    count = rows.count if isinstance(rows, Block) else len(rows)
    if draft.view.spec.keyed:
        deletes = (
            rows.deletes()
            if isinstance(rows, Block)
            else [at for at, message in enumerate(rows) if message.body is None]
        )
        _supersede(draft, first, key_list(rows), deletes)
    _remember_number(draft, command.numbered, first, count)
    return Published(first, count)


def key_list(rows: Block | Sequence[object]) -> list[bytes | None]:
    """Every row's key."""
    if isinstance(rows, Block):
        return rows.key_list()
    return [message.key for message in rows]  # type: ignore[attr-defined]


def _need_keys(draft: Draft, keys: list[bytes | None]) -> Need | None:
    known = draft.view.facts.keys
    missing = [key for key in keys if key is not None and key not in known]
    return Need(draft.view.shard, keys=tuple(missing)) if missing else None


def _supersede(draft: Draft, first: int, keys: list[bytes | None], deletes: list[int]) -> None:
    """End the older revisions of these keys, within the batch too."""
    view = draft.view
    older: list[int] = []
    newest = draft.keys
    layers = [layer.keys for layer in reversed(view.layers)]
    stored = view.facts.keys
    for seq, key in enumerate(keys, first):
        if key is None:
            continue
        old = newest.get(key, 0)
        if not old:
            for layer in layers:
                old = layer.get(key, 0)
                if old:
                    break
            else:
                old = stored[key]
        if old:
            older.append(old)
        newest[key] = seq
    died = draft.still_live(BitMap64(older))
    if died:
        if view.holder:
            _supersede_leased(draft, died)
        draft.die(Death.SUPERSEDED, died)
    if deletes:
        # A delete that the same publish has superseded again is dead already.
        draft.put_deletes(BitMap64([first + at for at in deletes]) - died)
        draft.deletes |= BitMap64([first + at for at in deletes])


def _supersede_leased(draft: Draft, died: BitMap64) -> None:
    view = draft.view
    for seq in died:
        holder = view.holder.pop(seq, None)
        if holder is None:
            continue
        lease = view.leases[holder]
        lease.open.discard(seq)
        lease.freed.discard(seq)
        lease.superseded.add(seq)
        view.returned.discard(seq)
        _end_if_done(draft, lease)
        draft.put_lease(lease)


# --- Producers ---------------------------------------------------------------------------------


def _check_number(view: View, numbered: Numbered | None) -> Published | Refused | None:
    if numbered is None:
        return None
    cell = view.producers.get(numbered.producer)
    if cell is None:
        if len(view.producers) >= limits.PRODUCERS_MAX:
            return Refused(
                f"the queue remembers {limits.PRODUCERS_MAX} producers and takes no new one",
                field="producer",
                limit=limits.PRODUCERS_MAX,
            )
        if numbered.mode == "dense" and numbered.number != 1:
            return OutOfOrder("this producer is new here and begins at 1", expected=1)
        return None
    if cell.mode != numbered.mode:
        return Invalid(
            f"producer {numbered.producer!r} is {cell.mode} here, not {numbered.mode}",
            field="mode",
        )
    if numbered.number <= cell.last:
        for number, first, count in cell.recent:
            if number == numbered.number:
                return Published(Seq(first), count, repeated=True)
        return Published(None, 0, repeated=True)
    if numbered.mode == "dense" and numbered.number != cell.last + 1:
        return OutOfOrder(
            f"number {numbered.number} came too early: {cell.last + 1} is expected",
            expected=cell.last + 1,
        )
    if numbered.mode == "range" and numbered.after != cell.last:
        return OutOfOrder(
            f"the range ({numbered.after}, {numbered.number}] overlaps what was published "
            f"up to {cell.last}",
            expected=cell.last,
        )
    return None


def _remember_number(draft: Draft, numbered: Numbered | None, first: int, count: int) -> None:
    if numbered is None:
        return
    cell = draft.view.producers.get(numbered.producer)
    recent = cell.recent if cell else ()
    keep = limits.PRODUCER_ANSWERS_MAX - 1
    draft.put_producer(
        numbered.producer,
        ProducerCell(
            numbered.mode,
            numbered.number,
            draft.now,
            (*recent[-keep:], (numbered.number, first, count)),
        ),
    )


# --- Staged rows -------------------------------------------------------------------------------


def check_publish_staged(draft: Draft, command: PublishStaged) -> Published | Refused | Need | None:
    view = draft.view
    repeat = _check_number(view, command.numbered)
    if repeat is not None:
        return repeat
    if len(set(command.stages)) != len(command.stages):
        return Invalid("a stage is named twice", field="stages")
    for name in command.stages:
        if name not in view.stages:
            return NotFound(f"there is no stage {name!r}; it may have gone by age", field="stages")
    if not view.spec.keyed:
        return None
    missing = tuple(name for name in command.stages if name not in view.facts.stages)
    if missing:
        return Need(view.shard, stages=missing)
    keys = [key for name in command.stages for key in view.facts.stages[name].keys]
    return _need_keys(draft, keys)


def do_publish_staged(draft: Draft, command: PublishStaged) -> Published:
    view = draft.view
    begin = Seq(view.last_seq + 1)
    total = 0
    for name in command.stages:
        rows = view.stages[name].rows
        first = draft.publish_stage(name, rows)
        draft.put_stage(name, None)
        total += rows
        if view.spec.keyed:
            facts = view.facts.stages.pop(name)
            _supersede(draft, first, facts.keys, facts.deletes)
    _remember_number(draft, command.numbered, begin, total)
    return Published(begin, total)


# --- Lease -------------------------------------------------------------------------------------


def check_lease(draft: Draft, command: Lease) -> Retry | Need | None:
    view = draft.view
    if len(view.holder) + command.count > limits.IN_FLIGHT_MAX:
        return Full(
            f"{len(view.holder)} messages are in flight; settle some first",
            field="count",
            limit=limits.IN_FLIGHT_MAX,
        )
    _return_due(draft)
    wanted = command.count - len(view.returned)
    return _need_hidden(draft, wanted) if wanted > 0 else None


def do_lease(draft: Draft, command: Lease) -> Leased:
    """Messages that were given back come first: they are older than all that wait."""
    view = draft.view
    again = BitMap64(islice(view.returned, command.count)) if view.returned else BitMap64()
    fresh = _take_fresh(draft, command.count - len(again))
    seqs = again | fresh if again else fresh
    deadline = draft.now + command.lease_ms
    if not seqs:
        return Leased(LeaseId(0), seqs, deadline, {})
    lease = LeaseState(LeaseId(view.pointers.lease + 1), seqs, deadline)
    if again:
        _overtake(draft, lease, again)
    view.holder.update(dict.fromkeys(seqs, lease.id))
    draft.put_lease(lease)
    draft.push_deadline(deadline, lease.id)
    upto = max(view.pointers.next, fresh[-1] + 1 if fresh else 0)
    draft.put_pointers(msgspec.structs.replace(view.pointers, next=upto, lease=lease.id))
    return Leased(lease.id, seqs.copy(), deadline, dict(lease.counts))


def is_empty(answer: object) -> bool:
    """Whether a lease call handed out nothing."""
    return isinstance(answer, Leased) and not answer.seqs


def _return_due(draft: Draft) -> None:
    """Leases whose time is over: their messages are ready again, their receipts still hold."""
    view = draft.view
    while view.deadlines and view.deadlines[0][0] <= draft.now:
        _, lease_id = view.deadlines[0]
        draft.pop_deadline()
        lease = view.leases.get(lease_id)
        if lease is not None and not lease.ended_ms:
            view.returned |= lease.due(draft.now)


def _need_hidden(draft: Draft, wanted: int) -> Need | None:
    """Whether the window of known rows holds `wanted` ready ones, or reaches the end."""
    view = draft.view
    if not view.spec.keyed:
        return None
    while view.scanned < view.last_seq:
        ready = view.scanned - view.pointers.next + 1
        if ready > 0:
            ready -= view.hidden.range_cardinality(view.pointers.next, view.scanned + 1)
        if ready >= wanted:
            return None
        low = max(view.scanned + 1, view.pointers.next)
        high = min(low + limits.CHUNK_ROWS - 1, view.last_seq)
        if high > view.stored_seq:
            if low <= view.stored_seq:
                high = view.stored_seq
            else:
                _learn_own(draft, low, high)
                continue
        return Need(view.shard, hidden=(low, high))
    return None


def _learn_own(draft: Draft, low: int, high: int) -> None:
    """Rows that are not folded yet: the view alone knows which of them no worker gets."""
    view = draft.view
    own = draft.hidden()
    for layer in view.layers:
        own |= layer.died | layer.deletes
    own &= BitMap64(range(low, high + 1))
    view.hidden |= own
    view.scanned = high


def learn_hidden(draft: Draft, low: int, high: int, hidden: BitMap64) -> None:
    """The store's answer to a need; what was decided since is added."""
    view = draft.view
    since = draft.hidden()
    for layer in view.layers:
        since |= layer.died
    view.hidden |= hidden | (since & BitMap64(range(low, high + 1)))
    view.scanned = max(view.scanned, high)


def _take_fresh(draft: Draft, count: int) -> BitMap64:
    view = draft.view
    low = view.pointers.next
    if count <= 0 or low > view.last_seq:
        return BitMap64()
    if not view.spec.keyed:
        return BitMap64(range(low, min(low + count, view.last_seq + 1)))
    taken: list[int] = []
    while low <= view.scanned and len(taken) < count:
        high = min(low + (count - len(taken)) - 1, view.scanned)
        ready = BitMap64(range(low, high + 1)) - view.hidden
        taken.extend(ready)
        low = high + 1
    if not taken and view.scanned >= view.pointers.next:
        # Nothing but hidden rows: pass over them, so that they are not looked at again.
        draft.put_pointers(msgspec.structs.replace(view.pointers, next=view.scanned + 1))
    view.hidden.remove_range(0, (taken[-1] if taken else view.scanned) + 1)
    return BitMap64(taken)


def _overtake(draft: Draft, lease: LeaseState, again: BitMap64) -> None:
    """The messages leave the leases of their earlier deliveries."""
    view = draft.view
    view.returned -= again
    touched: dict[int, LeaseState] = {}
    for seq in again:
        old = view.leases[view.holder[seq]]
        deliveries, failures = old.counts.pop(seq, (1, 0))
        if seq in old.open:
            # Nobody gave it back: its worker is taken for crashed.
            failures += 1
            old.open.discard(seq)
        else:
            old.freed.discard(seq)
        old.deadlines.pop(seq, None)
        old.overtaken.add(seq)
        lease.counts[seq] = (deliveries + 1, failures)
        touched[old.id] = old
    for old in touched.values():
        _end_if_done(draft, old)
        draft.put_lease(old)


# --- Settle, release, extend -------------------------------------------------------------------


def judge(draft: Draft, command: Settle | Release | Extend) -> Outcome:
    """What each of the named messages would be answered; nothing is changed."""
    view, seqs = draft.view, command.seqs
    lease = view.leases.get(command.lease)
    if lease is None:
        error = Gone("the lease is no longer remembered; whether it was settled cannot be known")
        return Outcome(BitMap64(), dict.fromkeys(seqs, error))
    if command.history != view.history:
        shared = shared_seq(view.takeovers, command.history, view.history, view.last_seq) or 0
        if seqs.max() > shared:
            error = Gone("the receipt is of a history that was replaced")
            return Outcome(BitMap64(), dict.fromkeys(seqs, error))
    open_ = lease.open
    if seqs.issubset(open_):
        return Outcome(seqs, {})
    done = seqs & open_
    if isinstance(command, Settle):
        done |= seqs & lease.settled
    elif isinstance(command, Release):
        done |= seqs & lease.freed
    return Outcome(done, {seq: _refusal(lease, seq) for seq in seqs - done})


def _refusal(lease: LeaseState, seq: int) -> Refused:
    if seq in lease.superseded:
        return Superseded("a newer revision of the key has replaced the message", field="receipt")
    if seq in lease.overtaken:
        return Stale("the message was leased again by someone else", field="receipt")
    if seq in lease.freed:
        return Stale("the message was given back under this receipt", field="receipt")
    if seq in lease.settled:
        return Stale("the message was settled under this receipt", field="receipt")
    return Gone("the message is no longer there: it was purged or never leased", field="receipt")


def do_settle(draft: Draft, command: Settle, outcome: Outcome) -> Outcome:
    view = draft.view
    lease = view.leases.get(command.lease)
    if lease is None:
        return outcome
    done = outcome.done & lease.open
    if not done:
        return outcome
    lease.open -= done
    lease.settled |= done
    _forget(view, lease, done)
    _end_if_done(draft, lease)
    draft.put_lease(lease)
    if view.spec.retention == "work":
        floor = view.retain_floor()
        if done.max() <= floor:
            draft.die(Death.SETTLED, done)
        else:
            passed = done.copy()
            passed.remove_range(floor + 1, done.max() + 1)
            if passed:
                draft.die(Death.SETTLED, passed)
            draft.keep(done - passed)
    return outcome


def do_release(draft: Draft, command: Release, outcome: Outcome) -> Outcome:
    view = draft.view
    lease = view.leases.get(command.lease)
    if lease is None:
        return outcome
    done = outcome.done & lease.open
    if not done:
        return outcome
    lease.open -= done
    lease.freed |= done
    view.returned |= done
    for seq in done:
        lease.deadlines.pop(seq, None)
        if command.failed:
            deliveries, failures = lease.counts_of(seq)
            lease.counts[seq] = (deliveries, failures + 1)
    draft.put_lease(lease)
    return outcome


def do_extend(draft: Draft, command: Extend, outcome: Outcome) -> Outcome:
    view = draft.view
    lease = view.leases.get(command.lease)
    if lease is None:
        return outcome
    done = outcome.done
    deadline = draft.now + command.lease_ms
    if done:
        if done == lease.open:
            lease.deadline_ms = deadline
            lease.deadlines.clear()
        else:
            lease.deadlines.update(dict.fromkeys(done, deadline))
        view.returned -= done
        draft.push_deadline(deadline, lease.id)
        draft.put_lease(lease)
    return Outcome(done, outcome.refused, deadline)


def _forget(view: View, lease: LeaseState, seqs: BitMap64) -> None:
    for seq in seqs:
        del view.holder[seq]
    if lease.counts or lease.deadlines:
        for seq in seqs:
            lease.counts.pop(seq, None)
            lease.deadlines.pop(seq, None)
    if view.returned:
        view.returned -= seqs


def _end_if_done(draft: Draft, lease: LeaseState) -> None:
    """A lease with nothing left to do is remembered for a while: it answers late retries."""
    if lease.open or lease.freed or lease.ended_ms:
        return
    lease.ended_ms = draft.now
    draft.remember_lease(lease.id)


# --- Purge -------------------------------------------------------------------------------------


def do_purge(draft: Draft) -> Seq:
    """End all rows; whoever holds one of them will find it gone."""
    view = draft.view
    upto = view.last_seq
    for holder in sorted(set(view.holder.values())):
        lease = view.leases[holder]
        lease.open.clear()
        lease.freed.clear()
        lease.counts.clear()
        lease.deadlines.clear()
        _end_if_done(draft, lease)
        draft.put_lease(lease)
    view.holder.clear()
    view.returned.clear()
    view.hidden.clear()
    for second in sorted(view.deletes):
        draft.drop_delete(view.deletes[second].copy())
    view.scanned = max(view.scanned, upto)
    draft.purge_to(upto)
    draft.put_pointers(msgspec.structs.replace(view.pointers, next=upto + 1, floor=upto))
    return upto
