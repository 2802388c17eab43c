"""Every parser that takes bytes from outside: it takes them or refuses them, and nothing else."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import get_args

import msgspec
import pytest

from millrace.client.connecting import connect
from millrace.client.position import Position
from millrace.client.snapshot_token import _decoded
from millrace.core.commands import Command, LeaseMessages
from millrace.core.format.receipt import Receipt, seal, unseal
from millrace.core.model import CursorPosition as Place
from millrace.core.model import History, LeaseId, Seq, ShardId
from millrace.errors import Forged, Invalid, MillraceError, Refused
from millrace.rpc.calls import Submit
from millrace.rpc.codec import FrameWriter, read_answers, read_calls
from millrace.rpc.frames import FrameReader
from millrace.rpc.http_connection import HttpConnection
from millrace.rpc.http_transport import _answered
from millrace.rpc.transport import ConnectionLost
from millrace.server.auth import records
from millrace.server.auth.access import judge, make_token, parse_rule
from millrace.server.auth.authenticator import credentials, is_own
from millrace.server.aws.fault import Fault
from millrace.server.aws.query_protocol import read_fields, read_form, tree_of
from millrace.server.aws.sigv4 import (
    read_signed,
    see_signature,
    see_time,
    signature_of,
    signing_key,
)
from millrace.server.cassieq.signature import (
    SignedRights,
    is_same,
    read_rights,
    read_time,
    request_text,
    write_rights,
    write_time,
)
from millrace.server.http.listener import parse_address
from millrace.server.http.parser import BadRequest, Request, RequestParser
from millrace.server.process import server_settings
from millrace.server.process.tls import validity_of
from millrace.server.rest.events import _position_in
from millrace.server.sns.actions import SNS
from millrace.server.sqs.actions import SQS
from tests.fuzz.mutate import SEED, pieces, spoiled, text
from tests.rpc.samples import COMMANDS, SHARD

REQUESTS = [
    b"POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nContent-Length: 5\r\n\r\nhello",
    b"PUT /y HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;e=1\r\nabc\r\n0\r\nT: t\r\n\r\n",
    b"GET http://h/z HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab",
]


def _request(data: bytes) -> None:
    parser = RequestParser(_admit, body_bytes_max=1000)
    random = Random(len(data))
    try:
        for piece in pieces(data, random):
            for request in parser.feed(piece):
                assert request.method
                assert len(request.body) <= 1000
    except BadRequest:
        return


def _admit(request: Request, length: int | None) -> None:
    assert length is None or length <= 1000


def _frames() -> list[bytes]:
    made: list[bytes] = []
    for command in COMMANDS:
        assert isinstance(command, get_args(Command))
        sheet = FrameWriter()
        sheet.call(3, Submit(SHARD, 0, command))
        made.append(b"".join(sheet.take()))
    return made


def _calls(data: bytes) -> None:
    splitter = FrameReader()
    try:
        for frame in splitter.feed(data):
            for _, call in read_calls(frame):
                assert call is not None
    except Refused:
        return


def _answers() -> list[bytes]:
    sheet = FrameWriter()
    sheet.failed(1, Invalid("no", field="x", limit=3))
    return [b"".join(sheet.take()), *_frames()]


def _answer(data: bytes) -> None:
    """What a server says that is none of ours, or was changed on its way."""
    call = Submit(SHARD, 0, LeaseMessages(1, 1))
    try:
        for frame in FrameReader().feed(data):
            for item in read_answers(frame):
                _answered(call, item, frame)
    except MillraceError:
        return


HEADS = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nmillrace-now: 17\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 401 No\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
]


def _head(data: bytes) -> None:
    async def main() -> None:
        server = await asyncio.start_server(
            lambda reader, writer: _say(writer, data), "127.0.0.1", 0
        )
        async with server:
            port = server.sockets[0].getsockname()[1]
            url = connect(f"http://127.0.0.1:{port}")._url
            connection = await HttpConnection.make(url, None)
            try:
                await connection.ask(b"GET / HTTP/1.1\r\n\r\n", [])
                async for piece in connection.body():
                    assert len(piece) <= len(data)
            except ConnectionLost:
                return
            finally:
                connection.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def _say(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    writer.close()


SECRET = bytes(32)
RECEIPT = seal(Receipt(ShardId(7), History(bytes(16)), Seq(3), LeaseId(9)), SECRET).encode()


def _receipt(data: bytes) -> None:
    try:
        found = unseal(text(data), SECRET)
    except Forged:
        return
    assert seal(found, SECRET) == text(data)


def _tickets() -> list[bytes]:
    part = [7, 3, bytes(16), 0, False, 5, 9, 0, 0]
    made = [
        msgspec.msgpack.encode([1, [part], "", 0]),
        msgspec.msgpack.encode([1, [part] * 3, "c", 4]),
    ]
    return [*made, *(urlsafe_b64encode(one).rstrip(b"=") for one in made)]


def _ticket(data: bytes) -> None:
    for given in (text(data), urlsafe_b64encode(data).rstrip(b"=").decode()):
        try:
            found = _decoded(given)
        except Invalid:
            continue
        assert found.version == 1


TOML = [
    b'listen = "127.0.0.1:0"\nstop_seconds = 3\n[queues.orders]\nmax_messages = 5\nkeyed = true\n',
    b'[users.ada]\nrules = ["allow publish default/*"]\nquota = { in_flight = 3 }\n'
    b'tokens = ["sha256:' + b"a" * 64 + b'"]\n[quota]\nrequests = 2.5\n',
    b'[topics.news]\nmax_lag = 9\nsubscribe = ["orders", { queue = "m", filter = { k = ["s"] } }]\n'
    b"[engine]\ndisk_low = 1_000\n",
]


def _settings(folder: Path) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        file = folder / "fuzz.toml"
        file.write_bytes(data)
        try:
            server_settings.load(file, {})
        except MillraceError:
            return

    return read


def _variables(data: bytes) -> None:
    name, _, value = text(data).replace("\0", "").partition("=")
    try:
        server_settings.load(None, {name: value}, {name.lower().removeprefix("millrace_"): value})
    except MillraceError:
        return


def _address(data: bytes) -> None:
    for given in (text(data), f"127.0.0.1:{text(data)}"):
        try:
            assert 0 <= parse_address(given, "listen").port <= 65_535
        except Invalid:
            continue
    try:
        connect(text(data))
    except Invalid:
        return


def _rule(data: bytes) -> None:
    try:
        rule = parse_rule(text(data))
    except Invalid:
        return
    assert parse_rule(str(rule)) == rule
    judge((rule,), "read", "default", "orders" * 10)


def _authorization(data: bytes) -> None:
    given = text(data)
    user, token = credentials(given)
    assert len(user) + len(token) <= len(given)
    is_own({"host": given, "origin": given, "sec-fetch-site": given})


def _record(data: bytes) -> None:
    key, _, body = data.partition(b"|")
    try:
        records.decode(text(key), body)
    except records.UndecodableRecord:
        return


PRESENT = Position(tuple((ShardId(shard), Place(bytes(16), 5, 5, 5)) for shard in (1, 2)))
"""Where a queue of two shards ends."""


def _event_id(data: bytes) -> None:
    try:
        found = _position_in(text(data), PRESENT)
    except Invalid:
        return
    assert text(data).startswith("pos1.") or max(found.seqs) <= 5
    for _, place in found.parts:
        assert 0 <= place.snapshot_start <= place.seq <= place.snapshot_end < 2**63


def _certificates() -> list[bytes]:
    file = Path(__file__).parent.parent / "server" / "authority.py"
    assert file.exists()
    from tests.server.authority import Authority

    folder = Path(os.environ.get("TMPDIR", "/tmp"))
    authority = Authority(folder, f"fuzz-{os.getpid()}")
    pem = authority.path.read_bytes()
    authority.path.unlink()
    return [urlsafe_b64decode(b"".join(pem.splitlines()[1:-1]).translate(_URL))]


_URL = bytes.maketrans(b"+/", b"-_")


def _certificate(data: bytes) -> None:
    try:
        begins, ends = validity_of(data)
    except ValueError:
        return
    assert begins.tzinfo is ends.tzinfo


SIGNED = (
    b"AWS4-HMAC-SHA256 Credential=MRAK1/20261116/us-east-1/sqs/aws4_request, "
    b"SignedHeaders=content-type;host;x-amz-date, Signature=" + b"a" * 64
)
PRESIGNED = (
    b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=MRAK1%2F20261116%2Fus-east-1%2Fsqs%2F"
    b"aws4_request&X-Amz-Date=20261116T120000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&"
    b"X-Amz-Signature=" + b"b" * 64
)


def _signed(data: bytes) -> None:
    """Who signed, in a header or in the address, and whether it is so."""
    given = text(data)
    headers = {"x-amz-date": "20261116T120000Z", "host": "h", "content-type": given[:50]}
    for found, query in (({**headers, "authorization": given}, ""), (headers, given)):
        try:
            signed = read_signed(found, query)
            if signed is None:
                continue
            see_time(signed, 1_794_830_400)
            key = signing_key("secret", signed.stated.scope)
            expected = signature_of(signed, key, "POST", "/", query, found, data)
            see_signature(expected, signed)
        except Fault:
            continue
        raise AssertionError("nobody has signed this")


FORMS = [
    b"Action=SendMessageBatch&QueueUrl=http%3A%2F%2Fh%2F000000000000%2Fq&"
    b"SendMessageBatchRequestEntry.1.Id=a&SendMessageBatchRequestEntry.1.MessageBody=x+y&"
    b"SendMessageBatchRequestEntry.1.MessageAttribute.1.Name=n&"
    b"SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType=Binary&"
    b"SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.BinaryValue=AAE%3D",
    b"Action=ReceiveMessage&MaxNumberOfMessages=10&AttributeName.1=All&AttributeName.2=SenderId",
    b"Action=CreateQueue&QueueName=q&Attribute.1.Name=DelaySeconds&Attribute.1.Value=5&Tag.1.Key=a",
    b"Action=Subscribe&TopicArn=a&Protocol=sqs&Attributes.entry.1.key=k&Attributes.entry.1.value=v",
]


def _form(data: bytes) -> None:
    """Read as every action would read it."""
    try:
        tree = tree_of(read_fields(text(data)))
    except Fault:
        return
    for service in (SQS, SNS):
        for action in service.actions.values():
            try:
                read_form(tree, action.takes, service.named, action.name)
            except (Fault, msgspec.ValidationError):
                continue


CALLS = [
    b'{"QueueUrl":"http://h/000000000000/q","Entries":[{"Id":"a","MessageBody":"x",'
    b'"MessageAttributes":{"n":{"DataType":"Binary","BinaryValue":"AAE="}}}]}',
    b'{"QueueName":"q","Attributes":{"DelaySeconds":"5"},"tags":{"a":"b"}}',
    b'{"QueueUrl":"u","MaxNumberOfMessages":10,"WaitTimeSeconds":0,"AttributeNames":["All"]}',
]


def _call(data: bytes) -> None:
    """As every action would read it."""
    for action in SQS.actions.values():
        try:
            action.decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue


TOKEN = make_token(bytes(32)).encode()
CASSIEQ_KEY = "a" * 40


def _cassieq(data: bytes) -> None:
    given = text(data)
    time = read_time(given)
    if time is not None:
        assert read_time(write_time(time)) == time
        assert request_text("acme", "GET", given, time)
    found = read_rights(given)
    if found is None:
        return
    rights, signature = found
    assert set(rights.letters) <= set("rpuagcd")
    written = write_rights("acme", rights, CASSIEQ_KEY)
    again = read_rights(written)
    assert again is not None
    assert again[0] == rights
    assert is_same(signature, again[1]) == (signature == again[1])


def _addresses() -> list[bytes]:
    time = read_time("2026-01-31T12:00:00Z")
    rights = SignedRights("rpuagcd", time, time, "jobs")
    return [
        write_rights("acme", rights, CASSIEQ_KEY).encode(),
        b"auth=r&st=2026-01-31T12:00:00+01:00&sig=x&popReceipt=y",
        b"2026-01-31T12:00:00.123Z",
    ]


PARSERS: dict[str, tuple[Callable[[bytes], None], list[bytes], int]] = {
    "requests": (_request, REQUESTS, 1500),
    "calls": (_calls, _frames(), 3000),
    "answers": (_answer, _answers(), 1000),
    "heads": (_head, HEADS, 100),
    "receipts": (_receipt, [RECEIPT], 500),
    "tickets": (_ticket, _tickets(), 1000),
    "variables": (_variables, [b"MILLRACE_STOP_SECONDS=3", b"MILLRACE_LISTEN=[::1]:0;x:1"], 300),
    "addresses": (_address, [b"127.0.0.1:7070", b"[::1]:0", b"https://a.example:8080/x"], 500),
    "rules": (_rule, [b"allow publish,work default/orders-*", b"deny * */*-old"], 500),
    "authorization": (
        _authorization,
        [b"Bearer " + TOKEN, b"Basic " + b64encode(b"ada:" + TOKEN), b"localhost:80", b"[::1]:80"],
        500,
    ),
    "records": (
        _record,
        [
            b'user/ada|{"rules":["allow read */*"],"quota":{"pins":2},"id":"00"}',
            b"token/" + b"a" * 64 + b'|{"user":"ada","name":"x","made_ms":1,"of":"00"}',
            b'made/queues/default/orders|{"user":"ada"}',
        ],
        500,
    ),
    "cassieq": (_cassieq, _addresses(), 500),
    "signatures": (_signed, [SIGNED, PRESIGNED], 1000),
    "forms": (_form, FORMS, 200),
    "calls in JSON": (_call, CALLS, 200),
    "event ids": (_event_id, [b"3,4", b"0", b"5,5", str(PRESENT).encode()], 300),
}


@pytest.mark.parametrize("name", PARSERS)
def test_anything_is_taken_or_refused(name: str) -> None:
    parse, corpus, short = PARSERS[name]
    for data in spoiled(name, corpus, short):
        try:
            parse(data)
        except BaseException:
            print(f"SEED={SEED}: {name}: {data[:2000]!r}")
            raise


def test_any_settings_are_taken_or_refused(tmp_path: Path) -> None:
    parse = _settings(tmp_path)
    for data in spoiled("settings", TOML, 300):
        try:
            parse(data)
        except BaseException:
            print(f"SEED={SEED}: {data[:2000]!r}")
            raise


def test_any_certificate_is_read_or_refused() -> None:
    for data in spoiled("certificates", _certificates(), 500):
        try:
            _certificate(data)
        except BaseException:
            print(f"SEED={SEED}: {data.hex()}")
            raise
