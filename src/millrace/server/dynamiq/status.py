"""Dynamiq's status of its nodes: here one node, which has all ids."""

from __future__ import annotations

import msgspec

from millrace.core.format.message_id import IDS
from millrace.server.dynamiq.route_table import ROUTES
from millrace.server.dynamiq.schemas import text_out
from millrace.server.http.response import Response
from millrace.server.web.route import Nothing, RequestContext


@ROUTES.json("GET", "/v1/status/servers", "known", Nothing, str)
async def list_servers(ask: RequestContext, _: Nothing) -> Response:
    """List the servers, one per line: this one, with the host that the request was sent to."""
    return text_out(f"Member: millrace {ask.request.headers.get('host', '-')}\n")


class RangeOut(msgspec.Struct, frozen=True):
    """The first and the last message id of a server's range."""

    bottom: str
    top: str


@ROUTES.json("GET", "/v1/status/partitionrange", "known", Nothing, RangeOut)
async def show_range(ask: RequestContext, _: Nothing) -> RangeOut:
    """Return the range of message ids on this server."""
    return RangeOut("0", str(IDS - 1))
