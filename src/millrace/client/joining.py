"""Joining whoever has a folder open and shares it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millrace.client.line import Lost
from millrace.client.line_socket import SocketLine
from millrace.client.millrace import Millrace
from millrace.client.remote import RemoteEngine
from millrace.errors import Closed


async def join(path: Path, may_join: Callable[[], bool] | None = None) -> Millrace:
    """Use the folder of whoever has it open and shares it; it is never opened here.

    When that process has ended the next one is joined, unless `may_join` says no.

    Raises:
        Closed: nobody does.
    """
    try:
        return Millrace(await joined(path, may_join))
    except Lost as lost:
        raise Closed(f"{path}: {lost.why}; is its engine open?") from lost


async def joined(path: Path, may_join: Callable[[], bool] | None = None) -> RemoteEngine:
    """The engine of whoever has the folder open.

    Raises:
        Lost: nobody does, or it is not shared.
    """
    engine = RemoteEngine()
    line = SocketLine(path, engine.late, may_join)
    engine.use(line)
    await line.connect()
    return engine
