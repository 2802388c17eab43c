"""HTTP client that reads the rows of a part directly from the socket into Arrow.

Rule 1: a body is copied once, from the kernel into memory that Arrow keeps.

Rule 2: each process keeps one connection to a server. It is reused only if its last response was
read to the end.

Rule 3: an interrupted read resumes after the last received row; a server that is away is retried
from there, until the home's timeout (`patience`).
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from io import IOBase
from typing import cast
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from millrace import limits
from millrace.errors import Closed, Retry
from millrace.rpc.http_transport import refusal_of
from millrace.rpc.tls import explain
from millrace.rpc.transport import ConnectionLost
from millrace.spark.home import QueueEndpoint

_ARROW = "application/vnd.apache.arrow.stream"
_STAGING_BYTES = 64 * 1024
"""Size of the buffer for heads and chunk lengths; larger pieces are received in place."""


class ArrowConnection:
    """A connection to a server, used by one request at a time."""

    def __init__(self, home: QueueEndpoint) -> None:
        url = urlsplit(home.url)
        self._host = url.netloc.rpartition("@")[2]
        port = url.port or (443 if url.scheme == "https" else 80)
        seconds = limits.WIRE_CONNECT_SECONDS_MAX
        where = f"{url.hostname}:{port}"
        try:
            made = socket.create_connection((url.hostname or "", port), timeout=seconds)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.scheme == "https":
                context = ssl.create_default_context(cafile=home.certificate_file())
                made = context.wrap_socket(made, server_hostname=url.hostname)
        except OSError as error:
            raise ConnectionLost(explain(error, where), sent=False) from error
        made.settimeout(limits.WIRE_ANSWER_SECONDS_MAX)
        self._socket = made
        self._staging = memoryview(bytearray(_STAGING_BYTES))
        self._begin = self._end = 0
        self._left = 0
        """Bytes left in the current chunk."""
        self._is_chunked = False
        self.is_reusable = True

    def close(self) -> None:
        """Close the connection."""
        self.is_reusable = False
        self._socket.close()

    def ask(self, target: str, token: str | None) -> int:
        """Send a request for Arrow data; return the status. The body is read after it.

        Raises:
            ConnectionLost: the connection ended first.
        """
        self.is_reusable = False
        lines = [f"GET {target} HTTP/1.1", f"host: {self._host}", f"accept: {_ARROW}"]
        if token is not None:
            lines.append(f"authorization: Bearer {token}")
        try:
            self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        except OSError as error:
            raise ConnectionLost(str(error), sent=False) from error
        first = self._line()
        headers: dict[bytes, bytes] = {}
        while line := self._line():
            name, _, value = line.partition(b":")
            headers[name.strip().lower()] = value.strip()
        self._is_chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        self._left = 0 if self._is_chunked else int(headers.get(b"content-length", b"0"))
        return int(first.split(b" ")[1])

    # --- The body -------------------------------------------------------------------------------

    def read(self, size: int) -> pa.Buffer:
        """Return the next `size` bytes of the body, fewer only at its end."""
        buffer = pa.allocate_buffer(size)
        view, at = memoryview(buffer).cast("B"), 0
        while at < size:
            if not self._left and not self._next_chunk():
                break
            step = min(self._left, size - at)
            self._fill(view[at : at + step])
            at += step
            self._left -= step
            if self._is_chunked and not self._left:
                self._line()
        return buffer if at == size else buffer.slice(0, at)

    def finish(self) -> None:
        """Read the rest of the body, so that the connection can be reused."""
        while self.read(_STAGING_BYTES).size == _STAGING_BYTES:
            continue
        self.is_reusable = True

    def _next_chunk(self) -> bool:
        """Start the next chunk; return False at the end of the body."""
        if not self._is_chunked:
            return False
        self._left = int(self._line().partition(b";")[0], 16)
        if self._left:
            return True
        self._line()
        self._is_chunked = False
        return False

    def _fill(self, view: memoryview) -> None:
        """Fill the view completely with the next bytes."""
        at = min(self._end - self._begin, len(view))
        view[:at] = self._staging[self._begin : self._begin + at]
        self._begin += at
        while at < len(view):
            if len(view) - at < _STAGING_BYTES:
                self._more()
                step = min(self._end - self._begin, len(view) - at)
                view[at : at + step] = self._staging[self._begin : self._begin + step]
                self._begin += step
            else:
                step = self._receive(view[at:])
            at += step

    def _line(self) -> bytes:
        found = b""
        while True:
            piece = bytes(self._staging[self._begin : self._end])
            end = piece.find(b"\n")
            if end >= 0:
                self._begin += end + 1
                return (found + piece[:end]).rstrip(b"\r")
            found += piece
            if len(found) > limits.HTTP_HEAD_BYTES_MAX:
                raise ConnectionLost("the answer has no end of line", sent=True)
            self._begin = self._end
            self._more()

    def _more(self) -> None:
        """Refill the empty staging buffer."""
        self._begin, self._end = 0, self._receive(self._staging)

    def _receive(self, view: memoryview) -> int:
        try:
            size = self._socket.recv_into(view)
        except OSError as error:
            raise ConnectionLost(f"the connection was lost: {error}", sent=True) from error
        if not size:
            raise ConnectionLost("the connection was lost", sent=True)
        return size


class _Body:
    """The body of a response as a file object for Arrow."""

    closed = False

    def __init__(self, connection: ArrowConnection) -> None:
        self._connection = connection

    def read(self, size: int) -> pa.Buffer:
        return self._connection.read(size)

    def file(self) -> pa.PythonFile:
        # Arrow calls no other methods than the ones defined here.
        return pa.PythonFile(cast("IOBase", self), mode="r")

    def close(self) -> None:
        """Do nothing, since the connection is kept."""


_kept: dict[tuple[QueueEndpoint, int], ArrowConnection] = {}


def let_go() -> None:
    """Close the cached connections of this process."""
    while _kept:
        _kept.popitem()[1].close()


def fetch(
    home: QueueEndpoint, path: str, asked: dict[str, str], after: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows after a seq, from the path of a snapshot.

    Raises:
        SnapshotExpired: it is no longer pinned.
        Closed: the server did not respond within the home's timeout (`patience`).
    """
    deadline, pause = time.monotonic() + home.patience, limits.WIRE_PAUSE_SECONDS_MIN
    while True:
        try:
            for batch in _once(home, f"{path}?{urlencode(asked | {'after': str(after)})}"):
                yield batch
                after = batch.column("seq")[-1].as_py()
                deadline, pause = time.monotonic() + home.patience, limits.WIRE_PAUSE_SECONDS_MIN
            return
        except (ConnectionLost, Retry) as error:
            if time.monotonic() + pause > deadline:
                raise Closed(
                    f"{home.url} has not answered for {home.patience:g} s ({error}); does a server "
                    "run there? The job can be started again: nothing is lost"
                ) from error
        time.sleep(pause)
        pause = min(2 * pause, limits.WIRE_PAUSE_SECONDS_MAX)


def _once(home: QueueEndpoint, target: str) -> Iterator[pa.RecordBatch]:
    connection, status = _answered(home, target)
    try:
        if status != 200:
            body = connection.read(limits.HTTP_HEAD_BYTES_MAX).to_pybytes()
            raise refusal_of(status, body)
        try:
            with pa.ipc.open_stream(_Body(connection).file()) as reader:
                yield from reader
        except (pa.ArrowInvalid, OSError) as error:
            raise ConnectionLost(f"the answer was cut off: {error}", sent=True) from error
        connection.finish()
    finally:
        if connection.is_reusable:
            _kept[home, os.getpid()] = connection
        else:
            connection.close()


def _answered(home: QueueEndpoint, target: str) -> tuple[ArrowConnection, int]:
    """Send a request over the cached connection, or over a new one if that has ended."""
    token = home.token()
    kept = _kept.pop((home, os.getpid()), None)
    if kept is not None:
        with suppress(ConnectionLost):
            return kept, kept.ask(target, token)
        kept.close()
    connection = ArrowConnection(home)
    try:
        return connection, connection.ask(target, token)
    except BaseException:
        connection.close()
        raise


def snapshot_path(space: str, queue: str, ticket: str) -> str:
    """Return the URL path of a snapshot."""
    return f"/v1/spaces/{quote(space, safe='')}/queues/{quote(queue, safe='')}/snapshots/{ticket}"
