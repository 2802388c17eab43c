"""Pipelines of a server's queues: over HTTP."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from millrace import limits, sync
from millrace.errors import Retry
from millrace.pipeline import (
    Progress,
    Run,
    Setting,
    Step,
    Where,
    pipeline_status,
    run_pipeline,
    verify_pipeline,
)
from tests.pipeline.scene import ledger_at, plain
from tests.server.server_process import Process


@pytest.mark.process
def test_queues_of_a_server_are_carried(tmp_path: Path) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    pipeline = msgspec.structs.replace(plain(declared, limit=2), run=Run(patience=0.2))
    with Process(tmp_path / "data", "--segment-bytes", 4 * 1024 * 1024) as server:
        where = Where(url=server.address, token=server.token)
        setting = Setting(where=where)
        with sync.connect(where.url, token=where.token) as m:
            queue = m.queue("orders", shards=2, retention="log")
            queue.publish_many([b"a", b"b", b"c", b"d", b"e"])
        run_pipeline(pipeline, setting, once=True)
        assert sorted(str(line["value"]) for line in ledger.lines()) == ["a", "b", "c", "d", "e"]
        assert [one.is_right for one in verify_pipeline(pipeline, setting)] == [True]
        [sink] = pipeline_status(pipeline, setting).sinks
        assert sink.lag is not None
        assert sink.lag.rows == 0
        assert server.token not in repr(where)


@pytest.mark.long
def test_a_server_that_goes_away_is_what_the_run_ends_with(tmp_path: Path) -> None:
    declared, ledger = ledger_at(tmp_path, "one")
    pipeline = msgspec.structs.replace(plain(declared, limit=1), run=Run(patience=0.2))
    with Process(tmp_path / "data", "--segment-bytes", 4 * 1024 * 1024) as server:
        setting = Setting(where=Where(url=server.address, token=server.token))
        with sync.connect(server.address, token=server.token) as m:
            m.queue("orders", retention="log").publish_many([b"a", b"b", b"c"])

        def tell(progress: Progress) -> None:
            if progress.lag == 1:
                server.kill()

        with pytest.raises(Retry, match="queue 'orders' did not answer"):
            run_pipeline(pipeline, setting, once=True, tell=tell)
    assert len(ledger.lines()) == 2


@pytest.mark.spark
@pytest.mark.parametrize("by_file", [True, False], ids=["file", "token"])
def test_executors_show_the_token(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, *, by_file: bool
) -> None:
    """They read and stage themselves, and know nothing of what the driver was given."""
    monkeypatch.setattr(limits, "PIPELINE_SMALL_ROWS", 2)
    declared, ledger = ledger_at(tmp_path, "one")
    step = Step(
        name="words",
        sql="SELECT seq, op, cast(value AS string) word FROM source",
        expect={"short": "length(word) < 4"},
        on_fail="dead_letter",
        dead_letter="bad",
    )
    sink = msgspec.structs.replace(declared, rows="words")
    pipeline = msgspec.structs.replace(plain(sink), steps=(step,))
    with (
        Process(tmp_path / "data", "--segment-bytes", 4 * 1024 * 1024) as server,
        sync.connect(server.address, token=server.token) as m,
    ):
        m.queue("orders", retention="log").publish_many([b"a", b"b", b"long", b"d", b"e"])
        setting = Setting(where=Where(url=server.address, token=server.token))
        if by_file:
            source = msgspec.structs.replace(
                pipeline.source, url=server.address, token_file=str(server.token_file)
            )
            pipeline = msgspec.structs.replace(pipeline, source=source)
            setting = Setting()
        for _ in range(2):  # another run is no change of the plan
            run_pipeline(pipeline, setting, once=True, spark=spark)
        assert sorted(str(line["word"]) for line in ledger.lines()) == ["a", "b", "d", "e"]
        assert [row.body for row in m.find("bad").peek(10)] == [b"long"]
