"""`spark.readStream`, as Spark runs it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from millrace import Message, sync
from tests.server.server_process import Process

pytestmark = pytest.mark.spark

Batches = list[list[tuple[int, int, str]]]


@pytest.fixture
def m(server: Process) -> Iterator[sync.Millrace]:
    with sync.connect(server.address, token=server.token) as found:
        yield found


class Query:
    """A stream of a queue, run until all was read, again and again."""

    def __init__(self, spark: SparkSession, server: Process, queue: str, folder: Path) -> None:
        self._spark, self._server, self._queue = spark, server, queue
        self.checkpoint = folder / "checkpoint"

    def reader(self, **options: object) -> DataStreamReader:
        found = self._spark.readStream.format("millrace").option("url", self._server.address)
        found = found.option("tokenFile", self._server.token_file).option("queue", self._queue)
        for name, value in options.items():
            found = found.option(name, str(value))
        return found

    def run(self, *, fails: bool = False, **options: object) -> Batches:
        """Shard, seq and op of each row, batch by batch; or of the one that fails."""
        batches: Batches = []

        def take(frame: DataFrame, _: int) -> None:
            rows = frame.select("shard", "seq", "op").collect()
            batches.append(sorted((row.shard, row.seq, row.op) for row in rows))
            if fails:
                raise ZeroDivisionError("the sink is down")

        query = (
            self.reader(**options)
            .load()
            .writeStream.option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(take)
            .start()
        )
        if not fails:
            query.awaitTermination()
            return batches
        with pytest.raises(StreamingQueryException, match="the sink is down"):
            query.awaitTermination()
        return batches

    def last_offset(self) -> dict[str, object]:
        """What the checkpoint holds of the newest batch."""
        folder = self.checkpoint / "offsets"
        newest = max(int(file.name) for file in folder.iterdir() if file.name.isdigit())
        return dict(json.loads((folder / str(newest)).read_text().splitlines()[-1]))


def test_limits_restarts_and_repeats(
    spark: SparkSession, server: Process, m: sync.Millrace, tmp_path: Path
) -> None:
    queue = m.queue("limits", shards=2, route="key", keyed=True)
    queue.publish_many([Message(b"x", key=b"%d" % at) for at in range(1000)])
    query = Query(spark, server, "limits", tmp_path)
    batches = query.run(cursor="lake", maxOffsetsPerTrigger=400, minPartitions=4)
    assert [len(batch) for batch in batches] == [400, 400, 200]
    read = [row for batch in batches for row in batch]
    assert len(set(read)) == 1000
    assert {shard for shard, _, _ in read} == {0, 1}
    assert sum(queue.cursors().values()) == 1000
    shown = server.ask("GET", "/v1/spaces/default/queues/limits/cursors/lake").json
    assert (shown["retain"], shown["lag"]) == (True, [0, 0])
    metrics = server.ask("GET", "/metrics").body.decode()
    for unit in ("rows", "bytes", "seconds"):
        assert re.search(
            f'^millrace_cursor_lag_{unit}{{.*queue="limits".*"lake".*}} 0', metrics, re.M
        )

    # Deletes are rows, and what is settled or replaced since is no part of a batch that is open.
    queue.publish_many([Message(None, key=b"%d" % at) for at in range(10)])
    [first] = query.run(cursor="lake", fails=True)
    assert [op for _, _, op in first] == ["delete"] * 10
    queue.publish_many([Message(b"y", key=b"%d" % at) for at in range(20)])
    while leases := queue.lease(1000):
        queue.settle(leases)
    again, new = query.run(cursor="lake")
    assert again == first
    assert [op for _, _, op in new] == ["put"] * 20

    # Without the checkpoint it goes on where the cursor is.
    shutil.rmtree(query.checkpoint)
    assert not any(query.run(cursor="lake"))
    queue.publish(b"z", key=b"new")
    assert [len(batch) for batch in query.run(cursor="lake")] == [1]


def test_a_cursor_of_its_own_is_kept_in_the_checkpoint(
    spark: SparkSession, server: Process, m: sync.Millrace, tmp_path: Path
) -> None:
    queue = m.queue("minted")
    queue.publish_many([b"x"] * 10)
    query = Query(spark, server, "minted", tmp_path)
    first = query.run(startingOffsets='{"0": 4}', fails=True)
    assert [len(batch) for batch in first] == [7]
    [name] = queue.cursors()
    assert query.last_offset()["cursor"] == name
    # The first batch is repeated: where it began is in its end.
    assert [len(batch) for batch in query.run(startingOffsets="latest")] == [7]
    assert list(queue.cursors()) == [name]


def test_errors_say_what_to_do(
    spark: SparkSession, server: Process, m: sync.Millrace, tmp_path: Path
) -> None:
    queue = m.queue("anew")
    queue.publish(b"x")
    query = Query(spark, server, "anew", tmp_path)
    query.run(cursor="lake")
    m.delete_queue("anew")
    m.queue("anew").publish(b"y")
    with pytest.raises(StreamingQueryException, match="was deleted and made anew"):
        query.run(cursor="lake")
    assert [len(batch) for batch in query.run(cursor="lake", failOnDataLoss=False)] == [1]
    # The snapshot of a batch that is open was let go.
    m.queue("anew").publish(b"z")
    query.run(cursor="lake", fails=True)
    ticket = query.last_offset()["ticket"]
    server.ask("DELETE", f"/v1/spaces/default/queues/anew/snapshots/{ticket}")
    with pytest.raises(StreamingQueryException, match="no longer pinned"):
        query.run(cursor="lake", failOnDataLoss=False)
