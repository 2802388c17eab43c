"""Redis, of the version that the system has."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from tests.services.packages import have_program
from tests.services.service import Service, free_port


def have_redis() -> Path:
    """The server's program."""
    return have_program("redis-server", "redis-server")


class Redis(Service):
    """A server that has written whatever it has answered, so that a kill loses nothing."""

    name = "redis"

    def __init__(self) -> None:
        self._program = have_redis()
        super().__init__()
        self.port = free_port()

    @property
    def url(self) -> str:
        """How to connect to it; databases 0 to 15 follow a slash."""
        return f"redis://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        place = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder)
        # With `everysec`, the default, answers may come up to two seconds before the write, while a
        # slow disk syncs; with `no`, each write precedes its answer, and only the sync is left out.
        kept = ("--appendonly", "yes", "--appendfsync", "no", "--save", "")
        return [self._program, *place, *kept, "--databases", "16"]

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64) == b"+PONG\r\n"
        except OSError:
            return False
