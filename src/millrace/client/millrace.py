"""`Millrace`, the entry point of the API: creates, finds and deletes queues and topics."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import TracebackType
from typing import Unpack

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.lease_group import Keepalive
from millrace.client.maintenance_results import Backup, Health, Repaired
from millrace.client.paths import validate_folder
from millrace.client.queue import Queue
from millrace.client.settings import QueueSettings, make_spec
from millrace.client.shards import Shards, label
from millrace.client.topic import Topic, validate_lag
from millrace.client.transaction import Transaction
from millrace.core import validate
from millrace.core.answers import QueueRef
from millrace.core.commands import CreateQueue, DeleteQueue, SpecPart
from millrace.core.model import CATALOG, ShardId
from millrace.core.topic_commands import CreateTopic, DeleteTopic, TopicRef
from millrace.errors import NotFound
from millrace.event_loop import run_to_completion


class Millrace:
    """An open Millrace: a folder of queues and topics on this machine, or a server's.

    Made by `millrace.open` and `millrace.connect`; the objects are the same either way.
    """

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
        beside: str | None = None,
        **settings: Unpack[QueueSettings],
    ) -> Queue:
        """Return the queue of this name, creating it if it does not exist.

        `keyed`: a message published under a key replaces the key's older revision. `retention`:
        "work" (settled messages are removed) or "log" (they stay). `keep_deletes`: seconds for
        which a deleted key stays readable as a delete, so that followers learn of it. `retry_min`,
        `retry_max`: backoff in seconds; a message that failed n times is delivered again after n
        times `retry_min`, at most `retry_max`. `max_failures`, `max_deliveries`: after this many
        failures or deliveries a message becomes a dead letter; it moves to the queue `dead_letter`,
        or is dropped if there is none. `delay`: seconds before a message is delivered that names no
        delay of its own.

        `shards`: number of parts that are ordered independently; default 1. `route`: how a
        message's shard is chosen: "key" (by its key; without a key round-robin), "group" (by its
        group, else its key) or "spread" (round-robin). `beside`: the name of a queue of the same
        space whose commit group this one joins, so that transactions over both stay possible on a
        cluster. These three are fixed at creation. `QueueSettings` describes the other settings.

        If the queue exists, the settings given must equal its own; `Queue.configure` changes them.

        Raises:
            Exists: the queue exists with other settings.
            NotFound: the queue `dead_letter` or `beside` does not exist; create it first.
            Invalid, TooLarge: the name or a setting is not valid.
        """
        space, name = validate.name(space, "space"), validate.name(name, "queue")
        queue_ref = await self._engine.find_queue(space, name)
        spec = make_spec(space, settings)
        if shards is not None:
            shards = validate.count(shards, "shards", limits.SHARDS_MAX)
        checked_route = validate.route(route)
        place = "" if beside is None else f"{space}/{validate.name(beside, 'beside')}"
        if (
            queue_ref is not None
            and spec == SpecPart()
            and shards is None
            and checked_route is None
            and not place
        ):
            return Queue(
                self._engine, self._keepalive, space, name, Shards.of(queue_ref, label(space, name))
            )
        ref = await self._engine.ask(
            CATALOG, CreateQueue(space, name, spec, shards, checked_route, place), QueueRef
        )
        return Queue(self._engine, self._keepalive, space, name, Shards.of(ref, label(space, name)))

    async def find(self, name: str, *, space: str = "default") -> Queue:
        """Return the queue of this name without creating it.

        Raises:
            NotFound: the queue does not exist; the error suggests the closest name.
        """
        space, name = validate.name(space, "space"), validate.name(name, "queue")
        queue_ref = await self._engine.find_queue(space, name)
        if queue_ref is None:
            near = _near(space, name, await self._engine.queue_names(space))
            raise NotFound(f"there is no queue {name!r} in {space!r}", field="queue", near=near)
        return Queue(
            self._engine, self._keepalive, space, name, Shards.of(queue_ref, label(space, name))
        )

    async def spaces(self) -> list[str]:
        """Return the spaces that have queues or topics, sorted."""
        return await self._engine.spaces()

    async def queues(self, *, space: str = "default") -> list[str]:
        """Return the names of the queues of a space, sorted."""
        return await self._engine.queue_names(validate.name(space, "space"))

    async def delete_queue(self, name: str, *, space: str = "default") -> bool:
        """Delete a queue with all its messages; return False if there was none.

        Subscriptions of topics to the queue end with it. A queue created later under the same name
        has nothing in common with it.
        """
        command = DeleteQueue(validate.name(space, "space"), validate.name(name, "queue"))
        return await self._engine.ask(CATALOG, command, bool)

    async def topic(
        self,
        name: str,
        *,
        space: str = "default",
        max_lag: int | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> Topic:
        """Return the topic of this name, creating it if it does not exist.

        `max_lag`: number of messages that may wait for the slowest subscription, default one
        million; beyond that the topic refuses publishes. `notes`: short texts by name, stored with
        the topic.

        Raises:
            Exists: the topic exists with other settings; `Topic.configure` changes them.
            Invalid, TooLarge: the name, `max_lag` or the notes are not valid.
        """
        space, name = validate.name(space, "space"), validate.topic(name)
        lag = None if max_lag is None else validate_lag(max_lag)
        checked_notes = () if notes is None else validate.notes(notes)
        is_named = lag is not None or checked_notes
        shard = None if is_named else await self._engine.find_topic(space, name)
        if shard is None:
            command = CreateTopic(space, name, lag, checked_notes)
            shard = (await self._engine.ask(CATALOG, command, TopicRef)).shard
        return Topic(self._engine, space, name, shard)

    async def find_topic(self, name: str, *, space: str = "default") -> Topic:
        """Return the topic of this name without creating it.

        Raises:
            NotFound: the topic does not exist; the error suggests the closest name.
        """
        space, name = validate.name(space, "space"), validate.topic(name)
        shard = await self._engine.find_topic(space, name)
        if shard is None:
            near = _near(space, name, await self._engine.topic_names(space))
            raise NotFound(f"there is no topic {name!r} in {space!r}", field="topic", near=near)
        return Topic(self._engine, space, name, shard)

    async def topics(self, *, space: str = "default") -> list[str]:
        """Return the names of the topics of a space, sorted."""
        return await self._engine.topic_names(validate.name(space, "space"))

    async def delete_topic(self, name: str, *, space: str = "default") -> bool:
        """Delete a topic at once; return False if there was none.

        Messages that were not forwarded yet are deleted with it.
        """
        command = DeleteTopic(validate.name(space, "space"), validate.topic(name))
        return await self._engine.ask(CATALOG, command, bool)

    def transaction(self, *, space: str = "default") -> Transaction:
        """Begin a transaction: `async with m.transaction() as t: ...` commits all of its operations
        or none.

        Queues given by name are looked up in `space`.
        """
        return Transaction(self._engine, validate.name(space, "space"), needs_context=True)

    async def backup(
        self,
        into: str | os.PathLike[str],
        *,
        follow: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Backup:
        """Make a backup of all queues and topics in the folder `into`, while the engine keeps
        working.

        On return the backup is complete and durable, and contains everything that was acknowledged
        before the call. Backups in the same folder share files that they have in common.

        With `follow`, the write-ahead log is archived there from now on before its segments are
        recycled, by this engine and all later ones of the folder, until `unfollow`; `restore` can
        then reach every point since this backup. `progress(copied, total)` is called on another
        thread with numbers of bytes.

        Raises:
            Exists: the folder has backups of another Millrace folder.
            InUse: another process is making a backup there.
            Full: the disk is full; the partial backup is removed.
        """
        report = progress or _ignore_progress
        folder = validate_folder(into, "into")
        return await self._engine.maintenance.backup(
            folder, report, follow=validate.flag(follow, "follow")
        )

    async def unfollow(self) -> bool:
        """Stop archiving the log; return False if it was not archived.

        The existing archive is kept.
        """
        return await self._engine.maintenance.unfollow()

    async def repair(
        self,
        name: str,
        *,
        space: str = "default",
        export: str | os.PathLike[str] | None = None,
        drop: bool = False,
        topic: bool = False,
    ) -> Repaired:
        """Check all rows of a quarantined queue (or topic, with `topic`) and reopen it if possible.

        With `export`, the readable rows are first written to that folder, as an Arrow stream per
        shard (`rows-<shard>.arrow`), together with the raw bytes of the unreadable ones and a list
        of these (`unreadable.json`). With `drop`, the unreadable rows are removed: they count as
        dropped, and cursors behind them must be reset. If every row can be read, for example after
        a damaged file was replaced from a backup, the queue is reopened in any case.

        Raises:
            Invalid: the queue is not quarantined.
            NotFound: there is no queue or topic of this name.
            Exists: the export folder exists and is not empty.
        """
        folder = None if export is None else validate_folder(export, "export")
        name = (
            validate.topic(name) if validate.flag(topic, "topic") else validate.name(name, "queue")
        )
        space = validate.name(space, "space")
        shards: tuple[ShardId, ...] = ()
        if topic:
            topic_shard = await self._engine.find_topic(space, name)
            shards = () if topic_shard is None else (topic_shard,)
        elif (ref := await self._engine.find_queue(space, name)) is not None:
            shards = ref.shards
        if not shards:
            kind = "topic" if topic else "queue"
            raise NotFound(f"there is no {kind} {name!r} in {space!r}", field=kind)
        return await self._engine.maintenance.repair(
            shards, folder, drop=validate.flag(drop, "drop")
        )

    async def health(self) -> Health:
        """Return the health of the engine: disk space, scrubbing, damaged files, log archive."""
        return await self._engine.maintenance.health()

    async def close(self) -> None:
        """Finish accepted work and close the engine; closing twice is harmless.

        The engine is closed completely even if the caller is cancelled in between.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await run_to_completion(self._closing)

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
    """Return the engine behind a `Millrace`."""
    return millrace._engine


def _near(space: str, name: str, names: list[str]) -> str | None:
    matches = get_close_matches(name, names, n=1)
    return f"{space}/{matches[0]}" if matches else None


def _ignore_progress(_: int, __: int) -> None:
    """Ignore the progress of a backup."""
