"""The rules of deleting: messages end by their ids, without a receipt.

Rule 1: a message that a worker holds is settled for it: whoever settles it later is told that this
is done. A dead letter is on its way to where those go, and is not there.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core import partitions, points, work
from millrace.core.commands import Need
from millrace.core.draft import Draft
from millrace.core.lease import take_out
from millrace.core.lease_state import LeaseState
from millrace.core.message_id import id_of
from millrace.core.model import Kind
from millrace.core.partition_commands import Delete
from millrace.errors import Invalid, Refused


def delete(draft: Draft, command: Delete) -> int | Refused | Need:
    """End those of the messages that are there; returns how many were."""
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
    need = points.need(draft, names.values())
    if need is not None:
        return need
    there = BitMap64([seq for seq, name in names.items() if points.look(draft, name) is not None])
    there -= view.doomed
    if not there:
        return 0
    held = BitMap64([seq for seq in there if seq in view.holder])
    touched: dict[int, LeaseState] = {}
    for seq in held:
        lease = view.leases[view.holder.pop(seq)]
        lease.settled |= take_out(lease, (seq,))
        touched[lease.id] = lease
    view.returned -= held
    view.postponed -= held
    for lease in touched.values():
        draft.put_lease(lease)
    partitions.ended(draft, there, fresh=len(there) - len(held))
    work.end_settled(draft, there)
    return len(there)
