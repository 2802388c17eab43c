"""The worst requests that are known: each one stalled, filled or ended a server once.

Each attack speaks to the server as the tenant `mallory`, on connections of its own, reads what is
answered within a bounded time, and returns. What the server answers is not judged here: refusals
and closed connections are fine. Names of the findings are those of the tests `test_sec_07_…`.
"""

from __future__ import annotations

import io
import json
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from millrace import limits

SPACE = "/v1/spaces/mallory"
QUEUE = f"{SPACE}/queues/box"
SHARDED = f"{SPACE}/queues/shards"
TOPIC = f"{SPACE}/topics/talk"

QUEUES: dict[str, dict[str, object]] = {
    QUEUE: {},
    SHARDED: {"shards": 2, "keyed": True},
    f"{SPACE}/queues/groups": {"order": "group"},
    f"{SPACE}/queues/ids": {"dedup": 300},
    f"{SPACE}/queues/bodies": {"dedup": 300, "dedup_by_body": True},
    f"{SPACE}/queues/controls": {},
}

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
CALLS = "application/vnd.millrace.calls"
BYTES = "application/octet-stream"
FORM = "application/x-www-form-urlencoded"

ANSWER_SECONDS_MAX = 30.0

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and the token of the tenant that attacks it."""

    port: int
    token: str
    scale: float = 1.0
    """The share of the usual size that each attack has."""

    def connect(self) -> socket.socket:
        """Return a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_SECONDS_MAX)

    def head(
        self, method: str, path: str, kind: str, length: int, token: str | None = None
    ) -> bytes:
        """Return the head of a request."""
        return (
            f"{method} {path} HTTP/1.1\r\nhost: here\r\n"
            f"authorization: Bearer {token or self.token}\r\n"
            f"content-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        ).encode()

    def send(self, method: str, path: str, body: bytes, kind: str = "application/json") -> int:
        """Send a request, and return the status, or 0 if the connection was closed."""
        with self.connect() as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(self.head(method, path, kind, len(body)))
                connection.sendall(body)
            with suppress(ConnectionResetError, TimeoutError):
                answer = connection.recv(65_536)
                return int(answer[9:12]) if len(answer) >= 12 else 0
        return 0


Attack = Callable[[Target], None]


def prepare(target: Target) -> None:
    """Make the queues and the topic that the attacks use."""
    for path, spec in QUEUES.items():
        status = target.send("PUT", path, json.dumps(spec).encode())
        assert status in (200, 201), (path, status)
    assert target.send("PUT", TOPIC, b"{}") in (200, 201)


# --- Memory ---------------------------------------------------------------------------------------


def small_lists(target: Target) -> None:
    """SEC-30: frames of calls whose heads are millions of empty lists."""
    count = int(4 * MIB) - 16
    head = b"\xdd" + struct.pack(">I", count) + b"\x90" * count
    head += b"\xc0" * (-len(head) % 8)
    frame = struct.pack("<II", len(head), 0) + head
    target.send("POST", "/v1/calls", frame * max(1, int(6 * target.scale)), CALLS)


def pipelined(target: Target) -> None:
    """SEC-7: tens of thousands of requests of a stranger, whose answers nobody reads."""
    requests = b"GET / HTTP/1.1\r\nHost:a\r\n\r\n" * 10_000
    with ExitStack() as stack:
        for _ in range(max(2, int(40 * target.scale))):
            connection = stack.enter_context(target.connect())
            connection.settimeout(0.2)
            with suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                connection.sendall(requests)


def unproved_bodies(target: Target) -> None:
    """SEC-11: large bodies of unknown users that never end."""
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(target.connect())
            connection.settimeout(0.2)
            head = target.head("POST", f"{QUEUE}/messages", NDJSON, 64 * MIB, "not-a-token")
            with suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                connection.sendall(head + b"x" * MIB)


def unread_answers(target: Target) -> None:
    """Large answers that nobody takes in."""
    body = b"\n".join([b'{"body":"%s"}' % (b"y" * 1000)] * 2000)
    target.send("POST", f"{QUEUE}/messages", body, NDJSON)
    with ExitStack() as stack:
        for _ in range(max(2, int(16 * target.scale))):
            connection = stack.enter_context(target.connect())
            connection.sendall(target.head("GET", f"{QUEUE}/rows?after=0", "text/plain", 0))


# --- Arrow ----------------------------------------------------------------------------------------


def _stream(table: pa.Table, compression: Literal["zstd"] | None = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def null_column(target: Target) -> None:
    """SEC-5: a column of type null takes no bytes, however many rows it has."""
    rows = int(100_000_000 * target.scale)
    target.send("POST", f"{QUEUE}/messages", _stream(pa.table({"value": pa.nulls(rows)})), ARROW)


def compressed(target: Target) -> None:
    """SEC-5: a compressed body of many zeros."""
    value = pa.array([bytes(MIB)] * max(8, int(256 * target.scale)))
    target.send("POST", f"{QUEUE}/messages", _stream(pa.table({"value": value}), "zstd"), ARROW)


def list_views(target: Target) -> None:
    """SEC-1, SEC-2: offsets of headers that fall, to a queue with one shard and with two."""
    pair = pa.struct([("name", pa.string()), ("value", pa.binary())])
    offsets = pa.array([0, -3, 0], pa.int32())
    sizes = pa.array([0, 3, 0], pa.int32())
    pairs = pa.array([{"name": "a", "value": b"b"}] * 3, pair)
    views = pa.ListViewArray.from_arrays(offsets, sizes, pairs)  # type: ignore[call-overload]
    keys = pa.array([b"a", b"b", b"c"])
    table = pa.table({"value": keys, "key": keys, "headers": views})
    for path in (QUEUE, SHARDED):
        target.send("POST", f"{path}/messages", _stream(table), ARROW)


def _poison(offsets: list[int]) -> bytes:
    """A stream whose offsets of headers are spoiled after it was written."""
    pair = pa.struct([("name", pa.string()), ("value", pa.binary())])
    pairs = pa.array([{"name": "a", "value": b"b"}] * 3, pair)
    good = pa.array([0, 1, 2, 3], pa.int32())
    headers = pa.ListArray.from_arrays(good, pairs)
    keys = pa.array([b"a", b"b", b"c"])
    made = _stream(pa.table({"value": keys, "key": keys, "headers": headers}))
    written, spoiled = (struct.pack("<4i", *one) for one in ([0, 1, 2, 3], offsets))
    return made.replace(written, spoiled)


def falling_offsets(target: Target) -> None:
    """SEC-1: plain lists whose offsets fall, are negative or lie outside."""
    for offsets in ([0, -3, 0, 3], [0, 2, 1, 3], [0, 1, 2, 1 << 30], [3, 2, 1, 0]):
        for path in (QUEUE, SHARDED):
            target.send("POST", f"{path}/messages", _poison(offsets), ARROW)


# --- Time -----------------------------------------------------------------------------------------


def newlines(target: Target) -> None:
    """SEC-8: lines of JSON that are all empty."""
    target.send("POST", f"{QUEUE}/messages", b"\n" * int(32 * MIB * target.scale), NDJSON)


def many_messages(target: Target) -> None:
    """SEC-8: one object of JSON with millions of messages."""
    count = int(1_000_000 * target.scale)
    body = b'{"messages":[' + b",".join([b'{"body":""}'] * count) + b"]}"
    target.send("POST", f"{QUEUE}/messages", body)


def many_lines(target: Target) -> None:
    """SEC-8: a bulk of very many small messages."""
    body = b'{"body":""}\n' * int(1_000_000 * target.scale)
    target.send("POST", f"{QUEUE}/messages", body, NDJSON)


def many_headers(target: Target) -> None:
    """SEC-8: one message with very many headers."""
    count = int(1_000_000 * target.scale)
    pairs = b",".join(b'"%d":"v"' % number for number in range(count))
    target.send("POST", f"{QUEUE}/messages", b'{"body":"x","headers":{' + pairs + b"}}")


def filter_work(target: Target) -> None:
    """SEC-3: hundreds of wildcard tests against hundreds of thousands of values."""
    tests = [{"wildcard": f"*{number}*x*"} for number in range(200)]
    subscription = {"queue": "box", "filter": {"$body": {"a": tests}}}
    target.send("PUT", f"{TOPIC}/subscriptions/box", json.dumps(subscription).encode())
    count = int(200_000 * target.scale)
    body = json.dumps({"a": ["b"] * count})
    target.send("POST", f"{TOPIC}/messages", body.encode(), "application/octet-stream")


def bulks(target: Target) -> None:
    """Bulks as fast as they are taken, one after the other."""
    line = b'{"body":"%s"}\n' % (b"z" * 10_000)
    for _ in range(10):
        target.send("POST", f"{QUEUE}/messages", line * 90, NDJSON)


def _own(target: Target, name: str, line: str) -> None:
    """Publish as many messages as one command may have, each with a value of its own.

    They are small, and as many at each scale: a step that is too long is so by their number.
    """
    lines = [line % number for number in range(limits.PUBLISH_MESSAGES_MAX)]
    for count in (len(lines), limits.PUBLISH_OWN_VALUES_MAX):
        body = "\n".join(lines[:count]).encode()
        target.send("POST", f"{SPACE}/queues/{name}/messages", body, NDJSON)


def own_groups(target: Target) -> None:
    """SEC-8: a group for each message."""
    _own(target, "groups", '{"body":"","group":"%d"}')


def own_keys(target: Target) -> None:
    """SEC-8: a key for each message, which is its group."""
    _own(target, "groups", '{"body":"","key":"%d"}')


def own_ids(target: Target) -> None:
    """SEC-8: a de-duplication id for each message."""
    _own(target, "ids", '{"body":"","dedup":"%d"}')


def own_bodies(target: Target) -> None:
    """SEC-8: messages that have their bodies for ids."""
    _own(target, "bodies", '{"body":"%d"}')


def own_delays(target: Target) -> None:
    """SEC-8: a delay for each message."""
    _own(target, "box", '{"body":"","delay":1%05d}')


def own_ttls(target: Target) -> None:
    """SEC-8: a time to live for each message."""
    _own(target, "box", '{"body":"","ttl":1%05d}')


def control_characters(target: Target) -> None:
    """SEC-8: an answer whose JSON has six bytes for each one that was published."""
    path = f"{SPACE}/queues/controls/messages"
    for _ in range(4):
        target.send("POST", path, b"\x01" * int(16 * MIB * target.scale), BYTES)
    with target.connect() as connection:
        connection.sendall(target.head("GET", f"{path}?count=10000", "text/plain", 0))
        left = int(4 * 6 * 16 * MIB * target.scale)
        with suppress(ConnectionResetError, TimeoutError):
            while left > 0 and (piece := connection.recv(MIB)):
                left -= len(piece)


def escaped_form(target: Target) -> None:
    """SEC-8: a form of SQS of nothing but escapes."""
    size = limits.AWS_ESCAPES_MAX * limits.SQS_MESSAGE_BYTES_MAX
    body = b"Action=SendMessage&MessageBody=" + b"%01" * (size // 3)
    target.send("POST", "/", body, FORM)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        small_lists,
        pipelined,
        unproved_bodies,
        unread_answers,
        null_column,
        compressed,
        list_views,
        falling_offsets,
        newlines,
        many_messages,
        many_lines,
        many_headers,
        filter_work,
        own_groups,
        own_keys,
        own_ids,
        own_bodies,
        own_delays,
        own_ttls,
        control_characters,
        escaped_form,
        bulks,
    )
}
