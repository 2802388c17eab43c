"""A parser of HTTP/1.1 requests, without I/O.

httptools (llhttp, in its strict mode) checks the grammar: it refuses two lengths, a length together
with chunks, bare line feeds and folded headers. This module adds the bounds that it lacks, and
refuses requests that other programs might interpret differently: two hosts, codings together with
chunks.

Rule 1: a bound is checked before the bytes beyond it are kept.
Rule 2: after an error nothing more of the connection is read: the start of the next request is
unknown.
Rule 3: a request that is refused by its head is answered before much more of it is read.
Rule 4: the bytes behind a refused request, or behind the maximum of waiting requests, are kept
unparsed until those are answered.
Rule 5: a large body of known length bypasses httptools, which would copy it; its bytes are not
examined. The next request gets a new httptools parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import httptools

from millrace import limits
from millrace.errors import detached
from millrace.server.http.large_body import BufferPool, LargeBody

_HEAD_END = b"\r\n\r\n"


class BadRequest(Exception):
    """The bytes are not a request, or one beyond a bound; the connection closes after the
    answer."""

    def __init__(self, status: int, detail: str, *, limit: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.limit = limit


def _too_large(most: int) -> BadRequest:
    detail = f"the body has more than {most} bytes; send it in parts, or raise body_bytes_max"
    return BadRequest(413, detail, limit=most)


class _Over(Exception):
    """The last request was refused, and the bytes behind it are not read."""


class Refusal(Protocol):
    """The response that refuses a request."""

    status: int


class Request:
    """A request, complete or still being read."""

    __slots__ = (
        "body",
        "call",
        "caller",
        "context",
        "headers",
        "holder",
        "is_stranger",
        "keep_alive",
        "kind",
        "method",
        "on_proved",
        "owner",
        "path",
        "query",
        "refusal",
        "standing",
    )

    def __init__(self) -> None:
        self.method = ""
        self.path = ""
        """As it was sent, still percent-encoded."""
        self.query = ""
        self.headers: dict[str, str] = {}
        """By name in lower case; values of a repeated header are joined by commas."""
        self.body: bytes | bytearray | memoryview = b""
        self.keep_alive = True
        self.refusal: Refusal | None = None
        """Set by `Admit` to refuse the request: its body is not kept."""
        self.caller: object = None
        """Credentials that can be verified only together with the body."""
        self.call: object = None
        """The operation that the body names, if the address does not; set once the body was
        parsed."""
        self.context: object = None
        """Result of `Admit`: the user and the operation."""
        self.owner = ""
        """The user, as far as the head tells: memory of answers counts for them."""
        self.holder = ""
        """Owner of the body's memory if not `owner`: an address, before authentication."""
        self.on_proved: Callable[[], None] | None = None
        """Called after authentication."""
        self.is_stranger = False
        """True if the sender is not authenticated, or not yet."""
        self.kind = ""
        """Kind of operation: requests of a kind that arrive in one turn are handled in a row."""
        self.standing = 0
        """Version of the access data against which the request was judged."""


Admit = Callable[[Request, int | None], Refusal | None]
"""Judges a request by its head and declared length; None admits it."""


class RequestParser:
    """Turns the bytes of one connection into requests."""

    def __init__(
        self,
        admit: Admit,
        *,
        body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX,
        spare: BufferPool | None = None,
    ) -> None:
        self._admit = admit
        self._spare = BufferPool() if spare is None else spare
        self._body_bytes_max = body_bytes_max
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self._url = b""
        self._has_begun = False
        self._in_head = True
        self._head_bytes = 0
        self._headers_seen = 0
        self._length: int | None = None
        """Length of the body that is being read, if declared."""
        self.rest = b""
        """Bytes that wait to be parsed by the next `feed`."""
        self._rest_at = 0
        """Offset in `rest` at which to continue."""
        self._chunks: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._beside_bytes = 0
        self._is_over = False
        self.large: LargeBody | None = None
        """The large body that is being read; its reader calls `filled`."""
        self._done: list[Request] = []
        self.expects = False
        """True if the sender waits for `100 Continue`."""

    def close(self) -> None:
        """Drop all state: the connection is closed.

        This breaks the reference cycle of httptools' parser, this parser and the connection.
        """
        del self._parser, self._admit
        self._request = Request()
        self._chunks, self._done, self.large = [], [], None
        self.rest = b""

    @property
    def is_between(self) -> bool:
        """True if no byte of a next request has been read."""
        return not self._has_begun and not self.rest

    def drop(self) -> None:
        """Parse nothing more of the connection."""
        self.rest, self._is_over = b"", True
        # The start of its next request is unknown now.
        self._has_begun = True

    @property
    def in_head(self) -> bool:
        """True while the head of a request is being read."""
        return self._in_head

    @property
    def in_body(self) -> bool:
        """True if more of a body is expected and not to be discarded."""
        return not self._in_head and not self._is_over

    @property
    def body_bytes(self) -> int:
        """Number of bytes received of the body that is being read."""
        return self._body_bytes

    @property
    def held(self) -> tuple[str, int]:
        """Owner and size of the partial body; size 0 if the request was refused."""
        request = self._request
        holder = request.holder or request.owner
        return holder, self._body_bytes if request.refusal is None else 0

    def feed(self, data: bytes, limit: int = limits.HTTP_AHEAD_MAX) -> list[Request]:
        """Parse received bytes and return the requests that are complete now.

        Parsing stops behind a request that is refused, and behind `limit` requests or a few more
        (`HTTP_STEP_BYTES`); the next call continues with the remaining bytes.

        Raises:
            BadRequest: after the requests before it, which are in `last`.
        """
        self._done = []
        at = 0
        if self.rest:
            rest, self.rest = self.rest, b""
            data, at = (rest[self._rest_at :] + data, 0) if data else (rest, self._rest_at)
        size = len(data) - at
        if (
            self.large is not None
            or (self._in_head and size + self._head_bytes > limits.HTTP_HEAD_BYTES_MAX)
            # Data with the end of one head contains the end of at most one request.
            or (
                size > limits.HTTP_STEP_BYTES
                and not (self._in_head and data.count(_HEAD_END, at) <= 1)
            )
        ):
            self._feed_parts(data, at, limit)
        else:
            self._feed(data[at:] if at else data)
        return self._done

    def filled(self, size: int) -> list[Request]:
        """Note `size` further bytes in the large body; return its request if it is complete now."""
        large = self.large
        assert large is not None
        self._done = []
        large.filled += size
        self._look_at(large)
        return self._done

    def _feed_parts(self, data: bytes, at: int, limit: int) -> None:
        """Parse heads and bodies separately until there are enough requests."""
        view, size, done = memoryview(data), len(data), self._done
        while at < size and not self._is_over:
            if self.large is not None:
                at += self.large.take(view[at:])
                self._look_at(self.large)
            else:
                end = self._end_of_part(data, at)
                if self._in_head and self._head_bytes + end - at > limits.HTTP_HEAD_BYTES_MAX:
                    raise _head_too_large()
                self._feed(bytes(view[at:end]))
                at = end
            if done and at < size and (len(done) >= limit or done[-1].refusal is not None):
                self.rest, self._rest_at = data, at
                return

    def _end_of_part(self, data: bytes, at: int) -> int:
        """Return an offset to stop at, so that hardly more than one request ends before it."""
        size = len(data)
        if self._in_head:
            end = min(size, at + limits.HTTP_HEAD_BYTES_MAX)
            found = data.find(_HEAD_END, at, end)
            return end if found < 0 else found + len(_HEAD_END)
        if self._length is not None:
            return min(size, at + max(self._length - self._body_bytes, 1))
        return min(size, at + limits.HTTP_STEP_BYTES)

    def _look_at(self, large: LargeBody) -> None:
        self._body_bytes = large.filled
        if large.is_whole:
            # The previous httptools parser still expects the body.
            self._parser = httptools.HttpRequestParser(self)
            self.on_message_complete()

    @property
    def last(self) -> list[Request]:
        """Requests that the last `feed` completed, also if it raised."""
        return self._done

    def _feed(self, data: bytes) -> None:
        if self._is_over:
            return
        body_bytes, was_head = self._body_bytes, self._in_head
        if was_head:
            if self._head_bytes >= limits.HTTP_HEAD_BYTES_MAX:
                # It may end here, but it is too long already.
                raise _head_too_large()
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            raise BadRequest(400, "this server knows no other protocol to change to") from error
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, BadRequest):
                raise detached(cause) from None
            if isinstance(cause, _Over):
                # Its frames hold the data that was read, and this frame holds the error.
                detached(cause)
                self._is_over = True
                return
            raise
        except httptools.HttpParserError as error:
            raise BadRequest(400, f"not a request of HTTP/1.1: {error}") from error
        if self._in_head and self._head_bytes > limits.HTTP_HEAD_BYTES_MAX:
            raise _head_too_large()
        if was_head or self._in_head or self._body_bytes != body_bytes:
            self._beside_bytes = 0
            return
        # Chunk extensions, leading zeros, trailers: never used, but bounded.
        self._beside_bytes += len(data)
        if self._beside_bytes > limits.HTTP_HEAD_BYTES_MAX:
            most = limits.HTTP_HEAD_BYTES_MAX
            raise BadRequest(431, f"beside its content the body has more than {most} bytes")

    # --- What httptools calls -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._has_begun = True
        self._request = Request()
        self._url = b""
        self._headers_seen = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > limits.HTTP_URL_BYTES_MAX:
            raise BadRequest(414, f"the address has more than {limits.HTTP_URL_BYTES_MAX} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers_seen += 1
        if self._headers_seen > limits.HTTP_HEADERS_MAX:
            raise BadRequest(431, f"there are more than {limits.HTTP_HEADERS_MAX} headers")
        if not self._in_head:
            # Trailers are ignored.
            return
        headers = self._request.headers
        key, text = _name_of(name), value.decode("latin-1")
        if key not in headers:
            headers[key] = text
        elif key == "host":
            raise BadRequest(400, "a request names its host once")
        else:
            headers[key] = f"{headers[key]}, {text}"

    def on_headers_complete(self) -> None:
        request, parser = self._request, self._parser
        headers = request.headers
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise BadRequest(505, f"HTTP/{version} is not spoken here; use 1.1")
        if version == "1.1" and "host" not in headers:
            raise BadRequest(400, "a request names its host")
        if parser.should_upgrade():
            raise BadRequest(400, "this server knows no other protocol to change to")
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.strip().lower() != "chunked":
            raise BadRequest(501, f"the body is coded as {coding[:100]!r}; send it as it is")
        packing = headers.get("content-encoding")
        if packing is not None and packing.strip().lower() != "identity":
            raise BadRequest(415, f"the body is packed as {packing[:100]!r}; send it as it is")
        if coding is not None and version == "1.0":
            raise BadRequest(400, "chunks are of HTTP/1.1; say so, or send a content-length")
        request.method = parser.get_method().decode("ascii")
        url = self._url
        split = _split_short if len(url) <= limits.HTTP_URL_KNOWN_BYTES else _split
        request.path, request.query = split(url)
        request.keep_alive = parser.should_keep_alive()
        length = int(headers.get("content-length", 0))
        if length > self._body_bytes_max:
            raise _too_large(self._body_bytes_max)
        self._in_head = False
        self._head_bytes = 0
        self._length = length if coding is None else None
        refusal = request.refusal = self._admit(request, length if coding is None else None)
        expect = headers.get("expect")
        expects = expect is not None and expect.lower() == "100-continue" and version == "1.1"
        self.expects = expects and refusal is None
        if refusal is not None:
            if expects or length > limits.HTTP_DISCARD_BYTES_MAX:
                self._end()
        elif length >= limits.HTTP_LARGE_BYTES_MIN:
            self.large = LargeBody(length, self._spare)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._body_bytes_max:
            raise _too_large(self._body_bytes_max)
        if self.large is not None:
            self.large.take(memoryview(body))
        elif self._request.refusal is None:
            self._keep(body)
        elif self._body_bytes > limits.HTTP_DISCARD_BYTES_MAX:
            self._end()

    def _keep(self, body: bytes) -> None:
        """Keep a piece of a body; small pieces are joined, because each object takes far more
        memory."""
        chunks = self._chunks
        if not chunks or len(body) >= limits.HTTP_PIECE_BYTES_MIN:
            chunks.append(body)
            return
        last = chunks[-1]
        if isinstance(last, bytearray):
            last += body
        else:
            chunks.append(bytearray(body))

    def _end(self) -> None:
        """Complete the request without the rest of its body, and read nothing more of the
        connection."""
        self._request.keep_alive = False
        self._body_bytes = 0
        self._done.append(self._request)
        raise _Over

    def on_message_complete(self) -> None:
        large, chunks = self.large, self._chunks
        if large is not None:
            self._request.body = large.whole()
        else:
            self._request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.large, self._chunks = None, []
        self._body_bytes = 0
        self._has_begun = False
        self._in_head = True
        self._head_bytes = 0
        self.expects = False
        self._done.append(self._request)


def _head_too_large() -> BadRequest:
    return BadRequest(431, f"the head has more than {limits.HTTP_HEAD_BYTES_MAX} bytes")


_ODD = re.compile(rb"//|/(?:\.|%2[eE]){1,2}(?:/|$)")
"""Empty path segments and dot segments: proxies, signatures and routes may each interpret them
differently."""


def _split(url: bytes) -> tuple[str, str]:
    """Return the path and the query of an address.

    Raises:
        BadRequest: the path is not absolute, or is ambiguous.
    """
    path, _, query = url.partition(b"?")
    if not path.startswith(b"/"):
        path = _path_of(path)
    if _ODD.search(path):
        raise BadRequest(400, "the address has an empty part, or '.' or '..' as one; name its path")
    return path.decode("latin-1"), query.decode("latin-1")


_split_short = lru_cache(maxsize=limits.HTTP_URLS_KNOWN_MAX)(_split)
"""A cache of parsed addresses: clients use the same few again and again."""


@lru_cache(maxsize=limits.HTTP_NAMES_KNOWN_MAX)
def _name_of(name: bytes) -> str:
    return name.decode("latin-1").lower()


def _path_of(url: bytes) -> bytes:
    """Return the path of an absolute URL, the form that proxies send."""
    scheme, found, rest = url.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        raise BadRequest(400, "the address begins with a slash")
    _, slash, path = rest.partition(b"/")
    return slash + path or b"/"
