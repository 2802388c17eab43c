"""The entry point of the API and its OpenAPI document."""

from __future__ import annotations

import asyncio
from functools import cache

import msgspec

from millrace.server.http.response import Response
from millrace.server.rest.route_table import ROUTES, SPACE
from millrace.server.web.openapi import describe
from millrace.server.web.route import (
    JSON,
    Media,
    Nothing,
    RequestContext,
    encode,
    read_query,
)
from millrace.version import __version__


class Root(msgspec.Struct, frozen=True):
    """The server's version and links to the parts of the API."""

    version: str
    links: dict[str, str]


@ROUTES.json("GET", "/v1", "known", Nothing, Root, tag="about")
async def root(ask: RequestContext, _: Nothing) -> Root:
    """Return the server's version and links to the other routes."""
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
async def openapi(ask: RequestContext) -> Response:
    """Return the OpenAPI document of this API."""
    read_query(ask, Nothing)
    # The document is generated from all routes, which takes a quarter of a second.
    return Response(200, await asyncio.to_thread(document))


@cache
def document() -> bytes:
    """Return the description of all routes as JSON, made once."""
    return encode(describe(ROUTES, __version__))
