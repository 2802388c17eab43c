"""Requests that take no task: a command is submitted, and what it is answered is told on.

Rule 1: it is the same command, judged by the same checks, as by the way of all other requests; what
does not fit goes that way instead, and nothing of it was begun.
Rule 2: where whoever asked has gone, the command is taken back, and what it was handed out.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from millrace.client.submitting import Again, Asked, Submits
from millrace.errors import Fatal, MillraceError, NotFound, detached
from millrace.server.http.response import Response
from millrace.server.http.site import Answer

if TYPE_CHECKING:
    from millrace.server.rest.route import Ask

_logger = logging.getLogger("millrace.server")


class Under(ABC):
    """A command of a request, which is under way."""

    __slots__ = ("_asked", "_began", "_tell", "ask", "engine")

    def __init__(self, ask: Ask, engine: Submits, asked: Asked) -> None:
        self.ask = ask
        self.engine = engine
        self._asked = asked
        self._tell: Callable[[Answer], None] | None = None
        self._began = perf_counter()

    @abstractmethod
    def read(self, answer: object) -> Answer:
        """Make an answer to the request of what the command was answered."""

    def then(self, tell: Callable[[Answer], None]) -> None:
        self._tell = tell
        self.engine.then(self._asked, self._answered)

    def cancel(self) -> None:
        if self._take() is not None:
            self.engine.take_back(self._asked)
            self.ask.server.left(self.ask)

    def _take(self) -> Callable[[Answer], None] | None:
        tell, self._tell = self._tell, None
        return tell

    def _answered(self, asked: object) -> None:
        tell = self._take()
        if tell is None:
            return
        ask, server = self.ask, self.ask.server
        try:
            answer = self.read(self.engine.heard(self._asked))
        except Again:
            tell(server.again(ask))
            return
        except MillraceError as error:
            if isinstance(error, NotFound) and error.field == "queue":
                # Deleted, and perhaps made anew: nothing was done.
                detached(error)
                tell(server.again(ask))
                return
            # What was handed out and cannot be told returns.
            self.engine.take_back(self._asked)
            answer = server.answer_error(ask, error)
            # The engine's future holds the error, and this frame the future.
            detached(error)
        except Exception:
            _logger.exception("%s ended in an error", ask.route.path)
            self.engine.take_back(self._asked)
            answer = server.answer_error(ask, mistake())
        if isinstance(answer, Response):
            tell(server.note(ask, answer, self._began))
        else:
            tell(server.rest(ask, answer, self._began))


class Poll(Under):
    """One that waits for something to come."""

    __slots__ = ()

    @abstractmethod
    def none(self) -> Response:
        """The answer where nothing has come before the server stops."""

    def then(self, tell: Callable[[Answer], None]) -> None:
        self.ask.server.stopping.add(self)
        super().then(tell)

    def stop(self) -> None:
        """Nothing has come: so it is told."""
        tell = self._take()
        if tell is not None:
            self.engine.take_back(self._asked)
            tell(self.ask.server.note(self.ask, self.none(), self._began))

    def _take(self) -> Callable[[Answer], None] | None:
        self.ask.server.stopping.discard(self)
        return super()._take()


def mistake() -> Fatal:
    """What is answered where an error came up that nobody foresaw."""
    return Fatal("the server made a mistake; its log has more")


Quick = Callable[["Ask", Submits], Under | None]
"""Begins what a request asks for; None: it goes the way of all others.

Raises:
    MillraceError: as there; nothing was begun.
"""
