"""`millrace.open`: opens a folder in this process, or connects to the process that shares it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from millrace.client.embedded import EmbeddedEngine
from millrace.client.leak_warning import end_dead, watch
from millrace.client.millrace import Millrace
from millrace.client.paths import is_short_address, validate_folder
from millrace.client.remote import RemoteEngine
from millrace.client.shared_folder import join_engine
from millrace.core import validate
from millrace.errors import InUse, Invalid
from millrace.event_loop import run_to_completion
from millrace.node import Node, real_ports
from millrace.rpc.transport import ConnectionLost
from millrace.settings import Settings

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry


class Opening:
    """A folder to be opened: an awaitable and a context manager."""

    def __init__(self, path: Path, settings: Settings, telemetry: Telemetry | None) -> None:
        self._telemetry = telemetry
        self._path = path
        self._settings = settings
        self._millrace: Millrace | None = None

    async def _open(self) -> Millrace:
        task = asyncio.get_running_loop().create_task(self._open_node())
        try:
            node = await run_to_completion(task)
        except InUse as error:
            shared = None if self._settings.fork else await self._join()
            if shared is None:
                raise error.again() from None
            shared.telemetry = self._telemetry
            return Millrace(shared)
        except asyncio.CancelledError:
            # A half-open node cannot be closed, so opening was completed first.
            if not task.cancelled() and task.exception() is None:
                await task.result().close()
            raise
        engine = EmbeddedEngine(node, str(self._path))
        engine.telemetry = self._telemetry
        watch(engine, node, self._path)
        return Millrace(engine)

    async def _join(self) -> RemoteEngine | None:
        """Return the engine of the process that has the folder open, if it shares it."""
        try:
            return await join_engine(self._path)
        except ConnectionLost:
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
    """Open the queues in a folder, creating it if it does not exist.

    `async with millrace.open("./data") as m: ...`, or `m = await millrace.open("./data")` and
    `await m.close()` later. The engine runs on the caller's event loop. A folder has one owner
    process; if that shares it (`millrace.share`, `millrace serve`), other processes use its engine
    through the same objects. With `fork`, a copied folder is opened as independent of its original,
    with a new history. With `telemetry` (`millrace.telemetry.Telemetry`), calls are traced and
    measured.

    Raises:
        InUse: the folder is open, in another process or in this one, and is not shared; the error
            names the pid.
        Copied: the folder is a copy of another one, and `fork` was not given.
        Corrupt: the folder is damaged; nothing was changed.
        Refused: the path is not a writable folder.
    """
    chosen = Settings() if settings is None else settings
    if not isinstance(chosen, Settings):
        raise Invalid(f"settings are {validate.shown(settings)}, not Settings", field="settings")
    if validate.flag(fork, "fork"):
        chosen = replace(chosen, fork=True)
    folder = validate_folder(path, "path")
    # Path collapses the double slash of a URL.
    if str(folder).startswith(("http:/", "https:/")):
        raise Invalid(
            f"path is {validate.shown(str(path))}, the address of a server; use millrace.connect",
            field="path",
        )
    if isinstance(path, str) and is_short_address(path):
        raise Invalid(
            f"path is {validate.shown(path)}, which looks like the address of a server; use "
            f"millrace.connect('http://…'), or write ./{path} for a folder",
            field="path",
        )
    return Opening(folder, chosen, telemetry)
