"""A server: an engine, those who may use it, and the addresses where it listens.

Rule 1: it listens when it can serve: what is declared is there, and who may do what is known.
Rule 2: at the end it takes nobody in, answers those who wait, lets those who are being answered
end, then closes the engine: whatever was acknowledged is kept, and whatever was handed out can be
settled after the next start.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace, engine_of
from millrace.errors import InUse, Invalid, MillraceError
from millrace.server import config
from millrace.server.address import parse_address
from millrace.server.book import Book
from millrace.server.config import Loaded, ServerSettings
from millrace.server.counted import Handed, among, encode, together
from millrace.server.crew import Crew
from millrace.server.declared import declare_queues, declare_topics, declare_users
from millrace.server.first import first_admin, is_administered, is_known
from millrace.server.frontend import Orders
from millrace.server.listen import see_free
from millrace.server.metrics import names_of
from millrace.server.recount import recount
from millrace.server.secret import key_secret
from millrace.server.serving import Serving, certificates_of, url_of
from millrace.server.sharing import Sharing
from millrace.server.sns.upgrade import make_durable
from millrace.server.sqs.upgrade import bring_up
from millrace.server.statsd import Statsd
from millrace.server.taking import take_folder

_logger = logging.getLogger("millrace.server")

_NO_ADMINISTRATOR = (
    "nobody may administer: %s is there, and may hold a token that was revoked, or cannot be "
    "written; remove it and start again, or run `millrace user add NAME --rule 'allow * */*'`"
)


class Server:
    """Serves the queues of a folder."""

    def __init__(self, loaded: Loaded, orders: Orders) -> None:
        """`orders` say to front ends where their settings come from."""
        self.settings: ServerSettings = loaded.settings
        self.addresses: list[str] = []
        """Where it listens, as people write it."""
        self.is_first = False
        """Nobody could administer before: the first administrator was made."""
        self.knows_admin_token = False
        """Whoever shows what is in the file of the first administrator may do everything."""
        self._orders = orders
        self._serving: Serving | None = None
        self._crew: Crew | None = None
        self._ending = AsyncExitStack()

    async def start(self, *, patience: float | None = None) -> None:
        """Open the folder and listen; what was begun is ended again if that fails.

        `patience`: how many seconds to wait for a folder that is in use; None: only for one that
        was taken just now. The log tells that it is waited.

        Raises:
            MillraceError: the folder, a certificate, what is declared, or an address.
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
            # A start that fails leaves no folder behind.
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
                # It was opened through the socket of whoever has it.
                text = f"{settings.data} is served or shared by another process already"
                raise InUse(text, pid=None) from error
        self._book = await Book.open(millrace, secret=key_secret(settings.key_path))
        self._ending.push_async_callback(self._book.close)
        declared = [one.user for one in settings.users]
        self.is_first = await first_admin(self._book, settings.admin_token_path, declared)
        await bring_up(millrace)
        await make_durable(millrace, settings.aws_home)
        await self._declare(settings)
        await recount(engine_of(millrace), self._book)
        self.knows_admin_token = is_known(self._book, settings.admin_token_path)
        if not is_administered(self._book):
            _logger.warning(_NO_ADMINISTRATOR, settings.admin_token_path)
        if sharing is not None:
            # Not before: whoever comes in by the socket finds the administrator, what is declared,
            # and the file that secrets of access keys are made of, and makes none of these anew.
            await sharing.start()
            self._ending.push_async_callback(sharing.stop)
        if settings.frontends:
            self._crew = crew = Crew(settings, self._orders)
            assert sharing is not None
            sharing.trust(lambda: crew.pids)
            self._ending.push_async_callback(self._crew.stop)
            found = await self._crew.start()
            await self._tell_of(self._crew, millrace)
        else:
            self._serving = Serving(settings, millrace, self._book)
            self._ending.push_async_callback(self._serving.stop)
            found = await self._serving.start(settings.addresses)
        self.addresses = [url_of(settings, address) for address in found]

    async def _tell_of(self, crew: Crew, millrace: Millrace) -> None:
        """Have the engine know what its front ends have counted, and a statsd, if there is one."""
        engine = engine_of(millrace)
        assert isinstance(engine, EmbeddedEngine)

        async def told() -> list[str]:
            there = await names_of(millrace)
            return [encode(among(one, there)) for one in await crew.counted()]

        async def handed() -> Handed:
            return together(await crew.counted())

        engine.care.beside = told
        engine.is_served = True
        if self.settings.statsd:
            address = parse_address(self.settings.statsd, "statsd")
            statsd = Statsd(millrace, handed, address)
            self._ending.push_async_callback(statsd.stop)
            await statsd.start()

    def _expect_words(self, settings: ServerSettings) -> None:
        engine = engine_of(self._millrace)
        if isinstance(engine, EmbeddedEngine):
            engine.expect_words(settings.session_silence_seconds)

    async def _declare(self, settings: ServerSettings) -> None:
        await self._book.audit.keep(settings.audit_keep)
        await declare_queues(self._millrace, settings.queues)
        await declare_topics(self._millrace, settings.topics)
        await declare_users(self._book, settings.users)

    async def reload(self, settings: ServerSettings) -> config.Reload:
        """Take up what may be changed while it runs; returns what was, and what needs a restart.

        Raises:
            MillraceError: a certificate, or what is declared; what came before it is in force.
        """
        found = config.compare(self.settings, settings)
        new = config.reloaded(self.settings, settings)
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
        """Take nobody in any more, let those who are being answered end, close the folder."""
        try:
            await self._ending.aclose()
        except MillraceError as error:
            _logger.error("the end: %s", error)
            raise
