"""Batched calls of programs that use `millrace.connect`: many calls in one request."""

from __future__ import annotations

from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.rest.route_table import ROUTES
from millrace.server.rpc.http_calls import TYPE, answer_calls
from millrace.server.web.route import Media, RequestContext

FRAMES = Media(TYPE, "Frames, as docs/formats/wire.md says; the clients of the project make them.")


@ROUTES.raw("POST", "/v1/calls", "known", also_takes=(FRAMES,), gives_media=(FRAMES,), tag="calls")
async def calls(ask: RequestContext) -> Response:
    """Run calls to the engine; each call is authorized and answered separately."""
    ask.waits = True
    server, who = ask.server, ask.principal
    quotas = server.quotas
    return await answer_calls(
        server.service,
        who,
        ask.request.body,
        now_ms=now_ms(),
        stopping=server.stopping,
        owe=lambda count: quotas.owe_requests(who, now_ms(), count),
        owe_bytes=(
            (lambda size: quotas.owe(who, now_ms(), size)) if quotas.counts_bytes(who) else None
        ),
    )
