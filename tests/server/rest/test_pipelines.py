"""Pipelines over REST: what their runs have written down, for those who see the queue."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from millrace.pipeline.record import Record, SinkRecord
from millrace.server.rest.pipelines import Pipelines
from millrace.sinks.boundary import Boundary, Place
from tests.server.rest.harness import served


def test_pipelines_are_shown_to_those_who_see_their_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            assert (await server.ask("GET", "/v1/pipelines")).json == {"pipelines": []}
            tea = await server.millrace.queue("tea", space="shop")
            await tea.publish_many([b"a", b"b", b"c"])
            shards = tuple(int(shard) for shard in tea.shards.ids)
            here = Boundary((Place("shop", "tea", shards, "00", (1,)),))
            gone = Boundary((Place("shop", "tea", (999,), "00", (1,)),))
            sinks = (
                SinkRecord(name="lake", kind="delta", rows="parsed", boundary=here),
                SinkRecord(name="cache", kind="redis"),
                SinkRecord(name="old", kind="redis", boundary=gone),
            )
            record = Record(pipeline="tea", space="shop", queue="tea", state="running", sinks=sinks)
            book = await server.millrace.queue(
                "pipelines", space="millrace", keyed=True, retention="log"
            )
            await book.publish(msgspec.json.encode(record), key="tea")
            await book.publish(b"no record", key="other")
            answer = await server.ask("GET", "/v1/pipelines")
            [found] = msgspec.json.decode(answer.body, type=Pipelines).pipelines
            assert (found.name, found.state) == ("tea", "running")
            assert [(one.name, one.seqs, one.lag) for one in found.sinks] == [
                ("lake", [1], 2),
                ("cache", None, 3),
                ("old", [1], None),
            ]
            answer = await server.ask("GET", "/v1/pipelines", role="nobody")
            assert (answer.status, answer.json) == (200, {"pipelines": []})

    asyncio.run(main())
