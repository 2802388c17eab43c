"""HTTP service for an engine: in the server's process, or in one of several front ends.

The engine is that of a `Millrace`: an embedded one, or a connection to the process that has it.
"""

from __future__ import annotations

import logging
import resource
from contextlib import AsyncExitStack

from millrace import limits
from millrace.client.millrace import Millrace, engine_of
from millrace.server.auth.authenticator import Authenticator
from millrace.server.auth.store import UserStore
from millrace.server.aws.api_protocol import AwsApi
from millrace.server.aws.queue_info import QueueDirectory
from millrace.server.cassieq.api_protocol import CassieqApi
from millrace.server.clock import now_ms
from millrace.server.counters import LeaseCounters, ProcessCounters
from millrace.server.dynamiq.api_protocol import DynamiqApi
from millrace.server.http.listener import ListenAddress, Listener, parse_address
from millrace.server.process import server_settings
from millrace.server.process.metrics_export import Statsd, exporting_of
from millrace.server.process.route_table import ROUTES
from millrace.server.process.server_settings import ServerSettings
from millrace.server.process.tls import Certificates
from millrace.server.quota.quotas import Quotas
from millrace.server.sns.endpoint_delivery import EndpointDelivery
from millrace.server.sns.endpoint_policy import EndpointPolicy
from millrace.server.sns.state import SnsState
from millrace.server.sns.topic_cache import TopicCache
from millrace.server.web.app import App
from millrace.server.web.queue_cache import QueueCache
from millrace.server.web.request_log import AccessLog, RequestLog


class HttpService:
    """Listens and answers requests, as configured by the settings."""

    def __init__(
        self,
        settings: ServerSettings,
        millrace: Millrace,
        book: UserStore,
        *,
        frontend: int | None = None,
    ) -> None:
        """`frontend` is the number of this process if there are several; it then applies its share
        of the quotas."""
        self.settings = settings
        self._millrace = millrace
        self._book = book
        self._ending = AsyncExitStack()
        self._certificates = certificates_of(settings)
        self._guard = Authenticator(
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
        self._desk = desk = QueueCache(millrace)
        self._aws_face = self._aws(settings, desk)
        self._app = App(
            desk,
            self._guard,
            ROUTES,
            quotas=self._quotas,
            book=book,
            body_bytes_max=settings.body_bytes_max,
            frontend=frontend,
            faces={
                "aws": self._aws_face,
                "dynamiq": DynamiqApi(self._guard),
                "cassieq": CassieqApi(self._guard, book),
            },
        )
        self._app.site.connections_max = room_for(settings.connections_max)
        self._app.sessions.silence_seconds = settings.session_silence_seconds
        self._app.use(self._watch(settings))

    def _aws(self, settings: ServerSettings, desk: QueueCache) -> AwsApi:
        scheme = "https" if settings.is_tls else "http"
        home, exchange = settings.aws_home, TopicCache(desk, settings.data)
        reach = self._reach = EndpointPolicy(settings.sns_places)
        reach.own = tuple(settings.addresses)
        self._delivery = EndpointDelivery(exchange, home, reach)
        sns = SnsState(exchange, self._delivery)
        parts = (home, QueueDirectory(desk, settings.sqs_bounds), sns)
        return AwsApi(self._guard, self._book, *parts, scheme=scheme)

    def _watch(self, settings: ServerSettings) -> RequestLog | None:
        """Return the log of requests, if tracing or the access log is configured."""
        telemetry = None if self._exporting is None else self._exporting.telemetry
        log = AccessLog(settings.access_log) if settings.access_log else None
        return None if telemetry is None and log is None else RequestLog(telemetry, log)

    async def start(
        self, addresses: list[ListenAddress], *, is_shared: bool = False
    ) -> list[ListenAddress]:
        """Listen on the addresses, shared with other processes if `is_shared`; return the actual
        ones."""
        settings = self.settings
        if settings.statsd and not is_shared:
            address = parse_address(settings.statsd, "statsd")
            statsd = Statsd(self._millrace, self._handed, address)
            self._ending.push_async_callback(statsd.stop)
            await statsd.start()
        await self._delivery.start()
        self._ending.push_async_callback(self._delivery.stop)
        listener = Listener(self._app.site)
        self._ending.push_async_callback(self._stop_listening, listener)
        tls = self._certificates.context if self._certificates is not None else None
        found = [
            ListenAddress(*await listener.listen(one.host, one.port, tls=tls, is_shared=is_shared))
            for one in addresses
        ]
        self._reach.own = tuple(found)
        return found

    async def _handed(self) -> LeaseCounters:
        return self._app.handed

    def counted(self, frontend: int) -> ProcessCounters:
        """Return the counters of this front end."""
        return self._app.counted(frontend)

    async def _stop_listening(self, listener: Listener) -> None:
        self._app.stop()
        await listener.stop(self.settings.stop_seconds)
        await self._app.finish()

    def reload(self, settings: ServerSettings) -> None:
        """Apply the settings that can change at run time.

        Raises:
            Invalid: a certificate is invalid; nothing was changed.
        """
        if self._certificates is not None and settings.tls_certificate and settings.tls_key:
            self._certificates.reload(settings.tls_certificate, settings.tls_key)
        new = server_settings.reloaded(self.settings, settings)
        self._guard.configure(anonymous=new.anonymous, anonymous_rules=new.anonymous_rules)
        self._quotas.configure(new.quota)
        self._app.site.connections_max = room_for(new.connections_max)
        self._app.sessions.silence_seconds = new.session_silence_seconds
        self._app.use(self._watch(new))
        logging.getLogger("millrace").setLevel(new.log_level.upper())
        self.settings = new

    def changed(self, space: str, name: str) -> None:
        """Invalidate a queue or topic in the cache after a change without a request."""
        self._desk.changed(space, name)

    async def stop(self) -> None:
        """Stop accepting, and let running requests finish."""
        await self._ending.aclose()


def certificates_of(settings: ServerSettings) -> Certificates | None:
    """Load the certificate that the settings name, or return None.

    Raises:
        Invalid: it cannot be used.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Certificates(
        settings.tls_certificate, settings.tls_key, client_ca=settings.tls_client_ca
    )


def url_of(settings: ServerSettings, address: ListenAddress) -> str:
    """Return the URL of an address, for people."""
    return f"{'https' if settings.is_tls else 'http'}://{address}"


# --- The limit of file descriptors: each connection uses one, and the engine needs some too ------

_logger = logging.getLogger("millrace.server")


def room_for(connections: int) -> int:
    """Raise this process's limit of file descriptors for a number of connections.

    Returns the number of connections for which the limit suffices: if the system allows fewer, some
    descriptors are reserved for the files of the engine, and a warning is logged.
    """
    wanted = connections + limits.DESCRIPTORS_KEPT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = max(1, soft - min(limits.DESCRIPTORS_KEPT, soft // 2))
    if room >= connections:
        return connections
    _logger.warning(
        "the system allows %d open files: there is room for %d connections, not for %d; raise the "
        "limit (LimitNOFILE in systemd, ulimit -n) or lower connections_max",
        *(soft, room, connections),
    )
    return room
