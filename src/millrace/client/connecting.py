"""Connecting to a server: as a context manager, or by awaiting it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from millrace import limits
from millrace.client.line_http import HttpLine
from millrace.client.millrace import Millrace
from millrace.client.remote import RemoteEngine
from millrace.core import check, exact
from millrace.errors import Invalid

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry


class Connecting:
    """A server that is about to be connected to."""

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
        engine.use(HttpLine(self._url, self._token, self._tls, engine.late, self._telemetry))
        m = Millrace(engine)
        try:
            # Whoever is not known, or speaks with somebody else, hears of it here.
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
    """Use the queues of a server: `async with millrace.connect("https://…", token=…) as m: ...`.

    The objects are those of `millrace.open`. `certificates` is a file of those that are trusted,
    where the server's is signed by none that the system trusts; `tls` a context of the program's
    own. `patience`: for so many seconds a server that does not answer yet is waited for. With
    `telemetry` (`millrace.telemetry.Telemetry`), what is done is traced and measured.

    Calls that may be repeated are, for half a minute, while nobody answers. An Arrow reader is
    pulled in another thread than the event loop's.

    Raises:
        Unauthenticated: the server does not know the token.
        Closed: nobody answers there.
        Invalid: the address or the token is none.
    """
    text = exact.text(url) or ""
    try:
        found = urlsplit(text)
        is_known = found.scheme in ("http", "https") and bool(found.hostname)
        is_plain = not (found.query or found.fragment or found.username) and found.port != 0
    except ValueError:
        is_known = is_plain = False
        found = urlsplit("")
    if not is_known or not is_plain:
        raise Invalid(
            f"url is {check.shown(url)}, not an address such as https://queues.example:8080",
            field="url",
        )
    if found.path.strip("/"):
        bare = f"{found.scheme}://{found.netloc}"
        raise Invalid(
            f"url is {check.shown(url)}, which has a path; drop the path: {bare}", field="url"
        )
    if token is not None:
        token = exact.text(token)
        if not token or not token.isascii() or not token.isprintable():
            raise Invalid("token is no text of printable ASCII", field="token")
    most = limits.WIRE_CONNECT_MS_MAX
    patience_ms = check.millis(patience, "patience", most, least_ms=0)
    context = _context(found, certificates, tls)
    return Connecting(found, token, context, patience_ms / 1000, telemetry)


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
