"""Many calls in one request: little is held at a time, and each is answered."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import millrace
from millrace import limits
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import engine_of
from millrace.core.commands import LeaseMessages
from millrace.core.model import Row, ShardId
from millrace.rpc.answers import ANSWERS
from millrace.rpc.calls import (
    CALLS,
    Call,
    Peek,
    Submit,
)
from millrace.rpc.codec import (
    ROWS,
    AnswerStatus,
    FrameWriter,
    read_answers,
)
from millrace.rpc.frames import Frame, FrameReader
from millrace.server.auth.access import Principal, parse_rule
from millrace.server.http.response import Buffer, Response, pieces_of
from millrace.server.rpc.call_session import RpcService
from millrace.server.rpc.http_calls import answer_calls
from tests.server.calls_site import served
from tests.server.rest.harness import SMALL

ROOT = Principal("root", (parse_rule("allow * */*"),))


def asked(*calls: Call) -> bytes:
    sheet = FrameWriter()
    for id_, call in enumerate(calls, 1):
        sheet.call(id_, call)
    return b"".join(sheet.take())


def answers(body: Buffer) -> dict[int, tuple[list[object], Frame]]:
    splitter = FrameReader(blob_bytes_max=2 * limits.WIRE_BLOB_BYTES_MAX)
    found = [(item, frame) for frame in splitter.feed(body) for item in read_answers(frame)]
    assert splitter.is_between
    assert len({item[0] for item, _ in found}) == len(found), "each is answered once"
    return {int(str(item[0])): (item, frame) for item, frame in found}


async def body_of(response: Response) -> bytes:
    if response.parts is None:
        return bytes(response.body)
    return b"".join([bytes(piece) async for part in response.parts for piece in pieces_of(part)])


def test_questions_of_one_request_are_answered_one_by_one_as_the_answers_are_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peek, peeked = EmbeddedEngine.peek, Counter[str]()

    async def count(
        engine: EmbeddedEngine, shard: ShardId, after: int, upto: int | None, most: int
    ) -> list[Row]:
        peeked["peek"] += 1
        return await peek(engine, shard, after, upto, most)

    monkeypatch.setattr(EmbeddedEngine, "peek", count)

    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            queue = await m.queue("orders")
            bodies = [bytes([at]) * 100_001 for at in range(4)]
            await queue.publish_many(bodies)
            shard = queue.shards.first
            many = [Peek(shard, 0, None, 100)] * 50
            body = asked(*many, Submit(shard, 0, LeaseMessages(1, 1000)))
            assert len(body) < 2_000
            response = await answer_calls(RpcService(engine_of(m)), ROOT, body, now_ms=0)
            assert response.parts is not None
            assert not peeked
            parts, sent = [], []
            async for part in response.parts:
                parts.append(part)
                sent += [bytes(piece) for piece in pieces_of(part)]
                assert peeked["peek"] == len(parts) - 1
            found = answers(b"".join(sent))
            assert found.keys() == set(range(1, 52))
            for id_ in range(1, 51):
                item, frame = found[id_]
                rows = CALLS[Peek].answer.unpack(item[2], "answer", frame.blobs)
                assert isinstance(rows, list)
                assert [bytes(row.body) for row in rows] == bodies
            assert found[51][0][1] == AnswerStatus.WITH_ROWS

    asyncio.run(main())


def test_messages_go_with_their_lease_calls_only_while_little_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WIRE_UNSENT_BYTES_MAX", 500_000)

    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            queue = await m.queue("orders")
            await queue.publish_many([b"x" * 100_000] * 20)
            many = [Submit(queue.shards.first, 0, LeaseMessages(2, 60_000))] * 10
            service = RpcService(engine_of(m))
            response = await answer_calls(service, ROOT, asked(*many), now_ms=0)
            body = await body_of(response)
            assert len(body) < 1_200_000
            found = answers(body)
            assert len(found) == 10
            given = 0
            for item, frame in found.values():
                leased = ANSWERS.unpack(item[2], "answer", frame.blobs)
                given += len(leased.seqs)  # type: ignore[attr-defined]
                if item[1] == AnswerStatus.WITH_ROWS:
                    assert len(ROWS.unpack(item[3], "rows", frame.blobs)) == 2
            assert given == 20
            assert {item[1] for item, _ in found.values()} == {
                AnswerStatus.DONE,
                AnswerStatus.WITH_ROWS,
            }

    asyncio.run(main())


def test_many_questions_at_once_are_all_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            millrace.open(tmp_path, settings=SMALL) as m,
            served(engine_of(m)) as url,
            millrace.connect(url, token="token") as far,
        ):
            queue = await far.queue("orders")
            await queue.publish_many([b"x" * 50_000] * 10)
            found = await asyncio.gather(*(queue.peek(10) for _ in range(40)))
            assert [len(rows) for rows in found] == [10] * 40
            assert {row.body for rows in found for row in rows} == {b"x" * 50_000}

    asyncio.run(main())
