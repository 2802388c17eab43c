"""What is taken for a request, and what ends the connection."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.server.http.parser import BadRequest, Request, RequestParser


def admit_all(request: Request, length: int | None) -> None:
    return None


def parse(*pieces: bytes, body_bytes_max: int = 1000) -> list[Request]:
    parser = RequestParser(admit_all, body_bytes_max=body_bytes_max)
    return [request for piece in pieces for request in parser.feed(piece)]


POST = b"POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-a: 2\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"PUT /y HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: t\r\n\r\n"
)


def test_a_request_is_whole_with_its_last_byte() -> None:
    parser = RequestParser(admit_all)
    for at in range(len(POST) - 1):
        assert parser.feed(POST[at : at + 1]) == []
    (request,) = parser.feed(POST[-1:])
    assert (request.method, request.path, request.query) == ("POST", "/v1/x", "a=b")
    assert (request.body, request.headers["x-a"]) == (b"hello", "1, 2")
    assert request.keep_alive
    assert parser.is_between


@given(st.lists(st.integers(min_value=1, max_value=200), max_size=8))
def test_however_it_is_cut_the_requests_are_the_same(steps: list[int]) -> None:
    data = POST + CHUNKED + POST
    parser = RequestParser(admit_all)
    found: list[Request] = []
    at = 0
    for step in [*steps, len(data)]:
        found += parser.feed(data[at : at + step]) if data[at : at + step] else []
        at += step
    assert [(request.path, bytes(request.body)) for request in found] == [
        ("/v1/x", b"hello"),
        ("/y", b"abcde"),
        ("/v1/x", b"hello"),
    ]
    assert "x-trailer" not in found[1].headers


def feed_all(parser: RequestParser, data: bytes) -> None:
    """As it comes from a socket."""
    for at in range(0, len(data), limits.HTTP_HEAD_BYTES_MAX):
        parser.feed(data[at : at + limits.HTTP_HEAD_BYTES_MAX])


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3, 3\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n", 400),
        *[
            (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: %s\r\n\r\n0\r\n\r\n" % coding, 501)
            for coding in (b"identity", b"identity, chunked", b"gzip, chunked", b"xchunked", b"x")
        ],
        *[
            (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:%s\r\n\r\n0\r\n\r\n" % coding, 400)
            for coding in (b"", b" \x0bchunked", b" chunked\r\nTransfer-Encoding: chunked")
        ],
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        *[
            (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %s\r\n\r\nhello" % length, 400)
            for length in (b"+5", b"-5", b"0x5", b"5_0", b"", b"5 5", b"5;", b"5.0", b"9" * 30)
        ],
        *[
            (
                b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%s" % chunks,
                400,
            )
            for chunks in (
                *(b"0x1\r\na", b"-1\r\na", b"+1\r\na", b"1 \r\na", b"1\na\n0\n\n", b"1\r\nab"),
                *(b"1;a\nb\r\na", b"f" * 17 + b"\r\na", b"\r\n", b"1\r\na0\r\n\r\n"),
                b"0\r\nContent-Length: 5\r\n\r\n",
            )
        ],
        *[
            (
                b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%s" % beside,
                431,
            )
            for beside in (
                b"1;" + b"x" * 4 * limits.HTTP_HEAD_BYTES_MAX,
                b"0" * 4 * limits.HTTP_HEAD_BYTES_MAX,
                b"1\r\na\r\n0\r\n" + b"a: b\r\n" * limits.HTTP_HEADERS_MAX,
                b"1\r\na\r\n0\r\na: " + b"x" * 4 * limits.HTTP_HEAD_BYTES_MAX,
            )
        ],
        (b"\r\n" * limits.HTTP_HEAD_BYTES_MAX, 431),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\n\r\n", 415),
        (b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\0c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA\0: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\nC: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n Host: h\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: h\n\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
        (b"GET ftp://h/x HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n", 413),
        (
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n"
            + b"x" * 1001,
            413,
        ),
        (b"GET /" + b"x" * limits.HTTP_URL_BYTES_MAX + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"a: b\r\n" * limits.HTTP_HEADERS_MAX + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\na: " + b"x" * 4 * limits.HTTP_HEAD_BYTES_MAX, 431),
        (
            b"GET / HTTP/1.1\r\nHost: h\r\na: " + b"x" * limits.HTTP_HEAD_BYTES_MAX + b"\r\n\r\n",
            431,
        ),
        (b"\x16\x03\x01\x02\x00\x01", 400),
    ],
)
def test_refused(data: bytes, status: int) -> None:
    parser = RequestParser(admit_all, body_bytes_max=1000)
    with pytest.raises(BadRequest) as caught:
        feed_all(parser, data)
    assert caught.value.status == status
    assert not parser.last, "nothing of it is handled"


class Refusing:
    status = 401


@pytest.mark.parametrize(
    "head",
    [
        b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        b"Content-Length: %d\r\n\r\n" % (limits.HTTP_DISCARD_BYTES_MAX + 1),
        b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n"
        + b"x" * limits.HTTP_DISCARD_BYTES_MAX
        + b"x",
    ],
)
def test_whoever_is_refused_is_answered_before_the_body_was_read(head: bytes) -> None:
    parser = RequestParser(lambda request, length: Refusing())
    (request,) = parser.feed(b"POST / HTTP/1.1\r\nHost: h\r\n" + head)
    assert isinstance(request.refusal, Refusing)
    assert not request.keep_alive
    assert parser.held == ("", 0)
    assert parser.feed(b"x" * 100 + POST) == [], "what follows is no request of theirs"


def test_a_body_of_many_small_chunks_takes_little_more_than_its_size() -> None:
    count = 200_000
    parser = RequestParser(admit_all)
    parser.feed(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    data = b"1\r\nx\r\n" * 1000
    tracemalloc.start()
    try:
        for _ in range(count // 1000):
            parser.feed(data)
        assert tracemalloc.get_traced_memory()[1] < 4 * count
    finally:
        tracemalloc.stop()
    (request,) = parser.feed(b"0\r\n\r\n")
    assert request.body == b"x" * count


def test_what_came_before_a_bad_one_is_handled() -> None:
    parser = RequestParser(admit_all)
    with pytest.raises(BadRequest):
        parser.feed(POST + b"NONSENSE\r\n\r\n")
    assert [request.path for request in parser.last] == ["/v1/x"]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_bad(data: bytes) -> None:
    try:
        parse(data, POST)
    except BadRequest:
        return


ODD = ["//", "/x//y", "/.", "/x/.", "/x/..", "/x/../y", "/x/./y", "/%2e", "/x/%2E%2e/y", "/x/.%2e"]
"""Parts that programs on the way, signatures and routes may each read in another way."""


@pytest.mark.parametrize("path", [*ODD, "http://h//x", "http://h/x/../y"])
def test_sec_26_a_path_that_is_not_normal_is_refused(path: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse(f"GET {path}?a=b HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert error.value.status == 400


@pytest.mark.parametrize(
    "path", ["/", "/x/", "/...", "/x.y/.z", "/..x/y", "/x..", "/%2f", "/a%20b/%2eb", "/x?a=/../b//"]
)
def test_sec_26_other_paths_are_taken(path: str) -> None:
    [request] = parse(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert request.path == path.partition("?")[0]


@pytest.mark.parametrize("first", [1, 1000, limits.HTTP_HEAD_BYTES_MAX - 1])
def test_the_bound_of_a_head_does_not_depend_on_how_it_is_read(first: int) -> None:
    """A head slightly above the bound was taken when its last read was short."""
    start = b"GET / HTTP/1.1\r\nHost: h\r\na: "
    room = limits.HTTP_HEAD_BYTES_MAX - len(start) - 4
    allowed, excessive = (start + b"x" * size + b"\r\n\r\n" for size in (room, room + 1))
    [request] = parse(allowed[:first], allowed[first:])
    assert request.path == "/"
    with pytest.raises(BadRequest) as caught:
        parse(excessive[:first], excessive[first:])
    assert caught.value.status == 431
