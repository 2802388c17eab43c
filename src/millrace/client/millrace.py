"""An open Millrace: where queues are found and made."""

from __future__ import annotations

from types import TracebackType

from millrace.client.engine import Engine
from millrace.client.queue import Queue, make_spec
from millrace.client.transaction import TransactionContext
from millrace.client.work import Keepalive
from millrace.core import check
from millrace.core.commands import CreateQueue, DeleteQueue, QueueRef
from millrace.core.model import CATALOG, QueueSpec
from millrace.errors import NotFound


class Millrace:
    """Queues in a folder of this machine, or behind a server: the same objects either way."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keepalive = Keepalive()

    async def queue(
        self,
        name: str,
        *,
        space: str = "default",
        keyed: bool | None = None,
        retention: str | None = None,
        keep_deletes: float | None = None,
    ) -> Queue:
        """The queue of this name, made if it is missing.

        Settings that are named must be those that it has; `Queue.configure` changes them.

        Raises:
            Exists: it is there with other settings.
        """
        check.name(space, "space")
        check.name(name, "queue")
        found = self._engine.find_queue(space, name)
        named = any(value is not None for value in (keyed, retention, keep_deletes))
        if found is not None and not named:
            return Queue(self._engine, self._keepalive, space, name, found[0])
        base = QueueSpec() if found is None else self._engine.spec(found[0])
        spec = make_spec(base, keyed=keyed, retention=retention, keep_deletes=keep_deletes)
        ref = await self._engine.ask(CATALOG, CreateQueue(space, name, spec), QueueRef)
        return Queue(self._engine, self._keepalive, space, name, ref.shards[0])

    async def find(self, name: str, *, space: str = "default") -> Queue:
        """The queue of this name.

        Raises:
            NotFound: there is none.
        """
        shards = self._engine.find_queue(check.name(space, "space"), check.name(name, "queue"))
        if shards is None:
            raise NotFound(f"there is no queue {name!r} in {space!r}", field="queue")
        return Queue(self._engine, self._keepalive, space, name, shards[0])

    async def queues(self, *, space: str = "default") -> list[str]:
        """The names of a space's queues, in order."""
        return self._engine.queue_names(check.name(space, "space"))

    async def delete_queue(self, name: str, *, space: str = "default") -> bool:
        """End a queue with all that it holds; returns whether there was one.

        A queue that is made anew under the name has nothing in common with it.
        """
        command = DeleteQueue(check.name(space, "space"), check.name(name, "queue"))
        return await self._engine.ask(CATALOG, command, bool)

    def transaction(self, *, space: str = "default") -> TransactionContext:
        """A context in which everything is done at once when it ends, or nothing is."""
        return TransactionContext(self._engine, check.name(space, "space"))

    async def close(self) -> None:
        """Finish what was accepted and let the folder go; harmless the second time."""
        await self._keepalive.close()
        await self._engine.close()

    async def __aenter__(self) -> Millrace:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
