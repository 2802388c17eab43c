"""`millrace.connect`: connects to a server over HTTP or HTTPS."""

from __future__ import annotations

import os
import ssl
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.client.remote import RemoteEngine
from millrace.core import plain_types, validate
from millrace.errors import Invalid
from millrace.rpc.http_transport import HttpTransport

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry


class Connecting:
    """A server to be connected to: an awaitable and a context manager."""

    def __init__(
        self,
        url: SplitResult,
        token: str | None,
        tls: ssl.SSLContext | None,
        patience: float = limits.WIRE_PATIENCE_SECONDS,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry
        self._url = url
        self._token = token
        self._tls = tls
        self._patience = patience
        self._millrace: Millrace | None = None

    async def _connect(self) -> Millrace:
        engine = RemoteEngine(self._patience)
        engine.telemetry = self._telemetry
        engine.use(HttpTransport(self._url, self._token, self._tls, engine.late, self._telemetry))
        m = Millrace(engine)
        try:
            # A first call, so that a wrong token or address is reported here.
            await engine.spaces()
        except BaseException:
            await m.close()
            raise
        engine.patience = limits.WIRE_PATIENCE_SECONDS
        return m

    def __await__(self) -> Generator[object, object, Millrace]:
        return self._connect().__await__()

    async def __aenter__(self) -> Millrace:
        self._millrace = await self._connect()
        return self._millrace

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._millrace is not None:
            await self._millrace.close()


def connect(
    url: str,
    *,
    token: str | None = None,
    certificates: str | os.PathLike[str] | None = None,
    tls: ssl.SSLContext | None = None,
    patience: float = limits.WIRE_PATIENCE_SECONDS,
    telemetry: Telemetry | None = None,
) -> Connecting:
    """Connect to a server: `async with millrace.connect("https://…", token=…) as m: ...`.

    The objects are those of `millrace.open`. `token` authenticates the client. `certificates` is a
    PEM file of the authorities to trust, if the system does not trust that of the server; `tls` an
    SSL context to use instead. `patience`: timeout in seconds for the first connection. With
    `telemetry` (`millrace.telemetry.Telemetry`), calls are traced and measured.

    Calls that are safe to repeat are retried for half a minute while the server is unreachable.
    Pull Arrow readers in a thread, not on the event loop.

    Raises:
        Unauthenticated: the server does not accept the token.
        Closed: the server is unreachable.
        Invalid: the address or the token is malformed.
    """
    text = plain_types.text(url) or ""
    try:
        parsed = urlsplit(text)
        is_http = parsed.scheme in ("http", "https") and bool(parsed.hostname)
        is_bare = not (parsed.query or parsed.fragment or parsed.username) and parsed.port != 0
    except ValueError:
        is_http = is_bare = False
        parsed = urlsplit("")
    if not is_http or not is_bare:
        raise Invalid(
            f"url is {validate.shown(url)}, not an address such as https://queues.example:8080",
            field="url",
        )
    if parsed.path.strip("/"):
        server_url = f"{parsed.scheme}://{parsed.netloc}"
        raise Invalid(
            f"url is {validate.shown(url)}, which has a path; drop the path: {server_url}",
            field="url",
        )
    if token is not None:
        token = plain_types.text(token)
        if not token or not token.isascii() or not token.isprintable():
            raise Invalid("token is no text of printable ASCII", field="token")
    limit = limits.WIRE_CONNECT_MS_MAX
    patience_ms = validate.millis(patience, "patience", limit, least_ms=0)
    context = _context(parsed, certificates, tls)
    return Connecting(parsed, token, context, patience_ms / 1000, telemetry)


def _context(
    url: SplitResult,
    certificates: str | os.PathLike[str] | None,
    tls: ssl.SSLContext | None,
) -> ssl.SSLContext | None:
    if url.scheme != "https":
        if certificates is not None or tls is not None:
            raise Invalid("certificates go with https", field="certificates")
        return None
    if tls is not None:
        return tls
    try:
        return ssl.create_default_context(cafile=certificates)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(f"certificates cannot be read: {error}", field="certificates") from error
