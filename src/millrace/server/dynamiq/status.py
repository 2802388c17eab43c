"""What Dynamiq told of its nodes: here there is one, which has all ids."""

from __future__ import annotations

import msgspec

from millrace.core.message_id import IDS
from millrace.server.dynamiq.table import ROUTES
from millrace.server.dynamiq.wire import text_out
from millrace.server.http.response import Response
from millrace.server.rest.route import Ask, Nothing


@ROUTES.json("GET", "/v1/status/servers", "known", Nothing, str)
async def list_servers(ask: Ask, _: Nothing) -> Response:
    """The servers, one a line: this one, at the address that it was asked by."""
    return text_out(f"Member: millrace {ask.request.headers.get('host', '-')}\n")


class RangeOut(msgspec.Struct, frozen=True):
    """The ids of the messages that a server has, from the first to the last."""

    bottom: str
    top: str


@ROUTES.json("GET", "/v1/status/partitionrange", "known", Nothing, RangeOut)
async def show_range(ask: Ask, _: Nothing) -> RangeOut:
    """Which ids are here."""
    return RangeOut("0", str(IDS - 1))
