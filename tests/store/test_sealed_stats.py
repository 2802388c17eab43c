"""Dead rows of a sealed file are counted exactly once, and never forgotten.

A count that is too low keeps a dead file for ever; one that is too high costs a pass for
nothing, again and again.
"""

from __future__ import annotations

from millrace.core.model import Death
from millrace.errors import Full
from millrace.store.cells import Table
from millrace.store.index_codec import decode_file, number_of
from millrace.store.sealed import FOLDER
from tests.store.test_disk_store import Scene
from tests.support.simulator.disk import Effect


def dead(scene: Scene) -> dict[int, int]:
    """File → its dead rows, as the index has it."""
    found = scene.values(Table.FILES)
    return {number_of(key): decode_file(value).dead for key, value in found.items()}


def look_after(scene: Scene) -> None:
    """Run the checkpointer's steps without new entries."""
    for _ in range(5):
        scene.subject.checkpoint()
        scene.subject.seal(everything=False)


def test_a_file_that_died_before_the_end_is_removed_after_it() -> None:
    """Counted after the commit, the deaths of the last checkpoint would be in no index."""
    scene = Scene()
    scene.story.bodies(50, 1_000)
    scene.subject.seal_all()
    scene.story.die(Death.SETTLED, *range(1, 51))
    scene.subject.checkpoint()
    assert dead(scene) == {1: 50}
    scene.subject.reopen()
    look_after(scene)
    assert scene.files() == []


def test_a_file_whose_last_pin_went_before_the_end_is_removed_after_it() -> None:
    """Marks of a merged interval are counted by the commit that moves them."""
    scene = Scene()
    scene.story.bodies(50, 1_000)
    scene.subject.seal_all()
    scene.story.pin(1)
    scene.story.die(Death.SETTLED, *range(1, 51))
    scene.subject.checkpoint()
    assert dead(scene) == {1: 0}, "the pin holds them all"
    scene.story.unpin(1)
    scene.subject.checkpoint()
    assert dead(scene) == {1: 50}
    scene.subject.reopen()
    look_after(scene)
    assert scene.files() == []


def test_rows_that_die_beside_sealing_are_counted_once() -> None:
    """Before the plan, while rows are copied, and after: by the pass and by the checkpoint."""
    scene = Scene()
    scene.story.bodies(100, 1_000)
    scene.subject.turn_over()
    scene.subject.checkpoint()
    store = scene.subject.store
    scene.story.die(Death.SETTLED, 50, 51)
    plan = store.plan_seal(everything=True)
    assert plan is not None
    result = store.run_seal(plan)
    scene.story.die(Death.SETTLED, *range(1, 30))
    store.finish_seal(result)
    scene.subject.checkpoint()
    assert dead(scene) == {1: 29}, "two of the hundred were not copied"
    scene.story.die(Death.SETTLED, 60)
    scene.subject.checkpoint()
    scene.subject.reopen()
    scene.subject.checkpoint()
    assert dead(scene) == {1: 30}


def test_a_file_that_is_left_alone_is_counted_once() -> None:
    """A shard that ended makes the book doubt a file: the pass that looks corrects the count."""
    scene = Scene()
    scene.story.bodies(100, 1_000)
    scene.subject.seal_all()
    scene.story.die(Death.SETTLED, *range(1, 20))
    scene.subject.checkpoint()
    store = scene.subject.store
    # As an estimate that is far too high would have it.
    store._file_stats.correct(1, 60)
    scene.story.die(Death.SETTLED, 30, 31)
    plan = store.plan_seal(unsealed=100)
    assert plan is not None
    result = store.run_seal(plan)
    scene.story.die(Death.SETTLED, 40)
    store.finish_seal(result)
    scene.subject.checkpoint()
    assert scene.files() == ["000000000001.arrow"]
    assert dead(scene) == {1: 22}


def test_a_floor_is_counted_once() -> None:
    """Counted again after every open, each purge would make files look emptier than they are."""
    scene = Scene()
    scene.story.bodies(20, 1_000)
    scene.story.pin(1)
    scene.story.batch(purged=20)
    scene.story.bodies(80, 1_000)
    scene.subject.seal_all()
    assert dead(scene) == {1: 0}, "the pin holds them all"
    scene.story.unpin(1)
    scene.subject.checkpoint()
    assert dead(scene) == {1: 20}
    scene.subject.reopen()
    scene.story.die(Death.SETTLED, 30)
    scene.subject.checkpoint()
    assert dead(scene) == {1: 21}


def test_a_removal_that_is_not_durable_is_done_again() -> None:
    """The checkpoint is committed by then: the error must not say that nothing was written."""
    scene = Scene()
    scene.story.bodies(50, 1_000)
    scene.subject.seal_all()
    scene.story.die(Death.SETTLED, *range(1, 51))
    scene.subject.checkpoint()
    store = scene.subject.store
    plan = store.plan_seal(unsealed=100)
    assert plan is not None
    store.finish_seal(store.run_seal(plan))
    frozen = store.freeze(scene.subject.log.mark(), {})
    is_full = True

    def refuse(effect: Effect) -> None:
        if is_full and effect.verb == "sync_folder" and effect.name == FOLDER:
            raise Full("no room for the journal of the file system", field="path")

    scene.disk.hook = refuse
    store.write(frozen)
    store.thaw(frozen)
    assert store._file_stats.removing == {1}
    is_full = False
    scene.subject.checkpoint()
    scene.subject.checkpoint()
    assert store._file_stats.removing == set()
    assert scene.values(Table.FILES) == {}
    assert scene.files() == []


def test_a_file_is_removed_before_it_is_forgotten() -> None:
    """Forgotten first, a reader in between opens it again, and its map stays."""
    scene = Scene()
    scene.story.bodies(50, 1_000)
    scene.subject.seal_all()
    store = scene.subject.store
    scene.story.die(Death.SETTLED, *range(1, 51))
    scene.subject.checkpoint()
    files = store._row_reader.files

    def read(effect: Effect) -> None:
        if effect.verb == "remove":
            files.get(1)

    scene.disk.hook = read
    while scene.subject.seal():
        pass
    assert scene.files() == []
    assert not files._open
