"""What speaks HTTP for an engine: in its own process, or in one of several front ends.

The engine is whatever a `Millrace` stands on: the folder itself, or the socket of whoever has it.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from millrace.client.millrace import Millrace, engine_of
from millrace.server import config
from millrace.server.address import Address, parse_address
from millrace.server.app import App
from millrace.server.aws.face import AwsFace
from millrace.server.aws.known import Directory
from millrace.server.book import Book
from millrace.server.cassieq.face import Cassieq
from millrace.server.clock import now_ms
from millrace.server.config import ServerSettings
from millrace.server.counted import Counts, Handed
from millrace.server.descriptors import room_for
from millrace.server.dynamiq.face import Dynamiq
from millrace.server.exporting import exporting_of
from millrace.server.guard import Guard
from millrace.server.listen import Listener
from millrace.server.quota import Quotas
from millrace.server.rest.desk import Desk
from millrace.server.sns.deliver import Deliverer
from millrace.server.sns.exchange import Exchange
from millrace.server.sns.reach import Reach
from millrace.server.statsd import Statsd
from millrace.server.tls import Certificates
from millrace.server.watch import AccessLog, Watch


class Serving:
    """Listens, and answers, by the settings."""

    def __init__(
        self,
        settings: ServerSettings,
        millrace: Millrace,
        book: Book,
        *,
        frontend: int | None = None,
    ) -> None:
        """`frontend` is the number of this process, if it is one of several: it has its share of
        the quotas."""
        self.settings = settings
        self._millrace = millrace
        self._book = book
        self._ending = AsyncExitStack()
        self._certificates = certificates_of(settings)
        self._guard = Guard(
            lambda: book.roll,
            now_ms,
            anonymous=settings.anonymous,
            anonymous_rules=settings.anonymous_rules,
        )
        self._quotas = Quotas(settings.quota, shares=1 if frontend is None else settings.frontends)
        self._exporting = exporting_of(settings)
        if self._exporting is not None:
            self._ending.push_async_callback(self._exporting.stop)
            engine_of(millrace).telemetry = self._exporting.telemetry
        self._desk = desk = Desk(millrace)
        self._aws_face = self._aws(settings, desk)
        self._app = App(
            desk,
            self._guard,
            quotas=self._quotas,
            book=book,
            body_bytes_max=settings.body_bytes_max,
            frontend=frontend,
            faces={
                "aws": self._aws_face,
                "dynamiq": Dynamiq(self._guard),
                "cassieq": Cassieq(self._guard, book),
            },
        )
        self._app.site.connections_max = room_for(settings.connections_max)
        self._app.sessions.silence_seconds = settings.session_silence_seconds
        self._app.use(self._watch(settings))

    def _aws(self, settings: ServerSettings, desk: Desk) -> AwsFace:
        scheme = "https" if settings.is_tls else "http"
        home, exchange = settings.aws_home, Exchange(desk, settings.data)
        reach = self._reach = Reach(settings.sns_places)
        reach.own = tuple(settings.addresses)
        deliverer = Deliverer(exchange, home, reach)
        parts = (home, Directory(desk, settings.sqs_bounds), exchange, deliverer)
        return AwsFace(self._guard, self._book, *parts, scheme=scheme)

    def _watch(self, settings: ServerSettings) -> Watch | None:
        """What sees every request, if anything is to."""
        telemetry = None if self._exporting is None else self._exporting.telemetry
        log = AccessLog(settings.access_log) if settings.access_log else None
        return None if telemetry is None and log is None else Watch(telemetry, log)

    async def start(self, addresses: list[Address], *, is_shared: bool = False) -> list[Address]:
        """Listen at the addresses, beside others where they are shared; returns where."""
        settings = self.settings
        if settings.statsd and not is_shared:
            address = parse_address(settings.statsd, "statsd")
            statsd = Statsd(self._millrace, self._handed, address)
            self._ending.push_async_callback(statsd.stop)
            await statsd.start()
        await self._aws_face.deliverer.start()
        self._ending.push_async_callback(self._aws_face.deliverer.stop)
        listener = Listener(self._app.site)
        self._ending.push_async_callback(self._stop_listening, listener)
        tls = self._certificates.context if self._certificates is not None else None
        found = [
            Address(*await listener.listen(one.host, one.port, tls=tls, is_shared=is_shared))
            for one in addresses
        ]
        self._reach.own = tuple(found)
        return found

    async def _handed(self) -> Handed:
        return self._app.handed

    def counted(self, frontend: int) -> Counts:
        """What this front end has counted."""
        return self._app.counted(frontend)

    async def _stop_listening(self, listener: Listener) -> None:
        self._app.stop()
        await listener.stop(self.settings.stop_seconds)
        await self._app.finish()

    def reload(self, settings: ServerSettings) -> None:
        """Take up what may be changed while it runs.

        Raises:
            Invalid: a certificate; nothing was changed.
        """
        if self._certificates is not None and settings.tls_certificate and settings.tls_key:
            self._certificates.reload(settings.tls_certificate, settings.tls_key)
        new = config.reloaded(self.settings, settings)
        self._guard.configure(anonymous=new.anonymous, anonymous_rules=new.anonymous_rules)
        self._quotas.configure(new.quota)
        self._app.site.connections_max = room_for(new.connections_max)
        self._app.sessions.silence_seconds = new.session_silence_seconds
        self._app.use(self._watch(new))
        logging.getLogger("millrace").setLevel(new.log_level.upper())
        self.settings = new

    def changed(self, space: str, name: str) -> None:
        """Settings of a queue or topic were changed without a request."""
        self._desk.changed(space, name)

    async def stop(self) -> None:
        """Take nobody in any more; let those who are being answered end."""
        await self._ending.aclose()


def certificates_of(settings: ServerSettings) -> Certificates | None:
    """The certificate that the settings name, if they name one.

    Raises:
        Invalid: it cannot be used.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Certificates(
        settings.tls_certificate, settings.tls_key, client_ca=settings.tls_client_ca
    )


def url_of(settings: ServerSettings, address: Address) -> str:
    """An address as people write it."""
    return f"{'https' if settings.is_tls else 'http'}://{address}"
