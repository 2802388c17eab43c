"""A server: an engine, its users, and the addresses that it listens on.

Rule 1: it listens only when it can serve: declared objects exist, and access data is loaded.
Rule 2: shutdown accepts no new connections, answers waiting requests, lets running ones finish, and
then closes the engine: acknowledged messages are durable, and leased messages can be settled after
the next start.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace, engine_of
from millrace.errors import InUse, Invalid, MillraceError
from millrace.server.auth.first_admin import first_admin, is_administered, is_known
from millrace.server.auth.secret_file import key_secret
from millrace.server.auth.store import UserStore
from millrace.server.counters import (
    LeaseCounters,
    among,
    encode,
    together,
)
from millrace.server.http.listener import parse_address, see_free
from millrace.server.process import server_settings
from millrace.server.process.declarations import declare_queues, declare_topics, declare_users
from millrace.server.process.folder_takeover import take_folder
from millrace.server.process.frontend import FrontendOrders
from millrace.server.process.frontend_supervisor import FrontendSupervisor
from millrace.server.process.http_service import HttpService, certificates_of, url_of
from millrace.server.process.metrics_export import Statsd
from millrace.server.process.server_settings import LoadedSettings, ServerSettings
from millrace.server.process.upgrade import make_subscriptions_durable, migrate_queues
from millrace.server.quota.recount import recount
from millrace.server.rpc.sharing import Sharing
from millrace.server.web.metrics import names_of

_logger = logging.getLogger("millrace.server")

_NO_ADMINISTRATOR = (
    "nobody may administer: %s is there, and may hold a token that was revoked, or cannot be "
    "written; remove it and start again, or run `millrace user add NAME --rule 'allow * */*'`"
)


class Server:
    """Serves the queues of a folder."""

    def __init__(self, loaded: LoadedSettings, orders: FrontendOrders) -> None:
        """`orders` tell front ends the source of their settings."""
        self.settings: ServerSettings = loaded.settings
        self.addresses: list[str] = []
        """URLs that it listens on, for people."""
        self.is_first = False
        """True if no user could administer before, and the first administrator was created."""
        self.knows_admin_token = False
        """True if the token in the file of the first administrator has all rights."""
        self._orders = orders
        self._serving: HttpService | None = None
        self._crew: FrontendSupervisor | None = None
        self._ending = AsyncExitStack()

    async def start(self, *, patience: float | None = None) -> None:
        """Open the folder and listen; a failed start is undone.

        `patience` is the timeout in seconds for a folder in use; None waits only for a process that
        took it just now. Waiting is logged.

        Raises:
            MillraceError: the folder, a certificate, a declared object or an address has an error.
        """
        try:
            await self._start(patience)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, patience: float | None) -> None:
        settings = self.settings
        certificates_of(settings)
        if not settings.data.exists():
            # A failed start should not leave a new folder behind.
            for address in settings.addresses:
                await see_free(address)
        millrace = await take_folder(
            settings.data, settings.engine, patience=patience, say=_logger.warning
        )
        self._ending.push_async_callback(millrace.close)
        self._millrace = millrace
        self._expect_words(settings)
        sharing = None
        if settings.socket or settings.frontends:
            try:
                sharing = Sharing(millrace)
            except Invalid as error:
                # The folder was opened through the socket of another process.
                text = f"{settings.data} is served or shared by another process already"
                raise InUse(text, pid=None) from error
        self._book = await UserStore.open(millrace, secret=key_secret(settings.key_path))
        self._ending.push_async_callback(self._book.close)
        declared = [one.user for one in settings.users]
        self.is_first = await first_admin(self._book, settings.admin_token_path, declared)
        await migrate_queues(millrace)
        await make_subscriptions_durable(millrace, settings.aws_home)
        await self._declare(settings)
        await recount(engine_of(millrace), self._book)
        self.knows_admin_token = is_known(self._book, settings.admin_token_path)
        if not is_administered(self._book):
            _logger.warning(_NO_ADMINISTRATOR, settings.admin_token_path)
        if sharing is not None:
            # Only now: processes that connect find the administrator, the declared objects and the
            # master secret of access keys, and create none of them again.
            await sharing.start()
            self._ending.push_async_callback(sharing.stop)
        if settings.frontends:
            self._crew = crew = FrontendSupervisor(settings, self._orders)
            assert sharing is not None
            sharing.trust(lambda: crew.pids)
            self._ending.push_async_callback(self._crew.stop)
            found = await self._crew.start()
            await self._tell_of(self._crew, millrace)
        else:
            self._serving = HttpService(settings, millrace, self._book)
            self._ending.push_async_callback(self._serving.stop)
            found = await self._serving.start(settings.addresses)
        self.addresses = [url_of(settings, address) for address in found]

    async def _tell_of(self, crew: FrontendSupervisor, millrace: Millrace) -> None:
        """Provide the engine, and statsd if configured, with the counters of the front ends."""
        engine = engine_of(millrace)
        assert isinstance(engine, EmbeddedEngine)

        async def told() -> list[str]:
            there = await names_of(millrace)
            return [encode(among(one, there)) for one in await crew.counted()]

        async def handed() -> LeaseCounters:
            return together(await crew.counted())

        engine.maintenance.beside = told
        engine.is_served = True
        if self.settings.statsd:
            address = parse_address(self.settings.statsd, "statsd")
            statsd = Statsd(millrace, handed, address)
            self._ending.push_async_callback(statsd.stop)
            await statsd.start()

    def _expect_words(self, settings: ServerSettings) -> None:
        engine = engine_of(self._millrace)
        if isinstance(engine, EmbeddedEngine):
            engine.set_session_timeout(settings.session_silence_seconds)

    async def _declare(self, settings: ServerSettings) -> None:
        await self._book.audit.keep(settings.audit_keep)
        await declare_queues(self._millrace, settings.queues)
        await declare_topics(self._millrace, settings.topics)
        await declare_users(self._book, settings.users)

    async def reload(self, settings: ServerSettings) -> server_settings.Reload:
        """Apply the settings that can change at run time; return those and the ones that need a
        restart.

        Raises:
            MillraceError: a certificate or a declared object has an error; changes before it are in
                force.
        """
        found = server_settings.compare(self.settings, settings)
        new = server_settings.reloaded(self.settings, settings)
        self._expect_words(new)
        if self._serving is not None:
            self._serving.reload(settings)
        if self._crew is not None:
            self._crew.reload()
        try:
            await self._declare(new)
        finally:
            if self._serving is not None:
                places = [(queue.space, queue.name) for queue in new.queues]
                for place in (*places, *((topic.space, topic.name) for topic in new.topics)):
                    self._serving.changed(*place)
        self.settings = new
        _logger.info("reloaded: %s", ", ".join(found.now) or "nothing was changed")
        if found.restart:
            _logger.warning("only a restart changes %s", ", ".join(found.restart))
        return found

    async def stop(self) -> None:
        """Stop accepting, let running requests finish, and close the folder."""
        try:
            await self._ending.aclose()
        except MillraceError as error:
            _logger.error("the end: %s", error)
            raise
