"""A server that answers nothing but calls, for tests of them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from millrace.client.engine import Engine
from millrace.errors import MillraceError, Unauthenticated
from millrace.server.auth.access import Principal, parse_rule
from millrace.server.http.listener import Listener
from millrace.server.http.listener_context import ListenerContext
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from millrace.server.rpc.call_audit import CallAudit
from millrace.server.rpc.call_session import RpcService
from millrace.server.rpc.http_calls import answer_calls
from millrace.server.web.problem import answer_bad, answer_error

ALL = {"token": ("allow * */*",)}


@asynccontextmanager
async def served(
    engine: Engine,
    rules: Mapping[str, tuple[str, ...]] = ALL,
    *,
    tls: ssl.SSLContext | None = None,
    keeping: CallAudit | None = None,
) -> AsyncIterator[str]:
    """The address of a server whose users are known by these tokens."""
    service = RpcService(engine, keeping)
    users = {
        f"Bearer {token}": Principal(token, tuple(map(parse_rule, found)))
        for token, found in rules.items()
    }

    def admit(request: Request, length: int | None, peer: str) -> Response | None:
        found = users.get(request.headers.get("authorization", ""))
        if found is None:
            return answer_error(Unauthenticated("nobody is known by this", field="authorization"))
        request.context = found
        return None

    async def handle(request: Request) -> Response:
        who = request.context
        assert isinstance(who, Principal)
        try:
            return await answer_calls(service, who, request.body, now_ms=engine.now_ms())
        except MillraceError as error:
            return answer_error(error)

    listener = Listener(ListenerContext(admit, handle, answer_bad))
    host, port = await listener.listen("127.0.0.1", 0, tls=tls)
    try:
        yield f"{'https' if tls else 'http'}://{host}:{port}"
    finally:
        await listener.stop(0)
