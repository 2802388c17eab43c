"""What the API tells of itself."""

from __future__ import annotations

import asyncio
from functools import cache

import msgspec

from millrace.server.http.response import Response
from millrace.server.rest.openapi import describe
from millrace.server.rest.route import JSON, Ask, Media, Nothing, encode, read_query
from millrace.server.rest.table import ROUTES, SPACE
from millrace.version import __version__


class Root(msgspec.Struct, frozen=True):
    """Where to begin."""

    version: str
    links: dict[str, str]


@ROUTES.json("GET", "/v1", "known", Nothing, Root, tag="about")
async def root(ask: Ask, _: Nothing) -> Root:
    """The version, and where everything else is."""
    return Root(
        __version__,
        {
            "openapi": "/v1/openapi.json",
            "spaces": "/v1/spaces",
            "queues": f"{SPACE}/queues",
            "topics": f"{SPACE}/topics",
            "transactions": f"{SPACE}/transactions",
            "health": "/v1/health",
        },
    )


@ROUTES.raw(
    "GET",
    "/v1/openapi.json",
    "known",
    gives_media=(Media(JSON, "OpenAPI 3.1."),),
    tag="about",
)
async def openapi(ask: Ask) -> Response:
    """This description."""
    read_query(ask, Nothing)
    # It is made of the source of all routes, which takes a quarter of a second.
    return Response(200, await asyncio.to_thread(document))


@cache
def document() -> bytes:
    """Return the description of all routes as JSON, made once."""
    return encode(describe(ROUTES, __version__))
