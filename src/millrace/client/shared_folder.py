"""Connecting to the process that has a folder open and shares it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millrace.client.millrace import Millrace
from millrace.client.remote import RemoteEngine
from millrace.errors import Closed
from millrace.rpc.socket_transport import SocketTransport
from millrace.rpc.transport import ConnectionLost


async def join(path: Path, may_join: Callable[[], bool] | None = None) -> Millrace:
    """Connect to the process that has a folder open; it is never opened in this process.

    When that process has ended, its successor is joined, unless `may_join` returns False.

    Raises:
        Closed: the folder is not open, or not shared.
    """
    try:
        return Millrace(await join_engine(path, may_join))
    except ConnectionLost as lost:
        raise Closed(f"{path}: {lost.why}; is its engine open?") from lost


async def join_engine(path: Path, may_join: Callable[[], bool] | None = None) -> RemoteEngine:
    """Return the engine of the process that has the folder open.

    Raises:
        ConnectionLost: the folder is not open, or not shared.
    """
    engine = RemoteEngine()
    transport = SocketTransport(path, engine.late, may_join)
    engine.use(transport)
    await transport.connect()
    return engine
