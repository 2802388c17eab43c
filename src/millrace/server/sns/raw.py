"""Raw delivery, and dead letters.

What a queue hands out raw its dead letters are handed out as, too: the queue that they go to has
the same note, unless it is subscribed itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from millrace.errors import NotFound
from millrace.server.aws.calls import Call
from millrace.server.sns.headers import GUEST, RAW, SUBSCRIPTION


async def share_raw(call: Call[Any], space: str, name: str) -> None:
    """Have the queue of a queue's dead letters hand out what came from topics as that one does."""
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
