"""Request logging and tracing: a line of the access log and a span for each request.

Rule 1: if both are off, the cost per request is a single check.
Rule 2: a line contains the route instead of the address, the user without the secret, and no text
of the request except for ids of valid form.
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
from millrace.server.web.route import RequestContext

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry

_logger = logging.getLogger("millrace.access")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


class AccessLog:
    """Logs every nth request, and all that fail."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._count = 0
        # Log at INFO regardless of the level of other loggers: the access log is enabled
        # explicitly.
        _logger.setLevel(logging.INFO)

    def wants(self, status: int) -> bool:
        """Return True if a request with this status is to be logged."""
        self._count += 1
        return status >= 400 or self._count % self._every == 0

    def write(
        self, request: Request, route: str, who: str, where: str, status: int, size: int, us: int
    ) -> None:
        """Write the line of one request."""
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


class RequestLog:
    """Logs and traces requests."""

    def __init__(self, telemetry: Telemetry | None, log: AccessLog | None) -> None:
        self._telemetry = telemetry
        self._log = log

    async def answer(
        self, ask: RequestContext, answer: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Serve a request with its span and log line."""
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
        """Log a request that was refused by its head."""
        if self._log is not None and self._log.wants(status):
            self._log.write(request, route, who, where, status, 0, 0)


async def _counted(parts: AsyncIterator[Part], end: Callable[[int], None]) -> AsyncIterator[Part]:
    """Yield the parts, and call `end` with their total size however they end."""
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
