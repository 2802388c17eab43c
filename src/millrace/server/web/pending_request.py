"""Requests that are served without a task: a command is submitted, and a callback sends its result.

Rule 1: it is the same command with the same checks as in a task; a request that this path does not
support is served by a task instead, before anything of it was started.
Rule 2: if the client disconnects, the command is withdrawn, and messages that it leased are
returned.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from millrace.client.engine import CallbackEngine, PendingCommand, Resubmit
from millrace.errors import Fatal, MillraceError, NotFound, detached
from millrace.server.http.listener_context import Answer
from millrace.server.http.response import Response

if TYPE_CHECKING:
    from millrace.server.web.route import RequestContext

_logger = logging.getLogger("millrace.server")


class PendingRequest(ABC):
    """A request whose command is in flight."""

    __slots__ = ("_asked", "_began", "_tell", "ask", "engine")

    def __init__(self, ask: RequestContext, engine: CallbackEngine, asked: PendingCommand) -> None:
        self.ask = ask
        self.engine = engine
        self._asked = asked
        self._tell: Callable[[Answer], None] | None = None
        self._began = perf_counter()

    @abstractmethod
    def read(self, answer: object) -> Answer:
        """Convert the command's result into the response."""

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
        except Resubmit:
            tell(server.again(ask))
            return
        except MillraceError as error:
            if isinstance(error, NotFound) and error.field == "queue":
                # The queue was deleted, and perhaps made again; nothing was done.
                detached(error)
                tell(server.again(ask))
                return
            # Messages that were leased but cannot be sent go back to the queue.
            self.engine.take_back(self._asked)
            answer = server.answer_error(ask, error)
            # The engine's future references the error, and this frame the future: break the cycle.
            detached(error)
        except Exception:
            _logger.exception("%s ended in an error", ask.route.path)
            self.engine.take_back(self._asked)
            answer = server.answer_error(ask, mistake())
        if isinstance(answer, Response):
            tell(server.note(ask, answer, self._began))
        else:
            tell(server.rest(ask, answer, self._began))


class LongPoll(PendingRequest):
    """A pending request that waits for messages."""

    __slots__ = ()

    @abstractmethod
    def none(self) -> Response:
        """Return the response for the case that the server stops before messages arrive."""

    def then(self, tell: Callable[[Answer], None]) -> None:
        self.ask.server.stopping.add(self)
        super().then(tell)

    def stop(self) -> None:
        """Respond that nothing has arrived."""
        tell = self._take()
        if tell is not None:
            self.engine.take_back(self._asked)
            tell(self.ask.server.note(self.ask, self.none(), self._began))

    def _take(self) -> Callable[[Answer], None] | None:
        self.ask.server.stopping.discard(self)
        return super()._take()


def mistake() -> Fatal:
    """Return the error of responses to unexpected exceptions."""
    return Fatal("the server made a mistake; its log has more")


Quick = Callable[["RequestContext", CallbackEngine], PendingRequest | None]
"""Starts the operation of a request; returns None if a task must serve it.

Raises:
    MillraceError: as in a task; nothing was started.
"""
