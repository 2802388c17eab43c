"""Transports: carry calls to an engine in another process, and answers back.

`socket_transport` connects to a process on the same machine, `http_transport` to a server anywhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, Protocol

import pyarrow as pa

from millrace.core.model import Row
from millrace.errors import MillraceError
from millrace.rpc.calls import Call, ReadBatches


class ConnectionLost(Exception):
    """The connection was lost, or could not be made, before the answer arrived."""

    def __init__(self, why: str, *, sent: bool, lasts: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent
        """True if the other side may have received the call."""
        self.lasts = lasts
        """True if a retry is useless: something has to be changed first."""


def copy_of(error: Exception) -> Exception:
    """Return a copy of a stored error to raise: a raised error references stack frames."""
    if isinstance(error, MillraceError):
        return error.again()
    if isinstance(error, ConnectionLost):
        return ConnectionLost(error.why, sent=error.sent, lasts=error.lasts)
    return error


class CallResult(NamedTuple):
    """Answer of a call."""

    value: object
    rows: list[Row] | None = None
    """Messages of a lease call, if they came with the answer."""


class PendingCall(Protocol):
    """A call that was sent."""

    @property
    def call(self) -> Call:
        """The call that was sent."""
        ...

    def then(self, tell: Callable[[object], None]) -> None:
        """Set the callback for the answer or the loss of the connection, never called before this
        returns."""
        ...

    def result(self) -> CallResult:
        """Return the answer, in the callback or later.

        Raises:
            ConnectionLost, MillraceError: as `Transport.call`.
        """
        ...

    def give_up(self) -> None:
        """Cancel the call, as by cancelling a `Transport.call`."""
        ...


class Transport(Protocol):
    """Carries calls to an engine."""

    @property
    def where(self) -> str:
        """Address, for messages."""
        ...

    @property
    def is_here(self) -> bool:
        """True if the engine is on this machine, so that file paths mean the same to it."""
        ...

    async def call(self, call: Call) -> CallResult:
        """Make a call and wait for its answer.

        If the caller is cancelled, the other side is notified, and the callback `late` gets an
        answer that arrives nevertheless.

        Raises:
            ConnectionLost: the connection was lost, or could not be made.
            MillraceError: the error that the engine answered.
        """
        ...

    def begin(self, call: Call) -> PendingCall | None:
        """Make a call without waiting; None if that needs waiting, for example for a connection."""
        ...

    def tell(self, call: Call) -> None:
        """Send a call that is not answered; it is lost if the connection is."""
        ...

    def batches(self, call: ReadBatches) -> AsyncGenerator[pa.RecordBatch, None]:
        """Stream the batches of a read; raises as `call`."""
        ...

    def clock_ahead_ms(self) -> int:
        """Return how far the engine's clock is ahead of this machine's, in milliseconds."""
        ...

    async def close(self) -> None:
        """Close the connections; pending calls are cancelled."""
        ...
