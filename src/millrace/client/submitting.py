"""Asking an engine without a task: a command goes out, and a future has what it is answered."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pyroaring import BitMap64

from millrace.core.commands import Command
from millrace.core.model import Row, ShardId
from millrace.core.receipt import Proved, Receipt


class Again(Exception):
    """Nothing is known of an answer, and nothing speaks against asking from the beginning."""


class Asked(Protocol):
    """A command that is under way."""

    @property
    def future(self) -> asyncio.Future[object]:
        """When it is done, `Submits.heard` tells what came of it."""
        ...


class Submits(Protocol):
    """An engine that takes commands without a task.

    A command that is judged by cold rows would wait for the disk: such are asked with `ask`.
    """

    def submit(self, shard: ShardId, command: Command, wait_ms: int = 0) -> Asked:
        """Have the command decided.

        Raises:
            MillraceError: nothing was asked.
        """
        ...

    def heard(self, asked: Asked) -> object:
        """What a command was answered whose future is done.

        Raises:
            MillraceError: what it was refused with.
            Again: it may be asked once more, and has to be.
        """
        ...

    def take_back(self, asked: Asked) -> None:
        """Nobody hears the answer: it is not decided any more, or what it handed out returns."""
        ...

    def rows_at_hand(self, shard: ShardId, seqs: BitMap64, size: int) -> list[Row] | None:
        """As `Engine.rows`, if nothing has to be waited for."""
        ...

    def proved(
        self, shard: ShardId, number: int, history: bytes | None = None, *, session: bool = False
    ) -> Proved:
        """As that of `Engine`."""
        ...

    def sealed(self, receipt: Receipt, proved: Proved) -> str:
        """A receipt of a lease call that was proved, as text; whoever wrote it knows it again."""
        ...

    def unseal(self, text: str) -> Receipt:
        """As that of `Engine`."""
        ...
