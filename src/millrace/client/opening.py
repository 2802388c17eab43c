"""`millrace.open`: opens a folder in this process, or connects to the process that shares it."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import WeakSet, finalize

from millrace.client.embedded import EmbeddedEngine
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


# --- Engines that were not closed: a warning, and the release of their folders -------------------
#
# Rule 1: a leak is reported by a `ResourceWarning` that names the folder.
# Rule 2: an engine that is unreachable for the program is closed, and one whose event loop has
# ended is given up, so that the folder can be opened again. Neither loses acknowledged data.


class _Life:
    """An open folder, and the event loop it was opened on."""

    def __init__(self, node: Node, path: Path) -> None:
        self.node = node
        self.path = path
        self.loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._is_told = False
        self._lock = threading.Lock()

    def forgotten(self) -> None:
        """Close an engine that was garbage collected; called by the collector, on any thread."""
        if self.node.has_ended or os.getpid() != self._process:
            return
        _ENDING.add(self)
        try:
            self.loop.call_soon_threadsafe(self._close)
        except RuntimeError:
            # The loop is closed. In a new thread: this one may be an I/O thread of the engine,
            # which cannot join itself.
            threading.Thread(target=self._give_up, name="millrace-ending").start()
        self._warn("was dropped")

    def is_dead_at(self, path: Path) -> bool:
        """Return True if it has this folder, and its event loop has ended."""
        if self.node.has_ended or not self.loop.is_closed() or os.getpid() != self._process:
            return False
        try:
            return os.path.samefile(path, self.path)
        except OSError:
            return False

    def end(self) -> None:
        """Release the folder of an ended event loop, for another open."""
        self._give_up()
        self._warn("was left behind by an event loop that has ended")

    def _warn(self, what: str) -> None:
        if self._is_told:
            return
        self._is_told = True
        warnings.warn(
            f"the engine of {self.path} {what}, and was never closed: use it as a context, "
            "`async with millrace.open(...) as m: ...`, or `await m.close()`",
            ResourceWarning,
            stacklevel=3,
            source=self.node,
        )

    def _close(self) -> None:
        closing = self.loop.create_task(self.node.close())
        closing.add_done_callback(self._look)

    def _look(self, closing: asyncio.Task[None]) -> None:
        if not closing.cancelled():
            closing.exception()
        # If the loop is ending and cancelled the task, the next open gives the node up.
        if self.node.has_ended:
            _ENDING.discard(self)

    def _give_up(self) -> None:
        # The garbage collector and another open may call this concurrently.
        with self._lock:
            self.node.give_up()
        _ENDING.discard(self)


_OPEN: WeakSet[_Life] = WeakSet()
"""Folders open in this process, for the next open of one of them."""

_ENDING: set[_Life] = set()
"""Unreachable engines, until they have ended."""


def watch(engine: EmbeddedEngine, node: Node, path: Path) -> None:
    """Register an engine, so that its folder is released even if it is never closed."""
    life = _Life(node, path)
    _OPEN.add(life)
    finalize(engine, life.forgotten).atexit = False


def end_dead(path: Path) -> bool:
    """End an engine whose event loop is closed and that still has the folder; return True if one
    was.

    Called on a thread of the program's own.
    """
    dead = [life for life in list(_OPEN) if life.is_dead_at(path)]
    for life in dead:
        life.end()
    return bool(dead)
