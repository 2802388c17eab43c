"""How the server is: whether it lives, whether it serves, and what it has counted."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from millrace import limits
from millrace.errors import MillraceError
from millrace.server import metrics
from millrace.server.http.response import Response
from millrace.server.rest.route import Ask, Media, Nothing, encode
from millrace.server.rest.table import ROUTES


class Alive(msgspec.Struct, frozen=True):
    """The process answers."""

    status: Literal["alive"] = "alive"


@ROUTES.json("GET", "/healthz", "public", Nothing, Alive, tag="status")
async def healthz(ask: Ask, told: Nothing) -> Alive:
    """Whether the process lives; it says nothing of whether it can serve."""
    return Alive()


class Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether requests are served."""

    ready: bool
    why: str = ""
    """What keeps it from it."""


@ROUTES.json("GET", "/readyz", "public", Nothing, Ready, tag="status", also_status=(503,))
async def readyz(ask: Ask, told: Nothing) -> Ready | Response:
    """Whether requests are served: the engine commits, nothing is short, nobody is stopping it."""
    why = await _hindrance(ask)
    if not why:
        return Ready(ready=True)
    return Response(503, encode(Ready(ready=False, why=why)), headers={"retry-after": "1"})


async def _hindrance(ask: Ask) -> str:
    if ask.server.is_stopping:
        return "stopping"
    try:
        async with asyncio.timeout(limits.READY_SECONDS):
            health = await ask.desk.millrace.health()
    except TimeoutError:
        return "the engine does not answer"
    except MillraceError as error:
        return error.code
    # To publish is refused; to settle, and so to make room, is not.
    return "short of disk or memory" if health.refuses else ""


class Whoami(msgspec.Struct, frozen=True):
    """Who asks, as the server knows them."""

    name: str
    rules: list[str]


@ROUTES.json("GET", "/v1/whoami", "known", Nothing, Whoami, tag="status")
async def whoami(ask: Ask, told: Nothing) -> Whoami:
    """Who is known by what was sent, and what they may do."""
    return Whoami(ask.principal.name, [str(rule) for rule in ask.principal.rules])


@ROUTES.raw(
    "GET",
    "/metrics",
    "watch",
    gives_media=(Media(metrics.TYPE, "Everything that is counted, for Prometheus."),),
    tag="status",
)
async def show_metrics(ask: Ask) -> Response:
    """What the server has counted, as Prometheus reads it."""
    return Response(200, await ask.server.metrics(), type=metrics.TYPE)
