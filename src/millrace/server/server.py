"""A server: an engine, those who may use it, and the addresses where it listens.

Rule 1: it listens when it can serve: what is declared is there, and who may do what is known.
Rule 2: at the end it takes nobody in, answers those who wait, lets those who are being answered
end, then closes the engine: whatever was acknowledged is kept, and whatever was handed out can be
settled after the next start.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from millrace.client.millrace import Millrace
from millrace.client.opening import open as open_folder
from millrace.errors import MillraceError
from millrace.server import config
from millrace.server.address import Address, parse_address
from millrace.server.app import App
from millrace.server.book import Book
from millrace.server.clock import now_ms
from millrace.server.config import ServerSettings
from millrace.server.declared import declare_queues, declare_topics, declare_users
from millrace.server.first import first_admin
from millrace.server.guard import Guard
from millrace.server.listen import Listener
from millrace.server.quota import Quotas
from millrace.server.rest.desk import Desk
from millrace.server.secret import key_secret
from millrace.server.statsd import Statsd
from millrace.server.tls import Certificates

_logger = logging.getLogger("millrace.server")


class Server:
    """Serves the queues of a folder."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.addresses: list[str] = []
        """Where it listens, as people write it."""
        self.is_first = False
        """Nobody was known before: the first administrator was made."""
        self._certificates: Certificates | None = None
        self._ending = AsyncExitStack()

    async def start(self) -> None:
        """Open the folder and listen; what was begun is ended again if that fails.

        Raises:
            MillraceError: the folder, a certificate, what is declared, or an address.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self.settings
        if settings.tls_certificate is not None and settings.tls_key is not None:
            self._certificates = Certificates(
                settings.tls_certificate, settings.tls_key, client_ca=settings.tls_client_ca
            )
        millrace = await open_folder(settings.data, settings=settings.engine)
        self._ending.push_async_callback(millrace.close)
        self._millrace = millrace
        self._book = await Book.open(millrace, secret=key_secret(settings.key_path))
        self._ending.push_async_callback(self._book.close)
        await self._declare(settings)
        self.is_first = await first_admin(self._book, settings.admin_token_path)
        self._guard = Guard(
            lambda: self._book.roll,
            now_ms,
            anonymous=settings.anonymous,
            anonymous_rules=settings.anonymous_rules,
        )
        self._quotas = Quotas(settings.quota)
        await self._listen(millrace)

    async def _declare(self, settings: ServerSettings) -> None:
        await self._book.audit.keep(settings.audit_keep)
        await declare_queues(self._millrace, settings.queues)
        await declare_topics(self._millrace, settings.topics)
        await declare_users(self._book, settings.users)

    async def _listen(self, millrace: Millrace) -> None:
        settings = self.settings
        self._app = App(
            Desk(millrace),
            self._guard,
            quotas=self._quotas,
            book=self._book,
            body_bytes_max=settings.body_bytes_max,
        )
        self._app.site.connections_max = settings.connections_max
        if settings.statsd:
            address = parse_address(settings.statsd, "statsd")
            statsd = Statsd(millrace, self._app.handed, address)
            self._ending.push_async_callback(statsd.stop)
            await statsd.start()
        listener = Listener(self._app.site)
        self._ending.push_async_callback(self._stop_listening, listener)
        tls = self._certificates.context if self._certificates is not None else None
        for address in settings.addresses:
            found = Address(*await listener.listen(address.host, address.port, tls=tls))
            self.addresses.append(f"{'https' if tls else 'http'}://{found}")

    async def _stop_listening(self, listener: Listener) -> None:
        self._app.stop()
        await listener.stop(self.settings.stop_seconds)
        await self._app.finish()

    async def reload(self, settings: ServerSettings) -> config.Reload:
        """Take up what may be changed while it runs; returns what was, and what needs a restart.

        Raises:
            MillraceError: a certificate, or what is declared; what came before it is in force.
        """
        found = config.compare(self.settings, settings)
        if self._certificates is not None and settings.tls_certificate and settings.tls_key:
            self._certificates.reload(settings.tls_certificate, settings.tls_key)
        new = config.reloaded(self.settings, settings)
        self._guard.configure(anonymous=new.anonymous, anonymous_rules=new.anonymous_rules)
        self._quotas.configure(new.quota)
        self._app.site.connections_max = new.connections_max
        logging.getLogger("millrace").setLevel(new.log_level.upper())
        await self._declare(new)
        self.settings = new
        _logger.info("reloaded: %s", ", ".join(found.now) or "nothing was changed")
        return found

    async def stop(self) -> None:
        """Take nobody in any more, let those who are being answered end, close the folder."""
        try:
            await self._ending.aclose()
        except MillraceError as error:
            _logger.error("the end: %s", error)
            raise
