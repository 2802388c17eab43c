"""Spoiled requests to a server: it answers or cuts off, makes no mistake, and holds nothing after.

Heads, addresses, JSON, lines of JSON, Arrow, frames of calls, receipts, tickets, ids of events and
of messages.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple, get_args

import msgspec
import pyarrow as pa
import pytest

from millrace.core.commands import Command
from millrace.rpc.calls import (
    Call,
    FindQueue,
    ListQueues,
    Submit,
)
from millrace.rpc.codec import FrameWriter
from tests.fuzz.mutate import SEED, mutated, rounds
from tests.rpc.samples import COMMANDS, SHARD
from tests.server.rest.harness import Answer, Served, served, until

SPACE = "/v1/spaces/default"
ORDERS = f"{SPACE}/queues/orders"


class Sample(NamedTuple):
    """A request that is good."""

    method: str
    target: str
    body: bytes = b""
    headers: bytes = b""

    def raw(self, target: bytes, body: bytes) -> bytes:
        head = b"%s %s HTTP/1.1\r\nhost: h\r\nauthorization: Bearer root\r\n" % (
            self.method.encode(),
            target,
        )
        return b"%s%scontent-length: %d\r\n\r\n%s" % (head, self.headers, len(body), body)


def _arrow() -> bytes:
    sink = io.BytesIO()
    pair = pa.struct([("name", pa.utf8()), ("value", pa.binary())])
    headers = pa.array([[{"name": "n", "value": b"v"}], None], pa.large_list(pair))
    table = pa.table(
        {
            "value": [b"a", b"b"],
            "key": [b"k", None],
            "headers": headers,
            "group": ["g", None],
            "priority": pa.array([None, 7], pa.uint8()),
            "delay": [0.5, None],
        }
    )
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _frames() -> Iterator[bytes]:
    made: list[Call] = [FindQueue("default", "orders"), ListQueues("default")]
    for command in COMMANDS:
        assert isinstance(command, get_args(Command))
        made.append(Submit(SHARD, 0, command))
    for call in made:
        sheet = FrameWriter()
        sheet.call(3, call)
        yield b"".join(sheet.take())


def _dynamiq(put: Answer) -> list[Sample]:
    """Requests to Dynamiq's routes, with the id of a message."""
    mail, known = "/v1/queues/mail", put.body.decode()
    settings = {"visibility_timeout": 2.5, "min_partitions": 2, "max_partitions": 9}
    more = {"max_partition_age": 60, "compressed_messages": True}
    return [
        Sample("PATCH", mail, msgspec.json.encode(settings | more)),
        Sample("PUT", "/v1/queues/fax", msgspec.json.encode(settings)),
        Sample("GET", mail),
        Sample("PUT", f"{mail}/message", b"\xffas it is"),
        Sample("GET", f"{mail}/messages/3"),
        Sample("GET", f"{mail}/message/{known}"),
        Sample("DELETE", f"{mail}/messages/{known},1,2"),
        Sample("DELETE", f"{mail}/message/{known}"),
        Sample("PUT", "/v1/topics/news/queues/mail"),
        Sample("PUT", "/v1/topics/news/message", b"to all"),
        Sample("DELETE", "/v1/topics/news/queues/mail"),
    ]


async def samples(server: Served) -> list[Sample]:
    """Good requests of every kind, with receipts and tickets of this server."""
    leased = await server.ask("POST", f"{ORDERS}/leases", {"count": 2, "seconds": 600})
    receipts = [one["receipt"] for one in leased.items("messages")]
    taken = await server.ask("POST", f"{ORDERS}/snapshots", {})
    ticket = taken.text("snapshot")
    opened = await server.ask("POST", f"{ORDERS}/sessions", {"credit": 1})
    await server.ask("PUT", f"{ORDERS}/cursors/c", {})

    def json(method: str, target: str, body: object) -> Sample:
        return Sample(
            method, target, msgspec.json.encode(body), b"content-type: application/json\r\n"
        )

    part = {"do": "publish", "queue": "orders", "body": "x", "producer": "p", "number": 3}
    parts = [part, {"do": "settle", "queue": "orders", "receipts": receipts}]
    message = {"body": "x", "key": "k", "headers": {"a": "b"}, "priority": 3, "delay": 0.5}
    return [
        json("POST", f"{ORDERS}/messages", {"messages": [message, {"body_base64": "AAEC"}]}),
        json("POST", f"{ORDERS}/leases", {"count": 1, "seconds": 1, "wait": 0, "attempt": "a"}),
        json("POST", f"{ORDERS}/extend", {"receipts": receipts, "seconds": 3}),
        json("POST", f"{ORDERS}/release", {"receipts": receipts, "delay": 1.5}),
        json("POST", f"{ORDERS}/replace", {"receipt": receipts[0], "body": "y"}),
        json("POST", f"{SPACE}/transactions", {"parts": parts}),
        json("POST", f"{ORDERS}/cursors/c/next", {"wait": 0, "read": ticket}),
        json("POST", f"{ORDERS}/cursors/c/commit", {"snapshot": ticket, "seq": 1}),
        json("PUT", f"{SPACE}/queues/other", {"max_failures": 3, "dead_letter": "orders"}),
        json(
            "PUT",
            f"{SPACE}/topics/news/subscriptions/orders",
            {"queue": "orders", "filter": {"kind": ["sale", {"prefix": "x"}]}},
        ),
        json("POST", f"{ORDERS}/sessions", {"credit": 3, "resume": opened.text("session")}),
        json("POST", f"{ORDERS}/sessions/{opened.text('session')}/receive", {"count": 1}),
        Sample(
            "POST",
            f"{ORDERS}/messages?producer=p&number=1",
            b'{"body":"a"}\n{"body":"b","key":"k"}\n',
            b"content-type: application/x-ndjson\r\n",
        ),
        Sample(
            "POST",
            f"{ORDERS}/messages",
            _arrow(),
            b"content-type: application/vnd.apache.arrow.stream\r\n",
        ),
        Sample(
            "POST",
            f"{ORDERS}/messages?key=k&ttl=3",
            b"as it is",
            b"content-type: application/octet-stream\r\n",
        ),
        Sample("GET", f"{ORDERS}/snapshots/{ticket}?after=0&count=5"),
        Sample(
            "GET",
            f"{ORDERS}/rows?after=1&upto=9&shard=0",
            headers=b"accept: application/vnd.apache.arrow.stream\r\n",
        ),
        Sample("GET", f"{ORDERS}/messages?after=1&count=3"),
        Sample("GET", f"{ORDERS}/events?after=1", headers=b"last-event-id: 2\r\n"),
        Sample("GET", f"{SPACE}/stats/events?every=60"),
        *_dynamiq(await server.ask("PUT", "/v1/queues/mail/message", b"x")),
        Sample("HEAD", f"{ORDERS}/messages/1"),
        Sample("GET", "/metrics", headers=b"traceparent: 00-" + b"a" * 32 + b"-b-01\r\n"),
        *(
            Sample("POST", "/v1/calls", frame, b"content-type: application/vnd.millrace.calls\r\n")
            for frame in _frames()
        ),
    ]


def spoil(sample: Sample, bodies: list[bytes], targets: list[bytes], random: Random) -> bytes:
    """The request with a spoiled body, a spoiled address, or spoiled anywhere."""
    target = sample.target.encode()
    match random.randrange(4):
        case 0 | 1 if sample.body:
            return sample.raw(target, mutated(sample.body, bodies, random))
        case 2:
            given = mutated(target, targets, random)
            return sample.raw(b"/" + given.translate(None, b" \r\n\0"), sample.body)
        case _:
            return mutated(sample.raw(target, sample.body), bodies, random)


async def send(port: int, data: bytes) -> bytes:
    """What is answered first; nothing, if the rest is waited for."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        with suppress(TimeoutError, ConnectionResetError, BrokenPipeError):
            async with asyncio.timeout(0.25):
                return await reader.read(4096)
        return b""
    finally:
        writer.transport.abort()


def test_a_server_makes_no_mistake_whatever_it_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        failed: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: failed.append(context))
        random = Random(f"{SEED}/server")
        async with served(tmp_path) as server:
            await server.millrace.topic("news")
            await server.millrace.queue("mail", delivery="partitions")
            await (await server.millrace.find("orders")).publish_many([b"x"] * 20)
            good = await samples(server)
            bodies = [sample.body for sample in good if sample.body]
            targets = [sample.target.encode() for sample in good]
            for begin in range(0, rounds(320), 16):
                sent = [
                    spoil(random.choice(good), bodies, targets, random)
                    for _ in range(begin, begin + 16)
                ]
                answers = await asyncio.gather(*(send(server.port, data) for data in sent))
                for data, answer in zip(sent, answers, strict=True):
                    is_fine = answer[9:12] != b"500" and answer[:9] in (b"HTTP/1.1 ", b"")
                    assert is_fine, (SEED, data[:3000], answer)
                assert not failed, (SEED, failed, sent)
                assert not caplog.records, (SEED, caplog.text, sent)
            site = server.app.site
            await until(lambda: not site.connections)
            assert (site.bodies.size, server.app.streams.taken) == (0, 0)
            assert (await server.ask("GET", "/v1/spaces/default/queues")).status == 200

    caplog.set_level(logging.ERROR)
    asyncio.run(main())
