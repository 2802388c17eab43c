"""Requests that take no task: a command is submitted, and what it is answered is told on.

Rule 1: it is the same command, judged by the same checks, as by the way of all other requests; what
does not fit goes that way instead, and nothing of it was begun.
Rule 2: as there, whoever asked has gone: the command is taken back, and what it was handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from millrace.client.embedded import EmbeddedEngine
from millrace.errors import Fatal, MillraceError, NotFound
from millrace.server.http.connection import Answer
from millrace.server.http.response import Response
from millrace.shard.request import Request as Command

if TYPE_CHECKING:
    import asyncio

    from millrace.server.rest.route import Ask

_logger = logging.getLogger("millrace.server")


class Under:
    """A command of a request, which is under way."""

    __slots__ = ("_ask", "_began", "_engine", "_none", "_read", "_request", "_tell")

    def __init__(
        self,
        ask: Ask,
        engine: EmbeddedEngine,
        request: Command,
        read: Callable[[object], Answer],
        none: Callable[[], Response] | None = None,
    ) -> None:
        """`read` makes an answer of what the command is answered; `none`, which a command has that
        waits for something to come, one of that nothing has."""
        self._ask = ask
        self._engine = engine
        self._request = request
        self._read = read
        self._none = none
        self._tell: Callable[[Answer], None] | None = None
        self._began = perf_counter()

    def then(self, tell: Callable[[Answer], None]) -> None:
        self._tell = tell
        if self._none is not None:
            self._ask.server.stopping.add(self)
        self._request.future.add_done_callback(self._answered)

    def cancel(self) -> None:
        if self._take() is not None:
            self._engine.take_back(self._request)

    def stop(self) -> None:
        """Nothing has come: so it is told."""
        tell = self._take()
        if tell is not None and self._none is not None:
            self._engine.take_back(self._request)
            tell(self._ask.server.note(self._ask, self._none(), self._began))

    def _take(self) -> Callable[[Answer], None] | None:
        tell, self._tell = self._tell, None
        if self._none is not None:
            self._ask.server.stopping.discard(self)
        return tell

    def _answered(self, future: asyncio.Future[object]) -> None:
        tell = self._take()
        if tell is None:
            return
        ask, server = self._ask, self._ask.server
        try:
            answer = self._read(future.result())
        except MillraceError as error:
            if isinstance(error, NotFound) and error.field == "queue":
                # Deleted, and perhaps made anew: nothing was done.
                tell(server.again(ask))
                return
            # What was handed out and cannot be told returns.
            self._engine.take_back(self._request)
            answer = server.answer_error(ask, error)
        except Exception:
            _logger.exception("%s ended in an error", ask.route.path)
            self._engine.take_back(self._request)
            answer = server.answer_error(ask, mistake())
        if isinstance(answer, Response):
            tell(server.note(ask, answer, self._began))
        else:
            tell(server.rest(ask, answer, self._began))


def mistake() -> Fatal:
    """What is answered where an error came up that nobody foresaw."""
    return Fatal("the server made a mistake; its log has more")


Quick = Callable[["Ask", EmbeddedEngine], Under | None]
"""Begins what a request asks for; None: it goes the way of all others.

Raises:
    MillraceError: as there; nothing was begun.
"""
