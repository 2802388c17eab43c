"""An open Millrace: where queues are found and made."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import TracebackType
from typing import Unpack

from millrace import limits
from millrace.client.backup import Backup
from millrace.client.engine import Engine
from millrace.client.finish import finish
from millrace.client.grant import Keepalive
from millrace.client.health import Health
from millrace.client.paths import folder_of
from millrace.client.queue import Queue
from millrace.client.repaired import Repaired
from millrace.client.settings import QueueSettings, make_spec
from millrace.client.shards import Shards, label
from millrace.client.topic import Topic, lag_of
from millrace.client.transaction import Transaction
from millrace.core import check
from millrace.core.answers import QueueRef
from millrace.core.commands import CreateQueue, DeleteQueue, SpecPart
from millrace.core.model import CATALOG, ShardId
from millrace.core.topic_commands import CreateTopic, DeleteTopic, TopicRef
from millrace.errors import NotFound


class Millrace:
    """Queues in a folder of this machine, or behind a server: the same objects either way."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keepalive = Keepalive()
        self._closing: asyncio.Task[None] | None = None

    async def queue(
        self,
        name: str,
        *,
        space: str = "default",
        shards: int | None = None,
        route: str | None = None,
        **settings: Unpack[QueueSettings],
    ) -> Queue:
        """The queue of this name, made if it is missing.

        `keyed`: publishing under a key replaces the key's older revision. `retention`: "work"
        (settled messages go) or "log" (they stay). `keep_deletes`: how many seconds a deleted key
        stays readable as a delete, so that followers learn of it. `retry_min`, `retry_max`: a
        message that failed n times is left alone for n times `retry_min` seconds, but no longer
        than `retry_max`. `max_failures`, `max_deliveries`: one that failed or was handed out so
        often is a dead letter, and goes to the queue `dead_letter`, or is dropped without one.
        `delay`: so many seconds nobody gets a message that names no other delay.

        `shards`: how many parts it has that are ordered each on its own, 1 unless it is named.
        `route`: which of them a message goes to: "key" (by its key; without one they take turns),
        "group" (by its group, else its key) or "spread" (they take turns). Both are fixed when
        the queue is made. The other settings are told by `QueueSettings`.

        Settings that are named must be those that the queue has; `Queue.configure` changes them.

        Raises:
            Exists: it is there with other settings.
            NotFound: the queue `dead_letter` is not there; make it first.
            Invalid, TooLarge: the name or a setting.
        """
        space, name = check.name(space, "space"), check.name(name, "queue")
        found = await self._engine.find_queue(space, name)
        spec = make_spec(space, settings)
        if shards is not None:
            shards = check.count(shards, "shards", limits.SHARDS_MAX)
        way = check.route(route)
        if found is not None and spec == SpecPart() and shards is None and way is None:
            return Queue(
                self._engine, self._keepalive, space, name, Shards.of(found, label(space, name))
            )
        ref = await self._engine.ask(CATALOG, CreateQueue(space, name, spec, shards, way), QueueRef)
        return Queue(self._engine, self._keepalive, space, name, Shards.of(ref, label(space, name)))

    async def find(self, name: str, *, space: str = "default") -> Queue:
        """The queue of this name; it is not made.

        Raises:
            NotFound: there is none; the error names the one that is spelled most like it.
        """
        space, name = check.name(space, "space"), check.name(name, "queue")
        found = await self._engine.find_queue(space, name)
        if found is None:
            near = _near(space, name, await self._engine.queue_names(space))
            raise NotFound(f"there is no queue {name!r} in {space!r}", field="queue", near=near)
        return Queue(
            self._engine, self._keepalive, space, name, Shards.of(found, label(space, name))
        )

    async def spaces(self) -> list[str]:
        """The spaces in which there are queues or topics, in order."""
        return await self._engine.spaces()

    async def queues(self, *, space: str = "default") -> list[str]:
        """The names of a space's queues, in order."""
        return await self._engine.queue_names(check.name(space, "space"))

    async def delete_queue(self, name: str, *, space: str = "default") -> bool:
        """End a queue with all that it holds; returns whether there was one.

        Subscriptions of topics to it end with it. A queue that is made anew under the name has
        nothing in common with it.
        """
        command = DeleteQueue(check.name(space, "space"), check.name(name, "queue"))
        return await self._engine.ask(CATALOG, command, bool)

    async def topic(
        self,
        name: str,
        *,
        space: str = "default",
        max_lag: int | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> Topic:
        """The topic of this name, made if it is missing.

        `max_lag`: so many messages wait for the slowest subscription at most; then the topic
        refuses what is published. A million, unless it is named. `notes` are small texts by their
        names, which are kept with the topic.

        Raises:
            Exists: it is there with other settings; `Topic.configure` changes them.
            Invalid, TooLarge: the name, `max_lag` or the notes.
        """
        space, name = check.name(space, "space"), check.topic(name)
        lag = None if max_lag is None else lag_of(max_lag)
        kept = () if notes is None else check.notes(notes)
        is_named = lag is not None or kept
        found = None if is_named else await self._engine.find_topic(space, name)
        if found is None:
            command = CreateTopic(space, name, lag, kept)
            found = (await self._engine.ask(CATALOG, command, TopicRef)).shard
        return Topic(self._engine, space, name, found)

    async def find_topic(self, name: str, *, space: str = "default") -> Topic:
        """The topic of this name; it is not made.

        Raises:
            NotFound: there is none; the error names the one that is spelled most like it.
        """
        space, name = check.name(space, "space"), check.topic(name)
        shard = await self._engine.find_topic(space, name)
        if shard is None:
            near = _near(space, name, await self._engine.topic_names(space))
            raise NotFound(f"there is no topic {name!r} in {space!r}", field="topic", near=near)
        return Topic(self._engine, space, name, shard)

    async def topics(self, *, space: str = "default") -> list[str]:
        """The names of a space's topics, in order."""
        return await self._engine.topic_names(check.name(space, "space"))

    async def delete_topic(self, name: str, *, space: str = "default") -> bool:
        """End a topic at once, with what was not forwarded; returns whether there was one."""
        command = DeleteTopic(check.name(space, "space"), check.topic(name))
        return await self._engine.ask(CATALOG, command, bool)

    def transaction(self, *, space: str = "default") -> Transaction:
        """A context in which everything is done at once when it ends, or nothing is.

        Queues that are given by name are those of `space`.
        """
        return Transaction(self._engine, check.name(space, "space"), needs_context=True)

    async def backup(
        self,
        into: str | os.PathLike[str],
        *,
        follow: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Backup:
        """Make a backup of everything in the folder `into`, while all else goes on.

        When it returns, the backup is whole and durable, and holds what was acknowledged before
        it was asked for. Backups in one folder share what they have in common.

        With `follow`, the log is archived there from now on before it is recycled, by this engine
        and every later one of the folder, until `unfollow`: `restore` then reaches every point from
        this backup on. `progress` is told, on another thread, how many bytes were copied, and of
        how many.

        Raises:
            Exists: there are backups of another folder.
            InUse: another process makes one there.
            Full: there is no room; what was begun is removed.
        """
        told = progress or _unheard
        folder = folder_of(into, "into")
        return await self._engine.care.backup(folder, told, follow=check.flag(follow, "follow"))

    async def unfollow(self) -> bool:
        """Archive the log no more; returns whether it was archived. What was archived stays."""
        return await self._engine.care.unfollow()

    async def repair(
        self,
        name: str,
        *,
        space: str = "default",
        export: str | os.PathLike[str] | None = None,
        drop: bool = False,
        topic: bool = False,
    ) -> Repaired:
        """Read all rows of a quarantined queue, or (`topic`) topic, and open it again if it can be.

        With `export`, the rows that can be read are first written to that folder, as an Arrow
        stream for each shard (`rows-<shard>.arrow`), with the bytes of the others as they are and a
        list of those (`unreadable.json`). With `drop`, the rows that cannot be read are ended: they
        count as dropped, and cursors behind them must be reset. Where every row can be read again,
        as after a damaged file was replaced from a backup, the queue is opened in any case.

        Raises:
            Invalid: it is not quarantined.
            NotFound: there is no queue or topic of this name.
            Exists: the folder is there and not empty.
        """
        folder = None if export is None else folder_of(export, "export")
        name = check.topic(name) if check.flag(topic, "topic") else check.name(name, "queue")
        space = check.name(space, "space")
        shards: tuple[ShardId, ...] = ()
        if topic:
            found = await self._engine.find_topic(space, name)
            shards = () if found is None else (found,)
        elif (ref := await self._engine.find_queue(space, name)) is not None:
            shards = ref.shards
        if not shards:
            what = "topic" if topic else "queue"
            raise NotFound(f"there is no {what} {name!r} in {space!r}", field=what)
        return await self._engine.care.repair(shards, folder, drop=check.flag(drop, "drop"))

    async def health(self) -> Health:
        """How the engine is: its archive, and what else watches over the data."""
        return await self._engine.care.health()

    async def close(self) -> None:
        """Finish what was accepted and let the folder go; harmless the second time.

        It is done to the end also where the caller is cancelled meanwhile.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await finish(self._closing)

    async def _close(self) -> None:
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

    def __repr__(self) -> str:
        state = "" if self._closing is None else ", closed"
        return f"<Millrace at {self._engine.where}{state}>"


def engine_of(millrace: Millrace) -> Engine:
    """What it stands on."""
    return millrace._engine


def _near(space: str, name: str, names: list[str]) -> str | None:
    found = get_close_matches(name, names, n=1)
    return f"{space}/{found[0]}" if found else None


def _unheard(_: int, __: int) -> None:
    """Nobody wants to know how far it is."""
