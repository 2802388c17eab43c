"""The audit: who did what to the whole, when, from where, and how it ended.

Rule 1: an act that was done and its note are one: in one transaction where both are messages, else
the note is there before the act is answered.
Rule 2: no note holds a secret, and none can be mistaken for another line: what is not printable is
escaped, what is long is cut.
Rule 3: whoever may do nothing cannot fill the disk: acts that were denied or have failed are noted
so often, and counted beyond that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from millrace import limits
from millrace.client.millrace import Millrace
from millrace.client.queue import Queue
from millrace.errors import NotFound
from millrace.server.access import SYSTEM
from millrace.server.bucket import Bucket

AUDIT = "audit"
"""The queue of the space `system`."""

Outcome = Literal["done", "denied", "failed"]


class Actor(NamedTuple):
    """Who acts, and from where."""

    name: str
    address: str = ""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """One act, as it lies in the queue."""

    time_ms: int
    who: str
    act: str
    """As `user.add`, `token.revoke`, `queue.delete`."""
    target: str = ""
    outcome: Outcome = "done"
    address: str = ""
    detail: str = ""
    unnoted: int = 0
    """Acts that were denied or failed since the note before, and were not noted."""


class Audit:
    """Writes notes of acts."""

    def __init__(self, queue: Queue, now_ms: Callable[[], int]) -> None:
        self._queue = queue
        self._now_ms = now_ms
        rate = limits.AUDIT_DENIED_PER_SECOND
        self._undone = Bucket(rate, rate, now_ms())
        self._unnoted = 0

    @classmethod
    async def open(
        cls,
        millrace: Millrace,
        now_ms: Callable[[], int],
        *,
        keep: float = limits.AUDIT_KEEP_SECONDS,
    ) -> Audit:
        """The audit of a Millrace; its queue is made where it is missing, to `keep` seconds."""
        try:
            queue = await millrace.find(AUDIT, space=SYSTEM)
        except NotFound:
            queue = await millrace.queue(
                AUDIT,
                space=SYSTEM,
                retention="log",
                keep=keep,
                keep_bytes=limits.AUDIT_KEEP_BYTES,
            )
        return cls(queue, now_ms)

    async def keep(self, seconds: float) -> None:
        """Keep notes for so long from now on."""
        await self._queue.configure(keep=seconds)

    async def note(
        self,
        actor: Actor,
        act: str,
        target: str = "",
        *,
        outcome: Outcome = "done",
        detail: str = "",
    ) -> None:
        """Note an act; returns once the note can no longer be lost."""
        if outcome != "done" and self._undone.take(1, self._now_ms()):
            self._unnoted += 1
            return
        body = self.message(actor, act, target, outcome=outcome, detail=detail)
        await self._queue.publish(body)

    def message(
        self,
        actor: Actor,
        act: str,
        target: str = "",
        *,
        outcome: Outcome = "done",
        detail: str = "",
    ) -> bytes:
        """The note itself, for a transaction with the act."""
        unnoted, self._unnoted = self._unnoted, 0
        return msgspec.json.encode(
            Note(
                self._now_ms(),
                plain(actor.name),
                plain(act),
                plain(target),
                outcome,
                plain(actor.address),
                plain(detail),
                unnoted,
            )
        )


def plain(text: str) -> str:
    """Text on one line, without control characters, of a bounded length."""
    most = limits.AUDIT_TEXT_CHARS_MAX
    out: list[str] = []
    for character in text[:most]:
        if character.isprintable() and character != "\\":
            out.append(character)
        else:
            out.append(character.encode("unicode_escape", "backslashreplace").decode("ascii"))
    shown = "".join(out)
    return shown if len(shown) <= most and len(text) <= most else f"{shown[: most - 1]}…"
