"""F1: a file that was dropped is gone for good, though the process was killed, and the power went.

The process is killed at any effect: the kernel has all that it did, synced or not. Others open the
folder and write checkpoints; then the power goes. No file may come back that nobody knows any more.
"""

from __future__ import annotations

from millrace.store.sealed import file_number
from tests.store.test_checkpoint_crash_order import (
    EFFECTS_MAX,
    SEEDS,
    Machine,
    seal_and_rewrite,
)
from tests.support.simulator.disk import Crashed


def test_a_dropped_file_does_not_come_back() -> None:
    for effect in range(EFFECTS_MAX):
        for seed in range(SEEDS):
            machine = Machine(seed)
            for _ in range(3):
                machine.rows()
            machine.story.pin(1)
            machine.die(1, 101)
            machine.fuse.left = effect
            try:
                seal_and_rewrite(machine)
            except Crashed:
                _check(machine)
            else:
                assert effect > 15, "there was hardly anything to interrupt"
                return
    raise AssertionError("it never came to an end")


def _check(machine: Machine) -> None:
    machine.fuse.left = None
    machine.disk = machine.disk.kill()
    killed = machine._make()
    for _ in range(3):
        killed.checkpoint()
    found = machine.again()
    book = found.store._file_stats
    known = {*book.numbers(), *book.removing}
    there = {file_number(name) for name in machine.disk.names("sealed")}
    assert there <= known, "a file is there that nobody knows"
    found.close()
