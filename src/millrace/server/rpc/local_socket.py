"""The Unix socket of a folder: other processes of the same user share the engine that has it open.

Rule 1: only the user who runs the engine, and root, may connect. The server's own processes are
recognized by their process ids, as the kernel reports them.
Rule 2: the socket exists only while the folder is open: an older file in its place is a leftover.
Rule 3: a connection that the client closes ends its sessions: the program is gone. If the server
closes it, they become suspected.
Rule 4: reading from a client pauses while it has too many calls in flight, or too many unread
answers.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import cast

from millrace import limits
from millrace.client.engine import Engine
from millrace.errors import Invalid, Refused
from millrace.rpc.codec import FrameWriter, read_calls
from millrace.rpc.frames import FrameReader
from millrace.rpc.socket_transport import POINTER, SOCKET
from millrace.server.rpc.call_permissions import OWNER, Caller
from millrace.server.rpc.call_session import CallSession, RpcService

_CREDENTIALS = struct.Struct("3i")


class LocalListener:
    """Listens on the socket of a folder."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self._service = RpcService(engine)
        self._server: asyncio.Server | None = None
        self._temporary: Path | None = None
        self.of_server: Callable[[], Collection[int]] = tuple
        """Process ids of the server's own front ends."""
        self.connections: set[LocalConnection] = set()

    async def start(self) -> Path:
        """Listen on the socket and return its path.

        Raises:
            Invalid: the socket cannot be created.
        """
        path = self._place()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            # Set before any process can connect.
            os.chmod(path, 0o600)
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: LocalConnection(self), sock=listener
            )
        except OSError as error:
            listener.close()
            raise Invalid(f"no socket can be made at {path}: {error}", field="path") from error
        return path

    def _place(self) -> Path:
        path = self._folder / SOCKET
        for old in (path, self._folder / POINTER):
            # This process owns the folder: the process that created them is gone.
            with suppress(FileNotFoundError):
                old.unlink()
        if len(os.fsencode(path)) <= limits.SOCKET_PATH_BYTES_MAX:
            return path
        self._temporary = Path(tempfile.mkdtemp(prefix="millrace-"))
        short = self._temporary / SOCKET
        (self._folder / POINTER).write_text(str(short))
        return short

    @property
    def service(self) -> RpcService:
        """State shared by the connections."""
        return self._service

    def now_ms(self) -> int:
        """Return the time of the engine."""
        return self._engine.now_ms()

    async def stop(self) -> None:
        """Close the socket and all connections; calls in flight are cancelled."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()
        path = self._folder / SOCKET if self._temporary is None else self._folder / POINTER
        with suppress(FileNotFoundError):
            path.unlink()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


class LocalConnection(asyncio.Protocol):
    """A connection of one process that shares the engine."""

    def __init__(self, local: LocalListener) -> None:
        self._local = local
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameReader()
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._talk: CallSession | None = None
        self._is_woken = False
        self._is_reading = True
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        process, user = _peer(transport.get_extra_info("socket"))
        is_own = user in (0, os.geteuid())
        if not is_own or len(self._local.connections) >= limits.WIRE_CONNECTIONS_MAX:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=limits.WIRE_UNSENT_BYTES_MAX)
        self._local.connections.add(self)
        caller = Caller(OWNER, is_server=process in self._local.of_server())
        self._talk = CallSession(self._local.service, caller, self._wake)
        hello = FrameWriter()
        hello.hello(self._local.now_ms())
        self._transport.writelines(hello.take())

    def data_received(self, data: bytes) -> None:
        talk = self._talk
        if talk is None:
            return
        try:
            for frame in self._splitter.feed(data):
                talk.take(read_calls(frame))
        except Refused as error:
            # The start of the next frame is unknown now.
            last = FrameWriter()
            last.failed(0, error)
            self._transport.writelines([*talk.take_answers(), *last.take()])
            self.close()
            return
        self._look()

    def _wake(self) -> None:
        if self._talk is not None and self._talk.is_many:
            self._flush()
        elif not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_woken = False
        if self._talk is not None and not self._transport.is_closing():
            buffers = self._talk.take_answers()
            if len(buffers) == 1:
                self._transport.write(buffers[0])
            elif buffers:
                self._transport.writelines(buffers)
            self._look()

    def _look(self) -> None:
        wanted = not self._is_full and self._talk is not None and not self._talk.is_busy
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def pause_writing(self) -> None:
        self._is_full = True
        self._look()

    def resume_writing(self) -> None:
        self._is_full = False
        self._look()

    def close(self) -> None:
        """Close the connection after sending the answers that are ready."""
        self._transport.close()
        self._end()

    def connection_lost(self, error: Exception | None) -> None:
        # On one machine, a connection is lost only if the other program closes it or exits.
        self._end(is_gone=True)

    def _end(self, *, is_gone: bool = False) -> None:
        self._local.connections.discard(self)
        talk, self._talk = self._talk, None
        if talk is not None:
            talk.end(is_gone=is_gone)


def _peer(peer: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id of the other end."""
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user
