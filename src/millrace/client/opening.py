"""Opening a folder: as a context manager, or by awaiting it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from millrace.client.embedded import EmbeddedEngine
from millrace.client.finish import finish
from millrace.client.forgotten import end_dead, watch
from millrace.client.joining import joined
from millrace.client.line import Lost
from millrace.client.millrace import Millrace
from millrace.client.paths import folder_of, is_short_address
from millrace.client.remote import RemoteEngine
from millrace.core import check
from millrace.errors import InUse, Invalid
from millrace.node import Node, real_ports
from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry


class Opening:
    """A folder that is about to be opened."""

    def __init__(self, path: Path, settings: Settings, telemetry: Telemetry | None) -> None:
        self._telemetry = telemetry
        self._path = path
        self._settings = settings
        self._millrace: Millrace | None = None

    async def _open(self) -> Millrace:
        task = asyncio.get_running_loop().create_task(self._open_node())
        try:
            node = await finish(task)
        except InUse as error:
            shared = None if self._settings.fork else await self._join()
            if shared is None:
                raise error.again() from None
            shared.telemetry = self._telemetry
            return Millrace(shared)
        except asyncio.CancelledError:
            # Half-open there is nothing to close, so that it was opened to the end.
            if not task.cancelled() and task.exception() is None:
                await task.result().close()
            raise
        engine = EmbeddedEngine(node, str(self._path))
        engine.telemetry = self._telemetry
        watch(engine, node, self._path)
        return Millrace(engine)

    async def _join(self) -> RemoteEngine | None:
        """The engine of whoever has the folder open, if it is shared."""
        try:
            return await joined(self._path)
        except Lost:
            return None

    async def _open_node(self) -> Node:
        ports = real_ports(self._path)
        try:
            return await Node.open(ports, self._settings)
        except InUse:
            if not end_dead(self._path):
                raise
        return await Node.open(ports, self._settings)

    def __await__(self) -> Generator[object, object, Millrace]:
        return self._open().__await__()

    async def __aenter__(self) -> Millrace:
        self._millrace = await self._open()
        return self._millrace

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._millrace is not None:
            await self._millrace.close()


def open(
    path: str | os.PathLike[str],
    *,
    fork: bool = False,
    settings: Settings | None = None,
    telemetry: Telemetry | None = None,
) -> Opening:
    """Open the queues in a folder, making it if it is missing.

    `async with millrace.open("./data") as m: ...`, or `m = await millrace.open("./data")` and
    `await m.close()` later. The engine runs on the caller's event loop. A folder has one owner
    process; if that shares it (`millrace.share`, `millrace serve`), others use its engine, by the
    same objects. With `fork`, a copy of a folder is opened as one of its own, with a new history.
    With `telemetry` (`millrace.telemetry.Telemetry`), what is done is traced and measured.

    Raises:
        InUse: the folder is open, in another process or in this one, and is not shared; the error
            names its pid.
        Copied: it is a copy of another folder, and `fork` was not given.
        Corrupt: it is damaged; nothing was changed.
        Refused: the path is no folder that may be written to.
    """
    chosen = Settings() if settings is None else settings
    if not isinstance(chosen, Settings):
        raise Invalid(f"settings are {check.shown(settings)}, not Settings", field="settings")
    if check.flag(fork, "fork"):
        chosen = replace(chosen, fork=True)
    folder = folder_of(path, "path")
    # Of a path, two slashes are one.
    if str(folder).startswith(("http:/", "https:/")):
        raise Invalid(
            f"path is {check.shown(str(path))}, the address of a server; use millrace.connect",
            field="path",
        )
    if isinstance(path, str) and is_short_address(path):
        raise Invalid(
            f"path is {check.shown(path)}, which looks like the address of a server; use "
            f"millrace.connect('http://…'), or write ./{path} for a folder",
            field="path",
        )
    return Opening(folder, chosen, telemetry)
