"""What the sink of a stream does with what Spark tells it: under which range, once, and no litter.

Spark itself is not needed for this: it is played by its checkpoint's files and its calls.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from millrace import sync
from millrace.errors import Invalid, NotFound, Refused, TooLarge
from millrace.spark.offset import Offset
from millrace.spark.staging import StagedRows
from millrace.spark.stream_writer import NAME_CHARS_MAX, StreamWriter

SCHEMA = StructType([StructField("value", StringType())])
Ends = tuple[tuple[int, ...], tuple[int, ...]]


class Play:
    """A query, as its sink sees it."""

    def __init__(
        self, shared: tuple[sync.Millrace, Path], tmp_path: Path, queue: str, **options: str
    ) -> None:
        self.queue = shared[0].queue(queue)
        self.checkpoint = tmp_path / "checkpoint"
        self.options = {
            "path": str(shared[1]),
            "queue": queue,
            "checkpointLocation": str(self.checkpoint),
            **options,
        }
        self.begin()

    def begin(self, name: str = "3a1c") -> None:
        """A checkpoint, instead of any other."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": name}))

    def writer(self) -> StreamWriter:
        return StreamWriter(self.options, SCHEMA, overwrite=False)

    def offsets(self, batch: int, *lines: str) -> None:
        text = "\n".join(["v1", "{}", *lines])
        (self.checkpoint / "offsets" / str(batch)).write_text(text)

    def stage(self, *bodies: str) -> StagedRows:
        return self.writer().write(iter([pa.record_batch({"value": list(bodies)})]))

    def commit(self, batch: int, *staged: StagedRows) -> None:
        self.writer().commit(list(staged), batch)

    def run(self, batch: int, line: str, *bodies: str) -> None:
        """A batch of one task."""
        self.offsets(batch, line)
        self.commit(batch, self.stage(*bodies))

    def seen(self) -> list[str]:
        return [(row.body or b"").decode() for row in self.queue.peek(1000)]


def read(after: Sequence[int], upto: Sequence[int], *, queue: str = "in", cursor: int = 1) -> str:
    """What the checkpoint says of a queue that was read so far."""
    count = len(after)
    ids = tuple(range(cursor, cursor + count))
    offset = Offset(
        1, "default", queue, (4,) * count, "00" * 16, "c", ids, "t", tuple(after), tuple(upto)
    )
    return json.dumps(offset.shown())


@pytest.fixture
def play(
    shared: tuple[sync.Millrace, Path], tmp_path: Path, request: pytest.FixtureRequest
) -> Play:
    return Play(shared, tmp_path, re.sub(r"[^a-z0-9]", "-", request.node.name)[:80])


def test_a_repeat_changes_nothing_and_leaves_nothing(play: Play) -> None:
    play.run(0, read([0], [5]), "a", "b")
    play.run(0, read([0], [5]), "a", "b")
    play.run(1, read([5], [9]), "c")
    assert play.seen() == ["a", "b", "c"]
    assert play.queue.stages() == {}


def test_another_checkpoint_neither_loses_nor_doubles(play: Play) -> None:
    play.run(0, read([0], [5]), "a")
    play.run(1, read([5], [9]), "b")
    play.begin("another")
    play.run(0, read([5], [9]), "b")
    play.run(1, read([9], [12]), "c")
    assert play.seen() == ["a", "b", "c"]


def test_a_cursor_that_was_made_anew_begins_anew(play: Play) -> None:
    play.run(0, read([0], [5]), "a")
    play.begin()
    play.run(0, read([0], [5], cursor=2), "a")
    assert play.seen() == ["a", "a"]


@pytest.mark.parametrize("span", [([3], [7]), ([6], [7]), ([0], [6])])
def test_what_overlaps_or_leaves_something_out_is_refused(play: Play, span: Ends) -> None:
    play.run(0, read([0], [5]), "a")
    with pytest.raises(Refused, match="is used by another query, or its cursor was moved"):
        play.run(1, read(*span), "b")
    assert play.seen() == ["a"]
    play.run(1, read([5], [8]), "c")
    assert play.seen() == ["a", "c"]
    assert play.queue.stages() == {}


def test_shards_are_compared_one_by_one(play: Play) -> None:
    """The sum of the seqs was reached, and yet the first shard has something new."""
    play.run(0, read([0, 0], [5, 5]), "a")
    with pytest.raises(Refused, match="overlaps"):
        play.run(1, read([0, 0], [6, 1]), "b")
    play.run(1, read([5, 5], [6, 5]), "c")
    assert play.seen() == ["a", "c"]


def test_several_sources_of_which_one_stands_still(play: Play) -> None:
    one, other = read([0], [5]), read([2], [4], queue="other")
    play.offsets(0, one, other)
    play.commit(0, play.stage("a"))
    more = read([4], [6], queue="other")
    for _ in range(2):
        play.offsets(1, one, more)
        play.commit(1, play.stage("b"))
    assert play.seen() == ["a", "b"]


def test_a_batch_that_no_source_brought_is_its_checkpoints(play: Play) -> None:
    """State that was let go by time comes with the offsets of the batch before."""
    play.run(0, read([0], [5]), "a")
    for _ in range(2):
        play.run(1, read([0], [5]), "closed")
    play.run(2, read([5], [6]), "b")
    assert play.seen() == ["a", "closed", "b"]


def test_without_a_queue_as_source_it_is_the_checkpoint_and_its_number(play: Play) -> None:
    for batch in (0, 0, 1, 1, 2):
        play.run(batch, "7", f"{batch}")
    play.begin("another")
    for batch in (0, 0, 1):
        play.run(batch, "7", f"another {batch}")
    assert play.seen() == ["0", "1", "2", "another 0", "another 1"]


def test_beside_another_source_a_queue_says_too_little(play: Play) -> None:
    play.offsets(0, read([0], [5]), "1")
    play.commit(0, play.stage("a"))
    play.offsets(1, read([0], [5]), "2")
    play.commit(1, play.stage("b"))
    assert play.seen() == ["a", "b"]


def test_a_batch_without_rows_moves_on(play: Play) -> None:
    play.offsets(0, read([0], [5]))
    play.commit(0, play.stage())
    play.offsets(1, read([5], [6]))
    play.commit(1)
    play.run(2, read([6], [8]), "a")
    assert play.seen() == ["a"]


def test_only_what_is_named_is_published_and_the_rest_goes(play: Play) -> None:
    """An attempt that was given up, and one of a driver that was killed."""
    play.stage("given up")
    play.run(0, read([0], [5]), "a")
    assert play.queue.stages() == {}
    assert play.seen() == ["a"]


def test_stages_of_others_stay(play: Play, shared: tuple[sync.Millrace, Path]) -> None:
    play.queue.stage("mine", [b"x"])
    other = StreamWriter({**play.options, "producer": "other"}, SCHEMA, overwrite=False)
    staged = other.write(iter([pa.record_batch({"value": ["y"]})]))
    play.run(0, read([0], [5]), "a")
    assert set(play.queue.stages()) == {"mine", *staged.stages}


def test_queries_under_one_producer_leave_each_other_their_stages(
    shared: tuple[sync.Millrace, Path], tmp_path: Path
) -> None:
    one, other = (
        Play(shared, tmp_path / name, "both", producer="both") for name in ("one", "other")
    )
    staged = other.stage("b")
    one.run(0, read([0], [5], cursor=1), "a")
    other.offsets(0, read([0], [7], cursor=2))
    other.commit(0, staged)
    assert one.seen() == ["a", "b"]
    assert one.queue.stages() == {}


@pytest.mark.parametrize("text", ["", "v2\n{}\n7"])
def test_a_batch_of_which_nothing_is_said_is_refused(play: Play, text: str) -> None:
    staged = play.stage("a")
    if text:
        (play.checkpoint / "offsets" / "0").write_text(text)
    with pytest.raises(Invalid, match="offsets/0 is not there, or none that is known"):
        play.commit(0, staged)
    assert play.seen() == []


def test_a_zombie_drops_nothing_of_its_successor(play: Play) -> None:
    """It repeats a batch, while the one that took over has staged the next."""
    play.run(0, read([0], [5]), "a")
    waiting = play.stage("b")
    play.run(0, read([0], [5]), "a")
    play.offsets(1, read([5], [7]))
    play.commit(1, waiting)
    assert play.seen() == ["a", "b"]


def test_what_is_aborted_stays_for_a_commit_that_may_be_under_way(play: Play) -> None:
    staged = play.stage("a")
    play.offsets(0, read([0], [5]))
    play.writer().abort([staged, None], 0)
    play.commit(0, staged)
    assert play.seen() == ["a"]


def test_stages_that_have_gone_fail_the_batch(play: Play) -> None:
    staged = play.stage("a")
    for name in staged.stages:
        play.queue.drop_stage(name)
    play.offsets(0, read([0], [5]))
    with pytest.raises(NotFound, match="start the query again"):
        play.commit(0, staged)
    play.run(0, read([0], [5]), "a")
    assert play.seen() == ["a"]


def test_tasks_are_published_in_their_order(play: Play) -> None:
    staged = [play.stage(*(f"{task} {row}" for row in range(3))) for task in range(3)]
    play.offsets(0, read([0], [5]))
    play.commit(0, *staged)
    assert play.seen() == [f"{task} {row}" for task in range(3) for row in range(3)]


def test_groups_delays_and_priorities(shared: tuple[sync.Millrace, Path], tmp_path: Path) -> None:
    shared[0].queue("turns", order="group")
    play = Play(shared, tmp_path, "turns")
    delay = pa.array([None, None, timedelta(hours=1)], pa.duration("us"))
    rows = {"value": ["a1", "b1", "a2"], "group": ["a", "b", "a"], "delay": delay}
    play.offsets(0, read([0], [5]))
    play.commit(0, play.writer().write(iter([pa.record_batch(rows)])))
    assert [lease.body for lease in play.queue.lease(10)] == [b"a1", b"b1"]
    assert play.queue.explain(3).state == "delayed"


def test_options_of_the_query_itself_are_none_of_the_sink(play: Play) -> None:
    play.options["queryName"] = "copy"
    play.run(0, read([0], [5]), "a")
    assert play.seen() == ["a"]


def test_what_a_query_must_say(play: Play) -> None:
    for change, error, said in (
        ({"checkpointLocation": ""}, Invalid, "checkpointLocation is missing: name it as an"),
        ({"producer": "a b"}, Invalid, "producer 'a b' is no name"),
        ({"producer": "p" * (NAME_CHARS_MAX + 1)}, TooLarge, "which cursor it reads by is added"),
        ({"number": "3"}, Invalid, "number is told by the sources"),
        ({"producr": "p"}, Invalid, "did you mean 'producer'"),
        ({"patience": "x"}, Invalid, "patience is 'x', not a number of seconds"),
    ):
        with pytest.raises(error, match=said):
            StreamWriter({**play.options, **change}, SCHEMA, overwrite=False)
    with pytest.raises(Invalid, match="outputMode complete"):
        StreamWriter(play.options, SCHEMA, overwrite=True)
    (play.checkpoint / "metadata").unlink()
    with pytest.raises(Invalid, match="metadata is none of a checkpoint"):
        play.run(0, "7", "a")
