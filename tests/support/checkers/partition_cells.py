"""That the cells of partitions say the same as the view."""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core.cells import IdCell, Kind
from millrace.core.format.codec import decode_cell
from millrace.core.format.message_id import id_of
from millrace.core.ordering.partitions import id_in, locks
from millrace.core.state.view import View, number_key
from millrace.store.memory_store import MemoryStore


def check_partitions(view: View, store: MemoryStore, live: BitMap64) -> None:
    """Who has not ended is found under its id, and nobody else; who waits is counted.

    `live` are the rows that are neither dead nor kept. All batches of the view must be folded.
    """
    cell = view.partition
    assert (cell is not None) == view.spec.is_partitioned
    era = number_key(view.pointers.era)
    named = BitMap64()
    for _, key, value in store.cells(view.shard, Kind.ID):
        assert key >= era or view.swept_from is not None, "nobody sweeps what was purged"
        if key[:8] != era:
            continue
        found = decode_cell(Kind.ID, value)
        assert isinstance(found, IdCell)
        assert cell is not None
        assert id_in(key) == id_of(cell.key, found.seq), "it stands under another id"
        named.add(found.seq)
    if cell is None:
        return
    spec = view.spec
    # What expired before anyone had it is a dead letter, and is in no partition any more.
    assert named | view.doomed == live, "a message is in no partition, or one that has ended is"
    held = BitMap64(view.holder)
    assert cell.waiting == len(named - held), f"{cell.waiting} are said to wait"
    assert view.parts is not None
    parts, now = view.parts, view.time_ms
    slices = parts.slices
    assert spec.partitions_min <= cell.size == len(slices) <= spec.partitions_max
    assert max(one.served for one in slices) <= cell.turn
    parts.refresh(view.leases, now)
    assert set(parts.locked) == {at for at, one in enumerate(slices) if locks(view, one, now)}
    free = [at for at in range(len(slices)) if at not in parts.locked]
    assert parts.oldest_free() == min(free, key=lambda at: (slices[at].served, at), default=None)
    fresh = named - held
    parts.give_back(view.returned)
    fresh.remove_range(parts.scanned + 1, view.last_seq + 1)
    assert fresh == parts.fresh, "a message that was never handed out is not known to wait"
    assert cell.first <= (named - held or BitMap64([view.last_seq + 1])).min()
    waiting: dict[int, BitMap64] = {}
    for seq in fresh | view.returned:
        waiting.setdefault(parts.part_of(seq), BitMap64()).add(seq)
    assert waiting == parts.waiting, "a message waits in another partition"
