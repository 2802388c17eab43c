"""Asking an engine without a task: a command goes out, and it is told when it was answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyroaring import BitMap64

from millrace.core.commands import Command
from millrace.core.model import LeaseId, Row, ShardId
from millrace.core.receipt import Proved, Receipt


class Again(Exception):
    """Nothing is known of an answer, and nothing speaks against asking from the beginning."""


class Asked(Protocol):
    """A command that is under way, to the engine that it was submitted to."""


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

    def then(self, asked: Asked, tell: Callable[[object], None]) -> None:
        """Have it told, once, when `heard` knows what came of it; not before this has returned."""
        ...

    def heard(self, asked: Asked) -> object:
        """What a command was answered, when that was told.

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

    def sealed(
        self, shard: ShardId, lease: LeaseId, proved: Proved, seqs: Sequence[int]
    ) -> list[str]:
        """Receipts of a lease call that was proved, as texts; whoever wrote them knows them."""
        ...

    def unseal(self, text: str) -> Receipt:
        """As that of `Engine`."""
        ...
