"""Sharing an open folder with other processes: `async with millrace.share(m): ...`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace, engine_of
from millrace.core import validate
from millrace.errors import Invalid
from millrace.server.rpc.local_socket import LocalListener


class Sharing:
    """Shares a folder with other processes while its context is open."""

    def __init__(self, m: Millrace) -> None:
        engine = engine_of(m)
        if not isinstance(engine, EmbeddedEngine):
            raise Invalid(f"{m!r} is open in another process; share it there", field="m")
        self._local = LocalListener(engine, Path(engine.where))

    @property
    def connections(self) -> int:
        """Number of connections of other processes."""
        return len(self._local.connections)

    def trust(self, processes: Callable[[], Collection[int]]) -> None:
        """Treat the processes with these ids as parts of the server."""
        self._local.of_server = processes

    async def start(self) -> Path:
        """Listen on the socket of the folder and return its path."""
        return await self._local.start()

    async def stop(self) -> None:
        """Close the socket; calls without an answer are cancelled."""
        await self._local.stop()

    async def __aenter__(self) -> Sharing:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


def share(m: Millrace) -> Sharing:
    """Share a folder that this process has open with other processes of the same user.

    They open it as usual: `millrace.open` detects the socket. They have the same rights as this
    process, except for headers and notes that only the server writes (`aws.`, `millrace-dead-`);
    other users have no access.

    Raises:
        Invalid: `m` is not a folder that this process has open.
    """
    if not isinstance(m, Millrace):
        raise Invalid(f"m is {validate.shown(m)}, not what millrace.open gave", field="m")
    return Sharing(m)
