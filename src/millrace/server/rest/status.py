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


class ReadyAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server must be ready for."""

    publishing: bool = False
    """Also for publishing: where that is refused for lack of disk or memory, the answer is 503."""


class Ready(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether requests are served."""

    ready: bool
    publishing: bool = True
    """False: workers are served, but messages are not accepted."""
    why: str = ""
    """What keeps it from it."""


@ROUTES.json("GET", "/readyz", "public", ReadyAsk, Ready, tag="status", also_status=(503,))
async def readyz(ask: Ask, params: ReadyAsk) -> Ready | Response:
    """Whether workers are served: the engine commits, and nobody is stopping the server.

    A server that is short of disk or memory stays ready: if it were taken out of rotation, no
    worker could settle, which is what makes room.
    """
    state = await _state(ask)
    if state.ready and (state.publishing or not params.publishing):
        return state
    return Response(503, encode(state), headers={"retry-after": "1"})


async def _state(ask: Ask) -> Ready:
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
        return Ready(ready=True, publishing=False, why="short of disk or memory")
    return Ready(ready=True)


def _unready(why: str) -> Ready:
    return Ready(ready=False, why=why)


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
    return Response(200, await ask.server.metrics(ask.principal), type=metrics.TYPE)
