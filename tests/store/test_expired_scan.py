"""Retention on disk: exact counts whatever was cleaned up, and files that go."""

from __future__ import annotations

from millrace.core.model import Death, NewMessage
from millrace.store import chunk
from tests.store.test_disk_store import Scene
from tests.store.test_sealed_stats import look_after
from tests.support.contracts.story import SHARD


def test_i12_rows_that_are_gone_do_not_expire() -> None:
    """Their marks are cleaned up, and they still died of something else."""
    scene = Scene()
    scene.story.bodies(chunk.ROWS + 100)
    scene.story.die(Death.SETTLED, *range(1, chunk.ROWS + 51))
    scene.subject.seal_all()
    look_after(scene)
    scene.story.batch(expired=chunk.ROWS + 80)
    scene.story.compare()
    meta = scene.subject.store.meta(SHARD)
    assert meta is not None
    assert meta.died[Death.EXPIRED] == 30
    scene.story.check()


def test_what_has_expired_leaves_no_files() -> None:
    scene = Scene()
    scene.story.bodies(50, 1_000)
    scene.subject.seal_all()
    scene.story.pin(1)
    scene.story.batch(expired=50)
    look_after(scene)
    assert scene.files() != [], "the pin shows it"
    scene.story.unpin(1)
    look_after(scene)
    assert scene.files() == []


def test_a_key_that_has_expired_is_unknown() -> None:
    scene = Scene(keyed=True)
    scene.story.publish(*(NewMessage(b"v" * 500, b"%d" % key) for key in range(50)))
    scene.subject.seal_all()
    scene.story.batch(expired=49)
    store = scene.subject.store
    assert store.find(SHARD, [b"48", b"49"]) == [0, 50]
    look_after(scene)
    scene.story.check()
