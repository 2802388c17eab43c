"""A batch while it is being decided.

Every change goes through a draft, which writes it down and applies it to the view in the same
step: so the next command sees it, and a replica that folds the batch sees the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap64

from millrace.core.block import Block
from millrace.core.cell_draft import CellDraft
from millrace.core.changes import Batch
from millrace.core.flight import Chosen
from millrace.core.layer import Expiring, Layer
from millrace.core.model import Death, Index, Kind, Message, Millis, Seq
from millrace.core.seqs import pack_seqs
from millrace.core.view import View, number_key


class Draft(CellDraft):
    """The changes of one shard that are decided together."""

    def __init__(self, view: View, now: Millis) -> None:
        super().__init__(view, now)
        self.blocks: list[Block] = []
        self.keys: dict[bytes, int] = {}
        """The newest seq of each key that was published here."""
        self.deletes = BitMap64()
        """The deletes that were published here, dead ones too."""
        self.aside = BitMap64()
        """The rows that were put aside here."""
        self.expiring = Expiring()
        self.gathering: dict[tuple[int, int], bytes] = {}
        """Due time and priority → the cell of this batch that takes more of them."""
        self.promoted = 0
        """Cells of messages whose delay was found to be over."""
        self.found_dead = 0
        """Messages that came to their turn, and were dead."""
        self.ready_known = 0
        """On a keyed queue: so many of those that wait apart and are ready are known to be live."""
        self.passed = 0
        """Turns of groups that were of no use, and messages of theirs that were dead."""
        self.taken_bytes = 0
        """Bytes of the rows that were published here, where the queue has a maximum."""
        self.chosen: list[Chosen] = []
        self.staged: list[tuple[str, Block]] = []
        self.ended_stages: set[str] = set()
        self._messages: list[Message] = []
        self._died: dict[Death, BitMap64] = {}
        self._kept = BitMap64()

    @property
    def index(self) -> Index:
        """The index that the batch will have."""
        return Index(self.view.index + 1)

    # --- Rows -------------------------------------------------------------------------------

    def put_rows(self, rows: Block | Sequence[Message]) -> Seq:
        """Append rows; returns the first one's seq."""
        view = self.view
        first = Seq(view.last_seq + 1)
        count = rows.count if isinstance(rows, Block) else len(rows)
        if not count:
            return first
        if view.retaining:
            self._refresh_retaining()
        if isinstance(rows, Block):
            self._flush()
            self.changes.firsts.append(first)
            self.blocks.append(rows)
        else:
            if not self._messages:
                self.changes.firsts.append(first)
            self._messages.extend(rows)
        view.last_seq = Seq(view.last_seq + count)
        return first

    def _flush(self) -> None:
        if self._messages:
            self.blocks.append(Block.of_messages(self._messages))
            self._messages = []

    def _refresh_retaining(self) -> None:
        for name, cell in self.view.waiting_cursors(self.now):
            self.put_cursor(name, cell)

    def put_deletes(self, seqs: BitMap64) -> None:
        """Rows of this batch without a body: workers never get them, and they die by age."""
        self.deletes |= seqs
        live = self.still_live(seqs)
        if live:
            second = self.now // 1000
            self.view.deletes.add(second, live)
            self._seconds[second] = None

    def stage(self, name: str, block: Block) -> None:
        """Rows of a stage that was not ended in this batch."""
        if block.count:
            self.staged.append((name, block))

    def publish_stage(self, name: str, rows: int) -> Seq:
        """A stage takes the next seqs; returns the first one."""
        first = Seq(self.view.last_seq + 1)
        self._flush()
        self.ended_stages.add(name)
        if not rows:
            return first
        if self.view.retaining:
            self._refresh_retaining()
        self.changes.published.append((name, first, rows))
        self.view.last_seq = Seq(self.view.last_seq + rows)
        return first

    def drop_stage(self, name: str) -> None:
        self.changes.unstaged.append(name)
        self.ended_stages.add(name)

    # --- Ends of rows -----------------------------------------------------------------------

    def die(self, why: Death, seqs: BitMap64) -> None:
        """End rows that are live or kept."""
        view = self.view
        known = self._died.get(why)
        if known is None:
            self._died[why] = seqs.copy()
        else:
            known |= seqs
        if self._kept:
            self._kept -= seqs
        first = view.first_fresh()
        if view.scanned >= first and seqs.min() <= view.scanned:
            # What lies above the window is asked for when the window gets there.
            within = seqs.copy()
            within.remove_range(0, first)
            within.remove_range(view.scanned + 1, seqs.max() + 1)
            view.hidden |= within
        if view.deletes:
            self._seconds.update(dict.fromkeys(view.deletes.discard(seqs)))

    def keep(self, seqs: BitMap64) -> None:
        """These rows are settled, and wait for retaining cursors."""
        self._kept |= seqs

    def kept(self) -> BitMap64:
        """The rows that batches which are not folded yet have kept."""
        return self._kept.union(*(layer.kept for layer in self.view.layers))

    def pass_to(self, seq: Seq) -> None:
        """Kept rows up to `seq` are wanted by nobody any more."""
        if not self.changes.purged:
            # Else what was kept before this batch is dead already.
            self.changes.passed = max(self.changes.passed, seq)
        if self._kept and self._kept.min() <= seq:
            # Those that this batch keeps are not passed with the older ones: it may keep others
            # below `seq` for a cursor that comes after.
            passed = self._kept.copy()
            passed.remove_range(seq + 1, passed.max() + 1)
            self.die(Death.SETTLED, passed)

    def purge(self) -> Seq:
        """End every row that is there now; returns the last one's seq."""
        upto = self.view.last_seq
        self.purge_to(upto)
        return upto

    def purge_to(self, upto: int) -> None:
        """End every row up to `upto`; of those that come after none may have ended before."""
        self.changes.purged = max(self.changes.purged, upto)
        self.end_to(upto)

    def end_to(self, upto: int) -> None:
        """All rows up to `upto` are gone; the changes say of what."""
        view = self.view
        view.ended_to = max(view.ended_to, upto)
        self._kept.remove_range(0, upto + 1)
        view.hidden.remove_range(0, upto + 1)
        view.scanned = max(view.scanned, upto)
        gone = view.deletes.seqs.copy()
        gone.remove_range(upto + 1, view.last_seq + 1)
        self._seconds.update(dict.fromkeys(view.deletes.discard(gone)))

    @property
    def ended_to(self) -> int:
        """All rows up to here die in this batch."""
        return max(self.changes.purged, self.changes.expired)

    def still_live(self, seqs: BitMap64) -> BitMap64:
        """Those of `seqs` whose death was not decided in a batch that is not folded yet.

        What died because retaining cursors passed it is not known here, but to `publish`.
        """
        live = seqs.copy()
        for died in self._died.values():
            live -= died
        purged = self.ended_to
        for layer in self.view.layers:
            live -= layer.died
            purged = max(purged, layer.purged)
        if purged:
            live.remove_range(0, purged + 1)
        return live

    # --- The end ----------------------------------------------------------------------------

    def empty(self) -> bool:
        """Whether nothing was changed."""
        return not (
            self._messages
            or self.blocks
            or self.staged
            or self._died
            or self._kept
            or self._leases
            or self._cells
            or self._pinned
            or self._seconds
            or self.aside
            or self.waits
            or self.points
            or not self.changes.empty()
        )

    def changes_rows(self) -> bool:
        """Return whether a snapshot of this batch shows other rows than one of the batch before."""
        changes = self.changes
        return bool(
            changes.firsts or changes.published or self._died or self._kept or self.ended_to
        )

    def hidden(self) -> BitMap64:
        """Rows that this batch has ended, kept or put aside, and its deletes."""
        return self.deletes | self.aside | self._kept | self.died()

    def died(self) -> BitMap64:
        """Rows that this batch has ended."""
        return BitMap64().union(*self._died.values())

    def finish(self) -> Batch:
        """The batch, under the shard's next index; the draft must not be used afterwards."""
        view, changes = self.view, self.changes
        self._flush()
        view.index = self.index
        if codec := view.spec.compressed:
            self.blocks = [block.squeezed(codec) for block in self.blocks]
            self.staged = [(name, block.squeezed(codec)) for name, block in self.staged]
        if changes.firsts or changes.weight:
            changes.weight += sum([block.size() for block in self.blocks])
            size, most = changes.weight, view.spec.max_bytes
            self._cells.update(view.scale.publish(size, view.last_seq, view.weighed_from, most))
        if self.changes_rows():
            view.changed = self.index
        died = BitMap64()
        for why, seqs in sorted(self._died.items()):
            changes.died[int(why)] = pack_seqs(seqs)
            died |= seqs
        if self._kept:
            changes.settled = pack_seqs(self._kept)
        changes.aside = pack_seqs(self.aside)
        if self.staged:
            changes.staged = [(name, 1) for name, _ in self.staged]
            self.blocks.extend(block for _, block in self.staged)
        for pin in self._pinned:
            # A pin shows its own batch, whose index is known only now.
            cell = view.pins[pin]
            view.pins[pin] = view.pinned(cell)
            self._cells[Kind.PIN, number_key(pin)] = view.pins[pin]
        for ref in self._promised:
            ref.index, ref.boundary = view.index, view.last_seq
        changes.pinned = self._pinned
        if self.expiring.rows:
            self.points.update(self.expiring.cells(view.index))
        changes.cells = self._encode_cells()
        view.layers.append(
            Layer(
                view.index,
                self.now,
                view.last_seq,
                self.keys,
                died,
                self._kept,
                self.deletes,
                changes.passed,
                self.ended_to,
                self.staged,
                frozenset(self.ended_stages),
                self.aside,
                self.waits,
                self.points,
            )
        )
        return Batch(view.shard, view.index, self.now, changes, self.blocks)
