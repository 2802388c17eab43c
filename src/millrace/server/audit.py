"""The audit: who did what to the whole, when, from where, and how it ended.

Rule 1: an act is noted before it is done. Where both are messages they are one transaction, and the
note says `done`. Else a note that it has begun goes first, and one that says how it ended follows;
both have the same id. An act that cannot be noted is refused, and has changed nothing. One whose
end cannot be noted is answered as it ended: its first note is there, and without a second nobody
knows more than that it was begun.
Rule 2: no note holds a secret, and none can be mistaken for another line: what is not printable is
escaped, what is long is cut.
Rule 3: whoever may do nothing cannot fill the audit: acts that were denied are noted so often, for
each user and for all together, and counted beyond that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from millrace import limits
from millrace.client.care import ENDS, OWNER
from millrace.client.millrace import Millrace, engine_of
from millrace.client.queue import Queue
from millrace.errors import Denied, MillraceError, NotFound, Quarantined, Refused, Retry
from millrace.server.access import SYSTEM
from millrace.server.bucket import Bucket

T = TypeVar("T")
_logger = logging.getLogger("millrace.server")

AUDIT = "audit"
"""The queue of the space `system`."""

Outcome = Literal["begun", "done", "denied", "refused", "unknown"]
"""Begun: it is about to be done, and another note says how it ended. Denied: no rule allows it.
Refused: nothing was changed. Unknown: it was done, or it was not, or a part of it."""


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
    """Acts that were denied since the note before, and were not noted."""
    id: str = ""
    """The same in the note that an act has begun, and in the one that says how it ended."""


class Audit:
    """Writes notes of acts."""

    def __init__(self, queue: Queue, now_ms: Callable[[], int]) -> None:
        self._queue = queue
        self._now_ms = now_ms
        self._denied = Denials(now_ms())
        self._unnoted = 0
        self._writing: set[asyncio.Task[None]] = set()

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
        engine_of(millrace).care.keep_room(queue.shards.ids)
        return cls(queue, now_ms)

    async def keep(self, seconds: float) -> None:
        """Keep notes for so long from now on."""
        await self._queue.configure(keep=seconds)

    async def close(self) -> None:
        """Have what is being noted noted."""
        await asyncio.gather(*self._writing)

    async def begin(self, actor: Actor, act: str, target: str = "", detail: str = "") -> Begun:
        """Note that an act is about to be done; returns once the note can no longer be lost.

        Say what became of it by `Begun.end`, or have it done by `carry_out`.

        Raises:
            MillraceError: it could not be noted, and must not be done.
        """
        begun = Begun(self, actor, act, target, uuid4().hex)
        body = self.message(actor, act, target, outcome="begun", detail=detail, id=begun.id)
        try:
            await self._queue.publish(body, headers=headers_for(actor))
        except Quarantined:
            raise Quarantined(
                f"{act} must be noted in {SYSTEM}/{AUDIT} first, and that queue is quarantined; "
                f"repair it: `millrace repair {SYSTEM}/{AUDIT} --drop`",
                field="audit",
            ) from None
        return begun

    async def note(
        self,
        actor: Actor,
        act: str,
        target: str = "",
        *,
        outcome: Outcome = "done",
        detail: str = "",
        id: str = "",
    ) -> None:
        """Note how an act ended; returns once the note can no longer be lost."""
        body = self.message(actor, act, target, outcome=outcome, detail=detail, id=id)
        headers = headers_for(actor) + ([(ENDS, b"")] if id else [])
        await self._queue.publish(body, headers=headers)

    def denied(self, actor: Actor, act: str, target: str = "") -> None:
        """Note that an act was denied; not more often than `Denials` says, and nobody waits for it.

        It may not use the reserve: whoever may do nothing must not use it up.
        """
        if len(self._writing) >= limits.AUDIT_WRITING_MAX or not self._denied.take(
            actor.name, self._now_ms()
        ):
            self._unnoted += 1
            return
        self.write(self._put(self.message(actor, act, target, outcome="denied")))

    async def _put(self, body: bytes) -> None:
        await self._queue.publish(body)

    def write(self, note: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Write a note to the end, whoever leaves meanwhile. What cannot be written is logged."""
        task = asyncio.get_running_loop().create_task(_write(note))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return task

    def message(
        self,
        actor: Actor,
        act: str,
        target: str = "",
        *,
        outcome: Outcome = "done",
        detail: str = "",
        id: str = "",
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
                id,
            )
        )


async def _write(note: Coroutine[Any, Any, None]) -> None:
    try:
        await note
    except MillraceError as error:
        _logger.warning("a note of the audit could not be written: %s", error)


class Begun:
    """An act that is on record as begun."""

    __slots__ = ("_act", "_actor", "_audit", "_target", "id")

    def __init__(self, audit: Audit, actor: Actor, act: str, target: str, id: str) -> None:
        self._audit = audit
        self._actor = actor
        self._act = act
        self._target = target
        self.id = id

    async def end(self, outcome: Outcome, detail: str = "") -> None:
        """Note how it ended; done to the end, whoever is cancelled meanwhile."""
        await asyncio.shield(self.end_soon(outcome, detail))

    def end_soon(self, outcome: Outcome, detail: str = "") -> asyncio.Task[None]:
        """Note how it ended; nobody has to wait for it."""
        return self._audit.write(
            self._audit.note(
                self._actor, self._act, self._target, outcome=outcome, detail=detail, id=self.id
            )
        )


async def carry_out(
    begun: Begun | None,
    work: Callable[[], Awaitable[T]],
    tell: Callable[[], str] = str,
    *,
    is_cancelled: Outcome = "unknown",
) -> T:
    """Do what is on record as begun, and note how it ended; `tell` is asked then how far it came.

    `is_cancelled` is what is noted where it was called off. None: nothing is on record, for nobody
    keeps one.
    """
    if begun is None:
        return await work()
    try:
        result = await work()
    except MillraceError as error:
        await begun.end(outcome_of(error), f"{error.code} {tell()}".rstrip())
        raise
    except asyncio.CancelledError:
        begun.end_soon(is_cancelled, f"called off {tell()}".rstrip())
        raise
    except BaseException:
        begun.end_soon("unknown", tell())
        raise
    await begun.end("done", tell())
    return result


def outcome_of(error: MillraceError) -> Outcome:
    """What an error says of the act that it ended."""
    if isinstance(error, Denied):
        return "denied"
    return "refused" if isinstance(error, Refused | Retry) else "unknown"


def headers_for(actor: Actor) -> list[tuple[str, bytes]]:
    """The headers of what is written for an act: it may use the actor's share of the reserve."""
    return [(OWNER, plain(actor.name).encode())]


class Denials:
    """How often acts that were denied are noted: for each user and for all together."""

    def __init__(self, now_ms: int) -> None:
        rate = limits.AUDIT_DENIED_PER_MINUTE / 60
        self._all = Bucket(rate, limits.AUDIT_DENIED_BURST, now_ms)
        self._users: dict[str, Bucket] = {}
        """The one that was denied last is at the end."""

    def take(self, user: str, now_ms: int) -> bool:
        """Whether one more is noted."""
        bucket = self._users.pop(user, None)
        if bucket is None:
            if len(self._users) >= limits.AUDIT_DENIED_USERS_MAX:
                del self._users[next(iter(self._users))]
            rate = limits.AUDIT_USER_DENIED_PER_MINUTE / 60
            bucket = Bucket(rate, limits.AUDIT_USER_DENIED_BURST, now_ms)
        self._users[user] = bucket
        return not bucket.take(1, now_ms) and not self._all.take(1, now_ms)


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
