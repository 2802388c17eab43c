"""A client connection over HTTP/1.1: one request at a time.

It understands what our own server sends: a status, headers, and a body with a length or in chunks.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult

from millrace import limits
from millrace.rpc.frames import Buffer
from millrace.rpc.tls import explain
from millrace.rpc.transport import ConnectionLost

_HEAD_BYTES_MAX = 64 * 1024
_PIECE_BYTES = 256 * 1024
_DIGITS_MAX = 19


class ResponseHead(NamedTuple):
    """Status and headers of a response."""

    status: int
    headers: dict[str, str]


class HttpConnection:
    """A connection used by one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._length: int | None = 0
        self._keeps = True
        self._where = ""
        self.is_reusable = True
        self.idle_since = 0.0

    @classmethod
    async def make(
        cls, url: SplitResult, tls: ssl.SSLContext | None, at: str | None = None
    ) -> HttpConnection:
        """Connect; `at` is the address if the host name was resolved before.

        Raises:
            ConnectionLost: the server is unreachable or not trusted, or only one side uses TLS.
        """
        host = url.hostname or ""
        port = url.port or (443 if tls is not None else 80)
        try:
            async with asyncio.timeout(limits.WIRE_CONNECT_SECONDS_MAX):
                reader, writer = await asyncio.open_connection(
                    at or host,
                    port,
                    ssl=tls,
                    limit=_HEAD_BYTES_MAX,
                    server_hostname=host if tls is not None else None,
                )
        except ssl.SSLError as error:
            raise _tls_failure(error, f"{host}:{port}", sent=False) from error
        except (OSError, TimeoutError) as error:
            raise ConnectionLost(f"nobody answers at {host}:{port}: {error}", sent=False) from error
        connection = cls(reader, writer)
        connection._where = f"{host}:{port}"
        return connection

    async def ask(self, head: bytes, body: Sequence[Buffer]) -> ResponseHead:
        """Send a request; return status and headers of the response.

        Raises:
            ConnectionLost: the connection ended first.
        """
        self.is_reusable = False
        try:
            self._writer.writelines([head, *body])
            await self._writer.drain()
            raw = await self._reader.readuntil(b"\r\n\r\n")
        except ssl.SSLError as error:
            # In TLS 1.3 the server rejects a client certificate only after the handshake.
            is_rejected = any(
                word in (error.reason or "") for word in ("CERTIFICATE", "UNKNOWN_CA")
            )
            raise _tls_failure(error, self._where, sent=not is_rejected) from error
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionLost(f"the connection was lost: {error}", sent=True) from error
        first, *lines = raw.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        parts = first.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not _is_number(parts[1]):
            raise ConnectionLost(f"{self._where} does not speak HTTP/1.1", sent=False, lasts=True)
        chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length", "0")
        self._length = None if chunked else int(length) if _is_number(length) else 0
        self._keeps = headers.get("connection", "").lower() != "close"
        return ResponseHead(int(parts[1]), headers)

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Stream the body of the response; at its end the connection may be reused.

        Raises:
            ConnectionLost: the connection ended first.
        """
        try:
            if self._length is not None:
                left = self._length
                while left:
                    piece = await self._reader.read(min(left, _PIECE_BYTES))
                    if not piece:
                        raise ConnectionLost("the connection was lost", sent=True)
                    left -= len(piece)
                    yield piece
            else:
                async for piece in self._chunks():
                    yield piece
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionLost(f"the connection was lost: {error}", sent=True) from error
        self.is_reusable = self._keeps

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            line = await self._reader.readuntil(b"\r\n")
            try:
                left = int(line.split(b";")[0], 16)
                if left < 0:
                    raise ValueError("it is negative")
            except ValueError as error:
                raise ConnectionLost("a chunk of the answer has no length", sent=True) from error
            if left == 0:
                await self._reader.readuntil(b"\r\n")
                return
            while left:
                piece = await self._reader.read(min(left, _PIECE_BYTES))
                if not piece:
                    raise ConnectionLost("the connection was lost", sent=True)
                left -= len(piece)
                yield piece
            await self._reader.readexactly(2)

    @property
    def is_open(self) -> bool:
        """True unless the other side has closed it."""
        return not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        """Close the connection at once, without waiting for the close_notify of TLS."""
        self._writer.transport.abort()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX


def _tls_failure(error: ssl.SSLError, where: str, *, sent: bool) -> ConnectionLost:
    """Return the error to raise; after a connection that was merely cut off a retry may help."""
    cut = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
    return ConnectionLost(explain(error, where), sent=sent, lasts=not cut)
