"""Watching requests: a line of the access log, and a span, of each of them.

Rule 1: where neither is asked for, a request pays one look for it.
Rule 2: a line names the route, not the address; who asked, not by what secret; and no word that a
stranger has sent, but for an id that has the form of one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from time import perf_counter
from typing import TYPE_CHECKING

from millrace.server.http.parser import Request
from millrace.server.http.response import Part, Response, size_of
from millrace.server.rest.route import Ask

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry

_logger = logging.getLogger("millrace.access")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


class AccessLog:
    """One line for each request, or for one of so many; for those that fail in any case."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._count = 0
        # Whoever asks for it gets it, whatever else is logged.
        _logger.setLevel(logging.INFO)

    def wants(self, status: int) -> bool:
        """Whether a request that is answered so has its line."""
        self._count += 1
        return status >= 400 or self._count % self._every == 0

    def write(
        self, request: Request, route: str, who: str, where: str, status: int, size: int, us: int
    ) -> None:
        """Write it."""
        fields: dict[str, object] = {
            "who": who or "-",
            "from": where,
            "method": request.method,
            "route": route,
            "status": status,
            "in_bytes": len(request.body),
            "out_bytes": size,
            "us": us,
        }
        given = request.headers.get("x-request-id", "")
        if _ID.fullmatch(given):
            fields["request_id"] = given
        found = _TRACE.fullmatch(request.headers.get("traceparent", ""))
        if found is not None:
            fields["trace_id"] = found[1]
        _logger.info("request", extra={"fields": fields})


class Watch:
    """Sees requests come and go."""

    def __init__(self, telemetry: Telemetry | None, log: AccessLog | None) -> None:
        self._telemetry = telemetry
        self._log = log

    async def answer(self, ask: Ask, answer: Callable[[], Awaitable[Response]]) -> Response:
        """Have a request answered, and tell of it."""
        began, telemetry = perf_counter(), self._telemetry
        request, route = ask.request, ask.route.path
        span = (
            nullcontext()
            if telemetry is None
            else telemetry.answering(request.method, route, request.headers)
        )
        with span as step:
            response = await answer()
            if telemetry is not None and step is not None:
                step.set("user.name", ask.principal.name)
                telemetry.answered(step, response.status)
        if self._log is not None and self._log.wants(response.status):
            who, where = ask.principal.name, ask.principal.where

            def end(size: int) -> None:
                assert self._log is not None
                us = int((perf_counter() - began) * 1e6)
                self._log.write(request, route, who, where, response.status, size, us)

            if response.parts is None or request.method == "HEAD":
                end(len(response.body))
            else:
                response.parts = _counted(response.parts, end)
        return response

    def refused(self, request: Request, route: str, who: str, where: str, status: int) -> None:
        """A request was refused by its head."""
        if self._log is not None and self._log.wants(status):
            self._log.write(request, route, who, where, status, 0, 0)


async def _counted(parts: AsyncIterator[Part], end: Callable[[int], None]) -> AsyncIterator[Part]:
    """The parts; at their end, however they end, `end` is told how many bytes they were."""
    size = 0
    try:
        async for part in parts:
            size += size_of(part)
            yield part
    finally:
        end(size)
        close = getattr(parts, "aclose", None)
        if close is not None:
            await close()
