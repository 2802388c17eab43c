"""A line to an engine in another process: a call goes out, its answer comes back.

`line_socket` speaks with a process of the same machine, `line_http` with a server anywhere.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, Protocol

import pyarrow as pa

from millrace.core.model import Row
from millrace.errors import MillraceError
from millrace.rpc.calls import Call, ReadBatches


class Lost(Exception):
    """The line was lost before the answer came."""

    def __init__(self, why: str, *, sent: bool, lasts: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent
        """Whether the other side may have heard of the call."""
        self.lasts = lasts
        """It would be no better in a while: somebody has to change something."""


def copy_of(error: Exception) -> Exception:
    """Return a copy of a stored error to be raised: one that is raised holds frames."""
    if isinstance(error, MillraceError):
        return error.again()
    if isinstance(error, Lost):
        return Lost(error.why, sent=error.sent, lasts=error.lasts)
    return error


class Answered(NamedTuple):
    """What a call was answered."""

    value: object
    rows: list[Row] | None = None
    """The messages of a lease call, where they came with it."""


class Begun(Protocol):
    """A call that is under way."""

    @property
    def call(self) -> Call:
        """What was asked."""
        ...

    def then(self, tell: Callable[[object], None]) -> None:
        """Have it told when it was answered, or the line was lost; not before this returns."""
        ...

    def result(self) -> Answered:
        """What it was answered, when that was told.

        Raises:
            Lost, MillraceError: as `Line.call`.
        """
        ...

    def give_up(self) -> None:
        """As if who waits for a `call` were cancelled."""
        ...


class Line(Protocol):
    """Carries calls to an engine."""

    @property
    def where(self) -> str:
        """The address, for people to read."""
        ...

    @property
    def is_here(self) -> bool:
        """Whether paths of files mean the same on the other side."""
        ...

    async def call(self, call: Call) -> Answered:
        """Have a call made.

        If the caller is cancelled, the other side is told, and `late` of what had been answered.

        Raises:
            Lost: the line was lost, or could not be had.
            MillraceError: what the engine answered.
        """
        ...

    def begin(self, call: Call) -> Begun | None:
        """As `call`, without waiting; None if something has to be waited for before."""
        ...

    def tell(self, call: Call) -> None:
        """Send a call that is not answered; if the line is lost, it may be lost with it."""
        ...

    def batches(self, call: ReadBatches) -> AsyncGenerator[pa.RecordBatch, None]:
        """The batches of a stream; raises as `call`."""
        ...

    def ahead_ms(self) -> int:
        """By how much the engine's clock is ahead of this machine's."""
        ...

    async def close(self) -> None:
        """End it; calls that are under way are given up."""
        ...
