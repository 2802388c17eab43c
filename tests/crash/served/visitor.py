"""A player whose engine is a server's: it lives on when that is killed, and so must its calls."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from millrace import Millrace, errors
from tests.crash.events import LIFE_SHIFT, AnyAttempt, Duty, Send, Transact
from tests.crash.player import Player

T = TypeVar("T")


class GaveUp(Exception):
    """A call that may be repeated was not answered, however often it was."""


class Visitor(Player):
    """One client; the number of its life tells its attempts and messages from others'."""

    def __init__(self, opened: Millrace, duty: Duty, out: int) -> None:
        super().__init__(opened, duty, out)
        self._op = duty.life << LIFE_SHIFT

    async def attempt(self, attempt: AnyAttempt, call: Awaitable[T]) -> T | None:
        """Announce it, do it; None if it was refused, which is told, or if nobody knows.

        Raises:
            GaveUp: it should have gone on by itself.
        """
        return await super().attempt(attempt, self._known(attempt, call))

    async def _known(self, attempt: AnyAttempt, call: Awaitable[T]) -> T | None:
        try:
            return await call
        except errors.Unknown as error:
            is_numbered = isinstance(attempt, Send) and attempt.producer
            if is_numbered or not isinstance(attempt, Send | Transact):
                raise GaveUp(f"{attempt}: {error}") from error
            return None
        except errors.Closed as error:
            raise GaveUp(f"{attempt}: {error}") from error
