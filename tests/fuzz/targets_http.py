"""Bytes of strangers: requests of HTTP, bodies in JSON, signatures of AWS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from random import Random

from millrace import limits
from millrace.decoding import json_decoder
from millrace.errors import MillraceError
from millrace.server.http.parser import BadRequest, Request, RequestParser
from millrace.server.http.response import Response
from millrace.server.rest.bulk_publish import lines_in, messages_in
from millrace.server.rest.publish import PublishRead
from millrace.server.rest.transactions import TransactionAsk
from millrace.server.web.route import decode
from tests.fuzz.mutate import mutated, pieces
from tests.fuzz.test_parsers import CALLS, FORMS, PRESIGNED, REQUESTS, SIGNED, _call, _form, _signed

BODY_BYTES_MAX = 100_000
LARGE = b"PUT /large HTTP/1.1\r\nHost: h\r\nContent-Length: 70000\r\n\r\n" + bytes(70_000)
REFUSED = b"POST /secret HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
SMALL = b"GET / HTTP/1.1\r\nHost:a\r\n\r\n"
STREAMS = [*REQUESTS, LARGE, REFUSED, SMALL * 200, b"".join(REQUESTS[:2]) * 30]
Found = list[tuple[str, str, bytes]]


def _admit(request: Request, length: int | None) -> Response | None:
    return Response(401) if request.path == "/secret" else None


def _parsed(cut: Iterator[bytes]) -> tuple[Found, bool]:
    """The requests of a stream, however it is cut, and whether it was refused in the end."""
    parser = RequestParser(_admit, body_bytes_max=BODY_BYTES_MAX)
    found: Found = []
    beyond = limits.HTTP_STEP_BYTES // len(SMALL)
    try:
        for piece in cut:
            data = piece
            while data or parser.rest:
                requests = parser.feed(data)
                assert len(requests) <= limits.HTTP_AHEAD_MAX + beyond
                found += [(one.method, one.path, bytes(one.body)) for one in requests]
                data = b""
    except BadRequest:
        found += [(one.method, one.path, bytes(one.body)) for one in parser.last]
        return found, True
    finally:
        parser.close()
    return found, False


def fuzz_http(rng: Random) -> None:
    """A stream of requests is read in one way, however it is cut, or refused."""
    data = b"".join(rng.choice(STREAMS) for _ in range(rng.choice((1, 1, 2, 5))))
    data = mutated(data, STREAMS, rng) if rng.random() < 0.9 else data
    whole, is_refused = _parsed(iter([data]))
    cut, is_cut_refused = _parsed(pieces(data, rng))
    shorter = min(len(whole), len(cut))
    assert whole[:shorter] == cut[:shorter]
    if not is_refused and not is_cut_refused:
        assert whole == cut


_publish, _transaction = json_decoder(PublishRead), json_decoder(TransactionAsk)
BODIES = [
    b'{"messages":[{"body":"x","key":"k","headers":{"a":"b"}},{"body_base64":"AAEC","delay":1.5}]}',
    b'{"body":"x","producer":"p","number":3,"mode":"rising","priority":3,"ttl":9,"group":"g"}',
    b'{"parts":[{"do":"publish","queue":"q","messages":[{"body":null,"key":"k"}]},'
    b'{"do":"settle","queue":"q","receipts":["r"]}]}',
    b'{"body":"a"}\n{"body":"b","key":"k"}\n\n{"body_base64":"AAEC","headers":[["a","b"]]}\r\n' * 9,
    b'{"body":""}\n' * 2_000,
]


def fuzz_json(rng: Random) -> None:
    """Bodies in JSON become messages, or are refused; so in the forms of all actions of AWS."""
    data = mutated(rng.choice(BODIES), BODIES, rng)
    asyncio.run(_json(data))
    _call(mutated(rng.choice(CALLS), CALLS, rng))
    _form(mutated(rng.choice(FORMS), FORMS, rng))


async def _json(data: bytes) -> None:
    with suppress(MillraceError):
        told = decode(_publish, data)
        if isinstance(told.messages, list):
            assert len(await messages_in(told.messages)) == len(told.messages)
    with suppress(MillraceError):
        decode(_transaction, data)
    try:
        found = await lines_in(data)
    except MillraceError:
        return
    assert len(found) == sum(bool(line.strip()) for line in data.split(b"\n"))


def fuzz_sigv4(rng: Random) -> None:
    """What nobody has signed is not taken for signed."""
    corpus = [SIGNED, PRESIGNED]
    data = mutated(rng.choice(corpus), corpus, rng)
    # Headers and addresses have no characters but those of Latin-1: as `text` reads even lengths.
    _signed(data + b" " * (len(data) % 2))
