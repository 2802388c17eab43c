"""Engines that nobody closed.

Rule 1: whoever forgets is told, by a `ResourceWarning` that names the folder.
Rule 2: an engine that nobody can reach any more is closed, and one whose event loop has ended is
given up, so that the folder can be opened again. Nothing that was acknowledged is lost by either.
"""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from pathlib import Path
from weakref import WeakSet, finalize

from millrace.client.embedded import EmbeddedEngine
from millrace.node import Node


class _Life:
    """An open folder, and the event loop that it was opened on."""

    def __init__(self, node: Node, path: Path) -> None:
        self.node = node
        self.path = path
        self.loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._is_told = False
        self._lock = threading.Lock()

    def forgotten(self) -> None:
        """Nobody has the engine any more; called by the garbage collector, on any thread."""
        if self.node.has_ended or os.getpid() != self._process:
            return
        _ENDING.add(self)
        try:
            self.loop.call_soon_threadsafe(self._close)
        except RuntimeError:
            # The loop is closed. This may be a lane's own thread, which cannot wait for itself.
            threading.Thread(target=self._give_up, name="millrace-ending").start()
        self._warn("was dropped")

    def is_dead_at(self, path: Path) -> bool:
        """Whether it has the folder, and its loop has ended."""
        if self.node.has_ended or not self.loop.is_closed() or os.getpid() != self._process:
            return False
        try:
            return os.path.samefile(path, self.path)
        except OSError:
            return False

    def end(self) -> None:
        """Let the folder go: the loop has ended, and there is another that wants it."""
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
        # A loop that is about to end cancels what it has: then the next open gives it up.
        if self.node.has_ended:
            _ENDING.discard(self)

    def _give_up(self) -> None:
        # The collector and another open may come at the same time.
        with self._lock:
            self.node.give_up()
        _ENDING.discard(self)


_OPEN: WeakSet[_Life] = WeakSet()
"""The folders that are open here: whoever opens one again finds the one that has it."""

_ENDING: set[_Life] = set()
"""Those that nobody can reach, until they have ended."""


def watch(engine: EmbeddedEngine, node: Node, path: Path) -> None:
    """See to it that the folder is let go, also if nobody closes the engine."""
    life = _Life(node, path)
    _OPEN.add(life)
    finalize(engine, life.forgotten).atexit = False


def end_dead(path: Path) -> bool:
    """End an engine that has the folder although its event loop is closed; whether there was one.

    Called on a thread of the program's own.
    """
    found = [life for life in list(_OPEN) if life.is_dead_at(path)]
    for life in found:
        life.end()
    return bool(found)
