"""Opening a folder: as a context manager, or by awaiting it."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from types import TracebackType

from millrace.client.engine import EmbeddedEngine
from millrace.client.millrace import Millrace
from millrace.node import Node, real_ports
from millrace.settings import Settings


class Opening:
    """A folder that is about to be opened."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self._path = path
        self._settings = settings
        self._millrace: Millrace | None = None

    async def _open(self) -> Millrace:
        node = await Node.open(real_ports(self._path), self._settings)
        return Millrace(EmbeddedEngine(node))

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


def open(path: str | os.PathLike[str], *, settings: Settings | None = None) -> Opening:
    """Open the queues in a folder, making it if it is missing.

    `async with millrace.open("./data") as m: ...`, or `m = await millrace.open("./data")` and
    `await m.close()` later. The engine runs on the caller's event loop. A folder has one owner
    process.

    Raises:
        InUse: another process owns the folder; the error names its pid.
        Copied: it is a copy of another folder; `Settings(fork=True)` opens it as a new one.
        Corrupt: it is damaged; nothing was changed.
    """
    return Opening(Path(path), settings or Settings())
