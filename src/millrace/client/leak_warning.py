"""Engines that were not closed: a warning, and the release of their folders.

Rule 1: a leak is reported by a `ResourceWarning` that names the folder.
Rule 2: an engine that is unreachable for the program is closed, and one whose event loop has ended
is given up, so that the folder can be opened again. Neither loses acknowledged data.
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
