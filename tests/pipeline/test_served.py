"""Pipelines of a server's queues: over HTTP."""

from __future__ import annotations

from pathlib import Path

import msgspec

from millrace import sync
from millrace.pipeline import Run, Setting, Where, pipeline_status, run_pipeline, verify_pipeline
from tests.pipeline.scene import ledger_at, plain
from tests.server.process import Process


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
