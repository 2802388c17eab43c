"""Planning of sealing passes: as much as the disk has room for, and no empty homes."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from millrace.core.model import Death, NewMessage
from millrace.core.needs import ExpiredRows
from millrace.errors import Corrupt, Full
from millrace.store.sealed import FOLDER, file_name, read_footer
from tests.store.test_disk_store import Scene
from tests.support.contracts.story import SHARD
from tests.support.simulator.disk import Effect


def test_l8_generations_in_which_nothing_lies_need_no_pass() -> None:
    """Every open begins one: on a full disk they would use up the reserve before anyone seals."""
    scene = Scene()
    for _ in range(3):
        scene.subject.turn_over()
    scene.subject.checkpoint()
    assert scene.subject.store.needed_from() == scene.subject.log.mark().generation
    scene.story.bodies(10)
    generation = scene.subject.log.mark().generation
    for _ in range(3):
        scene.subject.turn_over()
        scene.subject.checkpoint()
    assert scene.subject.store.needed_from() == generation, "rows lie there"
    scene.story.compare()
    scene.subject.reopen()
    scene.story.compare()


def test_l8_a_plan_takes_as_much_as_there_is_room_for() -> None:
    """All at once, the oldest segments would never be emptied, though one of them fits."""
    scene = Scene()
    for _ in range(6):
        scene.story.bodies(20, 4_000)
        scene.subject.turn_over()
    scene.subject.checkpoint()
    store, log = scene.subject.store, scene.subject.log
    before = len(log.segments())
    used = sum(
        scene.disk.open(f"{folder}/{name}").size
        for folder in ("log", FOLDER)
        for name in scene.disk.names(folder)
    )
    scene.disk.budget_bytes = used + 150_000
    plan = store.plan_seal(everything=True)
    assert plan is not None
    assert len(plan.homes) == 1
    store.finish_seal(store.run_seal(plan))
    scene.subject.checkpoint()
    assert len(log.segments()) < before
    scene.story.compare()


def test_l8_a_pass_of_dead_rows_needs_no_room() -> None:
    scene = Scene()
    scene.story.bodies(100, 4_000)
    scene.story.die(Death.SETTLED, *range(1, 101))
    scene.subject.turn_over()
    scene.subject.checkpoint()
    scene.disk.budget_bytes = 0
    while scene.subject.seal():
        pass
    assert scene.subject.store.needed_from() == scene.subject.log.mark().generation
    scene.story.compare()


def test_l8_room_that_goes_while_it_is_used_leaves_nothing_behind() -> None:
    """Half a file that stays takes the room that settling needs."""
    scene = Scene()
    scene.story.bodies(100, 4_000)
    scene.subject.turn_over()
    scene.subject.checkpoint()
    store = scene.subject.store
    plan = store.plan_seal(everything=True)
    assert plan is not None

    def fill(effect: Effect) -> None:
        if effect.name == file_name(1):
            scene.disk.budget_bytes = 0

    scene.disk.hook = fill
    with pytest.raises(Full):
        store.run_seal(plan)
    assert scene.files() == []
    scene.story.compare()


def test_a_missing_file_is_damage_whatever_is_asked() -> None:
    """Rows without a location are damage, not moved rows."""
    scene = Scene()
    scene.story.stage("s", NewMessage(b"staged", b"key"))
    for number in range(5):
        scene.story.publish(NewMessage(b"%d" % number))
    scene.subject.seal_all()
    store = scene.subject.store
    for name in scene.files():
        scene.disk.remove(f"{FOLDER}/{name}")
    store._row_reader.files.close()
    with pytest.raises(Corrupt, match="a sealed file is missing"):
        store.stage(SHARD, "s", grouped=False)
    with pytest.raises(Corrupt, match="a sealed file is missing"):
        store.seq_at(SHARD, scene.story.now - 2_500)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_damaged_batch_keeps_no_others_from_being_over(*, damaged: bool) -> None:
    """Its messages cannot be delivered: they expire with the last one."""
    scene = Scene()
    scene.story.bodies(2)
    scene.story.bodies(2)
    between_ms = scene.story.now
    scene.subject.seal_all()
    scene.story.bodies(1)
    store = scene.subject.store
    if damaged:
        [name] = scene.files()
        [line] = read_footer(scene.disk, int(name.removesuffix(".arrow")))
        scene.disk.flip(f"{FOLDER}/{name}", line.offset + line.length - 10)
    over = BitMap64() if damaged else BitMap64([1, 2])
    found = store.outlived(SHARD, 0, between_ms, 10)
    assert found == ExpiredRows(over, len(over), between_ms)
    found = store.outlived(SHARD, 0, between_ms + 1, 10)
    assert found == ExpiredRows(BitMap64([1, 2, 3, 4]), 4, scene.story.now)
