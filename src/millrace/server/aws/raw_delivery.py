"""Copies raw message delivery to dead-letter queues.

Messages that a queue gets raw stay raw as dead letters: the dead-letter queue has the same notes,
unless it is subscribed to the topic itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from millrace.errors import NotFound
from millrace.server.aws.actions import AwsCall
from millrace.server.aws.topic_headers import GUEST, RAW, SUBSCRIPTION


async def share_raw(call: AwsCall[Any], space: str, name: str) -> None:
    """Copy the raw-delivery notes of a queue to its dead-letter queue."""
    directory = call.aws.directory
    with suppress(NotFound):
        known = await directory.look(space, name)
        at, _, letters = known.spec.dead_letter.partition("/")
        if not letters:
            return
        dead = await directory.look(at, letters)
        changed: dict[str, str] = {}
        for guest in ("", GUEST):
            before = f"{guest}{SUBSCRIPTION}"
            topics = [note.removeprefix(before) for note in known.notes if note.startswith(before)]
            changed |= {
                f"{guest}{RAW}{topic}": known.notes.get(f"{guest}{RAW}{topic}", "")
                for topic in topics
                if f"{SUBSCRIPTION}{topic}" not in dead.notes
                and f"{GUEST}{SUBSCRIPTION}{topic}" not in dead.notes
                and dead.notes.get(f"{guest}{RAW}{topic}", "")
                != known.notes.get(f"{guest}{RAW}{topic}", "")
            }
        if changed:
            await dead.queue.configure(notes=changed)
            directory.forget(at, letters)
