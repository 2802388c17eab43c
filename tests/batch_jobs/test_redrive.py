"""Dead letters that go back, changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import Message, limits, sync
from millrace.batch_jobs.job_context import JobContext
from millrace.batch_jobs.redrive import (
    DryRun,
    LetterTransform,
    RedriveResult,
    _Moving,
    redrive,
    try_transform,
)
from millrace.errors import Invalid, NotFound

pytestmark = pytest.mark.spark

MEND = str(Path(__file__).with_name("mend.py"))
HALF = (
    "SELECT shard, seq, dead_queue, key, headers, concat('new ', value) AS value FROM input "
    "WHERE cast(value AS string) LIKE 'good%' AND dead_reason = 'discarded'"
)


def bury(
    site: JobContext, name: str, bodies: list[bytes], shards: int = 1
) -> tuple[sync.Queue, ...]:
    """A queue whose messages have all died, and the one that took them."""
    dead = site.m.queue(f"{name}-dead", shards=shards)
    live = site.m.queue(name, dead_letter=f"{name}-dead")
    for body in bodies:
        live.publish(body, key=b"k", headers={"kind": "a"})
    live.discard(live.lease(len(bodies)))
    while dead.stats()["published"] < len(bodies):
        live.lease(1, wait=0.05)
    return live, dead


def bodies(queue: sync.Queue) -> list[bytes]:
    return sorted(row.body or b"" for row in queue.peek(1000))


def test_what_is_made_of_letters_goes_back_and_the_others_stay(site: JobContext) -> None:
    live, dead = bury(site, "half", [b"good 1", b"bad 2", b"good 3"], shards=2)
    tried = try_transform(site, dead, LetterTransform(sql=HALF))
    assert tried.redriven == RedriveResult(2, 2, 1)
    assert sorted(str(row["value"]) for row in tried.before) == ["b'good 1'", "b'good 3'"]
    assert sorted(str(row["value"]) for row in tried.after) == ["new good 1", "new good 3"]
    assert dead.stats()["live"] == 3
    assert redrive(site, dead, LetterTransform(sql=HALF)) == RedriveResult(2, 2, 1)
    assert bodies(live) == [b"new good 1", b"new good 3"]
    assert [(row.key, row.headers) for row in live.peek()] == [(b"k", (("kind", b"a"),))] * 2
    assert bodies(dead) == [b"bad 2"]
    assert live.stages() == {}
    # It stays as if nobody had been handed it.
    [lease] = dead.lease(5)
    assert lease.deliveries == 1
    lease.release()
    assert redrive(site, dead, LetterTransform(sql=HALF)) == RedriveResult(0, 0, 1)


def test_letters_tell_when_they_were_published_first(site: JobContext) -> None:
    _, dead = bury(site, "aged", [b"letter"])
    [letter] = dead.peek()
    first = int(dict(letter.headers)["millrace-dead-time"])
    dead.publish(b"forged", headers={"millrace-dead-time": "9" * 15, "millrace-dead-queue": "aged"})
    forged = dead.peek()[1].time_ms
    site.m.queue("times")
    query = "SELECT shard, seq, string(unix_millis(dead_time)) AS value FROM input"
    tried = try_transform(site, dead, LetterTransform(to="times", sql=query))
    assert [row["value"] for row in tried.after] == [str(first), str(forged)]
    assert redrive(site, dead, LetterTransform(to="times", sql=query)).published == 2
    assert bodies(site.m.queue("times")) == sorted([b"%d" % first, b"%d" % forged])


def test_by_a_function_to_another_queue(site: JobContext) -> None:
    _, dead = bury(site, "loud", [b"a", b"b"])
    other = site.m.queue("other")
    assert redrive(site, dead, LetterTransform(to="other", python=f"{MEND}:mend")).published == 2
    assert bodies(other) == [b"A", b"B"]
    assert dead.stats()["live"] == 0


def test_one_letter_may_become_several(site: JobContext) -> None:
    _, dead = bury(site, "split", [b"a,b", b"c"])
    other = site.m.queue("parts")
    query = "SELECT shard, seq, explode(split(cast(value AS string), ',')) AS value FROM input"
    assert redrive(site, dead, LetterTransform(to="parts", sql=query)) == RedriveResult(2, 3, 0)
    assert bodies(other) == [b"a", b"b", b"c"]
    assert dead.stats()["live"] == 0


def test_what_is_wrong_is_refused_and_nothing_moves(site: JobContext) -> None:
    _, dead = bury(site, "refused-letters", [b"a"])
    target = site.m.queue("refused-target")
    to = "refused-target"
    for change, said in (
        (LetterTransform(to=to, sql="SELECT value FROM input"), "lacks the column 'shard'"),
        (
            LetterTransform(sql="SELECT shard, seq, value FROM input"),
            "lacks the column 'dead_queue'",
        ),
        (
            LetterTransform(to=to, sql="SELECT shard, seq, value, 1 AS x FROM input"),
            "column 'x' is none",
        ),
        (
            LetterTransform(to=to, sql="SELECT shard, seq + 1 AS seq, value FROM input"),
            "is no letter",
        ),
        (
            LetterTransform(
                to=to, sql="SELECT shard, seq, nullif(value, value) AS value FROM input"
            ),
            "null",
        ),
        (LetterTransform(to=to, sql="SELECT nothing FROM input"), "Spark refuses the change"),
        (LetterTransform(to=to, python=f"{MEND}:wrong"), "not a DataFrame"),
        (LetterTransform(to=to, python=f"{MEND}:absent"), "has no function 'absent'"),
    ):
        with pytest.raises(Invalid, match=said):
            redrive(site, dead, change)
    with pytest.raises(NotFound):
        redrive(site, dead, LetterTransform(to="nowhere"))
    assert (bodies(dead), bodies(target), target.stages()) == ([b"a"], [], {})
    assert redrive(site, dead, LetterTransform(to=to)).letters == 1


@pytest.mark.long
def test_what_a_redrive_left_that_was_cut_off_goes_with_the_last_letter(site: JobContext) -> None:
    live, dead = bury(site, "orphans", [b"good 1", b"bad 2"])
    left = f"redrive.{dead.shards.first}.cut.0"
    for name in (left, "redrive.another.cut.0"):
        live.stage(name, [b"good 1"])
    assert redrive(site, dead, LetterTransform(sql=HALF)).kept == 1
    assert set(live.stages()) == {left, "redrive.another.cut.0"}
    assert redrive(site, dead, LetterTransform()).kept == 0
    assert set(live.stages()) == {"redrive.another.cut.0"}


def test_a_dry_run_leaves_nothing_pinned_and_a_change_names_its_letters(site: JobContext) -> None:
    live, dead = bury(site, "named", [b"a", b"b"])
    assert try_transform(site, dead, LetterTransform()).redriven == RedriveResult(2, 2, 0)
    assert dead.holders().held == ()
    nobody = "SELECT shard, cast(null AS bigint) AS seq, dead_queue, value FROM input"
    with pytest.raises(Invalid, match="shard or seq is null"):
        redrive(site, dead, LetterTransform(sql=nobody))
    assert (bodies(live), live.stages()) == ([], {})
    assert [lease.deliveries for lease in dead.lease(5)] == [1, 1]


@pytest.mark.long
def test_a_dry_run_says_what_a_real_one_would(site: JobContext) -> None:
    dead = site.m.queue("aimless")
    site.m.queue("aim")
    dead.publish_many([b"a", b"b"])
    assert try_transform(site, dead, LetterTransform()) == DryRun([], [], RedriveResult(0, 0, 2, 2))
    assert redrive(site, dead, LetterTransform()) == RedriveResult(0, 0, 2, 2)
    for run in (redrive, try_transform):
        with pytest.raises(NotFound):
            run(site, dead, LetterTransform(to="nowhere"))
        with pytest.raises(Invalid, match="to itself"):
            run(site, dead, LetterTransform(to="aimless"))
        for change, said in (
            ("shard, seq + 1 AS seq, value", "is no letter"),
            ("shard, cast(null AS bigint) AS seq, value", "shard or seq is null"),
            ("shard, seq, nullif(value, value) AS value", "'value' is null"),
        ):
            with pytest.raises(Invalid, match=said):
                run(site, dead, LetterTransform(to="aim", sql=f"SELECT {change} FROM input"))
    assert bodies(dead) == [b"a", b"b"]


@pytest.mark.long
def test_letters_that_come_meanwhile_do_not_hide_older_ones(
    site: JobContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two shards one has new letters alone, and as many as are leased at a time."""
    live = site.m.queue("busy")
    dead = site.m.queue("busy-dead", shards=2, route="key")
    dead.publish_many([Message(b"letter", key=b"%d" % at) for at in range(12)])
    with dead.snapshot() as snapshot:
        new, old = snapshot.boundaries
    monkeypatch.setattr(limits, "REDRIVE_JOB_MESSAGES_MAX", new)
    moving = _Moving(site, dead, LetterTransform(to="busy"), [0, old])
    while moving.step():
        pass
    moving.close()
    assert moving.done == RedriveResult(old, old, 0)
    assert len(bodies(live)) == old
    assert [lease.deliveries for lease in dead.lease(20)] == [1] * new
