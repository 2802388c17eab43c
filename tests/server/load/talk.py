"""Asking a server over one connection, without a client library."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

_LENGTH = re.compile(rb"content-length: (\d+)")


class Talk:
    """One connection, made when it is first needed."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def begin(
        self, method: str, path: str, body: bytes, kind: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask, and leave the answer to whoever called."""
        if self._streams is None or self._streams[1].is_closing():
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {self._token}\r\n"
            f"content-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        return reader, writer

    async def ask(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        """Ask, and wait for the answer; a body that is no bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else b""
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
        reader, _ = await self.begin(method, path, data, kind)
        head = await reader.readuntil(b"\r\n\r\n")
        found = _LENGTH.search(head)
        if found is not None:
            answer = await reader.readexactly(int(found[1]))
        else:
            answer = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                answer += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
        if b"connection: close" in head:
            self.cut()
        return int(head[9:12]), answer

    async def get(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of an answer that must be a good one."""
        status, answer = await self.ask(method, path, body)
        assert status < 300, (method, path, status, answer[:300])
        return json.loads(answer)

    def cut(self) -> None:
        """End the connection, whatever is under way on it."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
