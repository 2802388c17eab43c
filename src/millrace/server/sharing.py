"""Sharing an open folder with other processes: `async with millrace.share(m): ...`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace, engine_of
from millrace.core import check
from millrace.errors import Invalid
from millrace.server.local import Local


class Sharing:
    """A folder that is shared as long as the context lasts."""

    def __init__(self, m: Millrace) -> None:
        engine = engine_of(m)
        if not isinstance(engine, EmbeddedEngine):
            raise Invalid(f"{m!r} is open in another process; share it there", field="m")
        self._local = Local(engine, Path(engine.where))

    @property
    def connections(self) -> int:
        """How many are let in now."""
        return len(self._local.connections)

    def trust(self, processes: Callable[[], Collection[int]]) -> None:
        """Take these processes for the server's own."""
        self._local.of_server = processes

    async def start(self) -> Path:
        """Let others in; returns the socket."""
        return await self._local.start()

    async def stop(self) -> None:
        """Let nobody in any more; what others have asked and not heard is taken back."""
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
    """Let other processes of the same user use a folder that this one has open.

    They open it as if it were free: `millrace.open` finds out by itself. They have the same rights
    as this process, except for headers and notes that the server alone writes (`aws.`,
    `millrace-dead-`); nobody else has any.

    Raises:
        Invalid: it is no folder that this process has open.
    """
    if not isinstance(m, Millrace):
        raise Invalid(f"m is {check.shown(m)}, not what millrace.open gave", field="m")
    return Sharing(m)
