"""F1, C1: the power fails between any two effects of checkpoints and sealing; nothing is lost.

A checkpoint of the index is an effect, too: here it is atomic, as LMDB promises it. After each
crash the store is opened again as a node does it, and asked every question there is.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from millrace.core.cells import Kind
from millrace.core.format.codec import encode_cell
from millrace.core.model import Death, NewMessage
from millrace.core.spec import QueueSpec
from millrace.store.cells import Writes
from millrace.store.memory_cells import Image, MemoryCells
from millrace.store.row_location import COMPRESSED
from millrace.store.sealed import BatchEntry, read_footer
from millrace.wal.segment import LogShape
from tests.support.contracts.compare_stores import compare
from tests.support.contracts.store_subject import DiskSubject
from tests.support.contracts.story import Story
from tests.support.simulator.disk import Crashed, SimDisk

SHAPE = LogShape(segment_bytes=32 * 1024, segments_max=64, segments_free=1, segments_reserve=1)

EFFECTS_MAX = 500
"""More than any of the stories has."""

SEEDS = 3
"""Number of ways in which unsynced data are kept, lost or torn."""


class Fuse:
    """Ends the machine after a number of effects, unless it is held."""

    def __init__(self) -> None:
        self.left: int | None = None

    def burn(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crashed

    @contextmanager
    def held(self) -> Iterator[None]:
        left, self.left = self.left, None
        yield
        self.left = left


class FusedCells(MemoryCells):
    def __init__(self, fuse: Fuse, image: Image | None) -> None:
        super().__init__(image)
        self._fuse = fuse

    def commit(self, writes: Writes) -> None:
        self._fuse.burn()
        super().commit(writes)


class Machine:
    """A store on a machine with a fuse, and its story."""

    def __init__(self, seed: int) -> None:
        self.fuse = Fuse()
        self.disk = SimDisk(random.Random(seed), hook=lambda _: self.fuse.burn())
        self._cells: FusedCells | None = None
        self.subject = self._make()
        self.story = Story(lambda: self.subject, keyed=True)

    def _make(self) -> DiskSubject:
        return DiskSubject(self.disk, self._open_cells, shape=SHAPE)

    def _open_cells(self) -> FusedCells:
        self._cells = FusedCells(self.fuse, self._cells.image() if self._cells else None)
        return self._cells

    def again(self) -> DiskSubject:
        """Return the state that the next process finds after a loss of power."""
        self.fuse.left = None
        self.disk = self.disk.crash()
        return self._make()

    def rows(self, count: int = 40) -> None:
        """Feed keyed rows, most of a segment; they are acknowledged, so that they must survive."""
        with self.fuse.held():
            first = self.story.last
            self.story.publish(
                *(NewMessage(bytes(500), b"k%d" % (first + at)) for at in range(count))
            )

    def die(self, *seqs: int) -> None:
        with self.fuse.held():
            self.story.die(Death.SETTLED, *seqs)

    def batch(self, **changes: object) -> None:
        with self.fuse.held():
            self.story.batch((), **changes)

    def unpin(self, pin: int) -> None:
        with self.fuse.held():
            self.story.unpin(pin)


def seal_and_rewrite(machine: Machine) -> None:
    """Log → sealed files → fewer files, with the log recycled in between."""
    subject = machine.subject
    subject.checkpoint()
    subject.seal_all()
    machine.die(*range(2, 100))
    machine.unpin(1)
    for _ in range(3):
        subject.checkpoint()
        while subject.seal():
            pass
    for _ in range(3):
        machine.rows()
    subject.checkpoint()
    names = machine.disk.names("sealed")
    assert names == ["000000000002.arrow"], "the first one was sparse, and is gone"


def go_on_while_it_is_written(machine: Machine) -> None:
    """The log goes on between the freezing of a checkpoint and its commit."""
    store, log = machine.subject.store, machine.subject.log
    for _ in range(2):
        frozen = store.freeze(log.mark(), {})
        machine.rows()
        store.write(frozen)
        machine.rows()
        store.thaw(frozen)
        log.release_before(store.needed_from())
        while machine.subject.seal(everything=False):
            pass


def expire_and_compress(machine: Machine) -> None:
    """Plain files → compressed ones, as retention ends rows and a pin still shows them."""
    subject = machine.subject
    subject.checkpoint()
    subject.seal_all()
    machine.batch(cells=[(int(Kind.SPEC), b"", encode_cell(QueueSpec(compressed="zstd")))])
    machine.batch(expired=60)
    machine.rows()
    subject.seal_all()
    machine.unpin(1)
    machine.batch(expired=95)
    for _ in range(3):
        subject.checkpoint()
        while subject.seal():
            pass
    lines = [line for name in machine.disk.names("sealed") for line in _lines(machine, name)]
    assert all(line.flags & COMPRESSED for line in lines), "what was plain is rewritten"


def _lines(machine: Machine, name: str) -> list[BatchEntry]:
    return read_footer(machine.disk, int(name.removesuffix(".arrow")))


ACTS = [seal_and_rewrite, go_on_while_it_is_written, expire_and_compress]


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS)
def test_a_loss_of_power_at_any_effect_loses_nothing(act: Callable[[Machine], None]) -> None:
    for effect, seed in itertools.product(range(EFFECTS_MAX), range(SEEDS)):
        machine = Machine(seed)
        for _ in range(3):
            machine.rows()
        machine.story.pin(1)
        machine.die(1, 101)
        machine.fuse.left = effect
        try:
            act(machine)
        except Crashed:
            found = machine.again()
            compare(found.store, machine.story.model, sorted(machine.story.keys))
            found.close()
        else:
            assert effect > 15, "there was hardly anything to interrupt"
            return
    raise AssertionError("it never came to an end")
