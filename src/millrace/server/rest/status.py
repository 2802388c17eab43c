"""The server's status: liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from millrace import limits
from millrace.errors import MillraceError
from millrace.server.http.response import Response
from millrace.server.rest.route_table import ROUTES
from millrace.server.web import metrics
from millrace.server.web.route import (
    Media,
    Nothing,
    RequestContext,
    encode,
)


class Alive(msgspec.Struct, frozen=True):
    """The process is running."""

    status: Literal["alive"] = "alive"


@ROUTES.json("GET", "/healthz", "public", Nothing, Alive, tag="status")
async def healthz(ask: RequestContext, params: Nothing) -> Alive:
    """Report liveness: the process responds, which does not imply that it can serve."""
    return Alive()


class ReadyAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The condition of readiness."""

    publishing: bool = False
    """Also require that publishing works: 503 if it is refused for lack of disk or memory."""


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """The readiness of the server."""

    ready: bool
    publishing: bool = True
    """False if publishing is refused, while workers are served."""
    why: str = ""
    """The reason if it is not ready."""


@ROUTES.json("GET", "/readyz", "public", ReadyAsk, Readiness, tag="status", also_status=(503,))
async def readyz(ask: RequestContext, params: ReadyAsk) -> Readiness | Response:
    """Report readiness: the engine commits, and the server is not stopping.

    A server that is short of disk or memory stays ready: if it were taken out of rotation, no
    worker could settle messages, which frees the space.
    """
    state = await _state(ask)
    if state.ready and (state.publishing or not params.publishing):
        return state
    return Response(503, encode(state), headers={"retry-after": "1"})


async def _state(ask: RequestContext) -> Readiness:
    if ask.server.is_stopping:
        return _unready("stopping")
    try:
        async with asyncio.timeout(limits.READY_SECONDS):
            health = await ask.desk.millrace.health()
    except TimeoutError:
        return _unready("the engine does not answer")
    except MillraceError as error:
        return _unready(error.code)
    if health.refuses:
        return Readiness(ready=True, publishing=False, why="short of disk or memory")
    return Readiness(ready=True)


def _unready(why: str) -> Readiness:
    return Readiness(ready=False, why=why)


class Whoami(msgspec.Struct, frozen=True):
    """The authenticated user of a request."""

    name: str
    rules: list[str]


@ROUTES.json("GET", "/v1/whoami", "known", Nothing, Whoami, tag="status")
async def whoami(ask: RequestContext, params: Nothing) -> Whoami:
    """Return the authenticated user and its rules."""
    return Whoami(ask.principal.name, [str(rule) for rule in ask.principal.rules])


@ROUTES.raw(
    "GET",
    "/metrics",
    "watch",
    gives_media=(Media(metrics.TYPE, "Everything that is counted, for Prometheus."),),
    tag="status",
)
async def show_metrics(ask: RequestContext) -> Response:
    """Return the server's metrics in the Prometheus format."""
    return Response(200, await ask.server.metrics(ask.principal), type=metrics.TYPE)
