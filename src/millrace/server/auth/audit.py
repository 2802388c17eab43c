"""The audit log of administrative operations: user, operation, time, address and outcome.

Rule 1: an operation is recorded before it runs. If both are messages they are one transaction, and
the outcome is `done`. Otherwise a record `begun` is written first, and one with the outcome
follows; both have the same id. An operation that cannot be recorded is refused, and changes
nothing. If only the outcome cannot be recorded, the operation is answered as it ended: its first
record exists, and without the second it is known only to have begun.
Rule 2: records contain no secrets, and cannot imitate another line: unprintable characters are
escaped, and long texts are cut.
Rule 3: users without rights cannot flood the audit: the records of denied operations are limited in
rate, per user and in all, and the rest is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from millrace import limits
from millrace.client.maintenance import ENDS, OWNER
from millrace.client.millrace import Millrace, engine_of
from millrace.client.queue import Queue
from millrace.errors import Denied, MillraceError, NotFound, Quarantined, Refused, Retry
from millrace.server.auth.access import SYSTEM
from millrace.server.auth.records import Kind
from millrace.server.auth.token_bucket import TokenBucket

T = TypeVar("T")
_logger = logging.getLogger("millrace.server")

AUDIT = "audit"
"""The queue in the space `system`."""

Outcome = Literal["begun", "done", "denied", "refused", "unknown"]
"""Begun: it is about to run, and another record gives its outcome. Denied: no rule allows it.
Refused: it changed nothing. Unknown: it was done, was not done, or was done in part."""


class Actor(NamedTuple):
    """The user of an operation, and their address."""

    name: str
    address: str = ""


class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One audit record, as stored in the queue."""

    time_ms: int
    who: str
    act: str
    """Such as `user.add`, `token.revoke`, `queue.delete`."""
    target: str = ""
    outcome: Outcome = "done"
    address: str = ""
    detail: str = ""
    unnoted: int = 0
    """Number of denied operations without a record since the previous record."""
    id: str = ""
    """Connects the record of an operation's begin with that of its outcome."""


class Audit:
    """Writes audit records."""

    def __init__(self, queue: Queue, now_ms: Callable[[], int]) -> None:
        self._queue = queue
        self._now_ms = now_ms
        self._denied = DenialLimiter(now_ms())
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
        """Open the audit of a Millrace; its queue is created if missing, with retention `keep` in
        seconds."""
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
        engine_of(millrace).maintenance.keep_room(queue.shards.ids)
        return cls(queue, now_ms)

    async def keep(self, seconds: float) -> None:
        """Change the retention of records."""
        await self._queue.configure(keep=seconds)

    async def close(self) -> None:
        """Wait for records that are being written."""
        await asyncio.gather(*self._writing)

    async def begin(
        self, actor: Actor, act: str, target: str = "", detail: str = ""
    ) -> RunningOperation:
        """Record that an operation is about to run; returns when the record is durable.

        Record the outcome with `RunningOperation.end`, or run the operation by `carry_out`.

        Raises:
            MillraceError: it could not be recorded, and must not run.
        """
        begun = RunningOperation(self, actor, act, target, uuid4().hex)
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
        """Record the outcome of an operation; returns when the record is durable."""
        body = self.message(actor, act, target, outcome=outcome, detail=detail, id=id)
        headers = headers_for(actor) + ([(ENDS, b"")] if id else [])
        await self._queue.publish(body, headers=headers)

    def denied(self, actor: Actor, act: str, target: str = "") -> None:
        """Record a denied operation without waiting, unless `DenialLimiter` limits it.

        The record may not use the disk reserve: users without rights must not exhaust it.
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
        """Write a record in a task that survives cancellation of the caller; failures are
        logged."""
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
        """Encode a record, for a transaction with the operation."""
        unnoted, self._unnoted = self._unnoted, 0
        return msgspec.json.encode(
            AuditRecord(
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


class RunningOperation:
    """A running operation whose begin is recorded."""

    __slots__ = ("_act", "_actor", "_audit", "_target", "id")

    def __init__(self, audit: Audit, actor: Actor, act: str, target: str, id: str) -> None:
        self._audit = audit
        self._actor = actor
        self._act = act
        self._target = target
        self.id = id

    async def end(self, outcome: Outcome, detail: str = "") -> None:
        """Record the outcome, also if the caller is cancelled while it is written."""
        await asyncio.shield(self.end_soon(outcome, detail))

    def end_soon(self, outcome: Outcome, detail: str = "") -> asyncio.Task[None]:
        """Record the outcome in a task, without waiting."""
        return self._audit.write(
            self._audit.note(
                self._actor, self._act, self._target, outcome=outcome, detail=detail, id=self.id
            )
        )


async def carry_out(
    begun: RunningOperation | None,
    work: Callable[[], Awaitable[T]],
    tell: Callable[[], str] = str,
    *,
    is_cancelled: Outcome = "unknown",
) -> T:
    """Run an operation whose begin is recorded, and record its outcome.

    `tell` returns details for that record. `is_cancelled` is the outcome on cancellation. If
    `begun` is None, nothing is recorded.
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
    """Return the outcome that an error means for its operation."""
    if isinstance(error, Denied):
        return "denied"
    return "refused" if isinstance(error, Refused | Retry) else "unknown"


def headers_for(actor: Actor) -> list[tuple[str, bytes]]:
    """Return headers for messages of an operation: they may use the user's share of the reserve."""
    return [(OWNER, plain(actor.name).encode())]


class DenialLimiter:
    """Rate limits of the records of denied operations: per user and in all."""

    def __init__(self, now_ms: int) -> None:
        rate = limits.AUDIT_DENIED_PER_MINUTE / 60
        self._all = TokenBucket(rate, limits.AUDIT_DENIED_BURST, now_ms)
        self._users: dict[str, TokenBucket] = {}
        """Least recently denied first."""

    def take(self, user: str, now_ms: int) -> bool:
        """Return whether another denied operation is recorded."""
        bucket = self._users.pop(user, None)
        if bucket is None:
            if len(self._users) >= limits.AUDIT_DENIED_USERS_MAX:
                del self._users[next(iter(self._users))]
            rate = limits.AUDIT_USER_DENIED_PER_MINUTE / 60
            bucket = TokenBucket(rate, limits.AUDIT_USER_DENIED_BURST, now_ms)
        self._users[user] = bucket
        return not bucket.take(1, now_ms) and not self._all.take(1, now_ms)


def plain(text: str) -> str:
    """Return a text as one bounded line without control characters."""
    most = limits.AUDIT_TEXT_CHARS_MAX
    out: list[str] = []
    for character in text[:most]:
        if character.isprintable() and character != "\\":
            out.append(character)
        else:
            out.append(character.encode("unicode_escape", "backslashreplace").decode("ascii"))
    shown = "".join(out)
    return shown if len(shown) <= most and len(text) <= most else f"{shown[: most - 1]}…"


# --- Administrative operations as they are audited and counted -----------------------------------


class CountedObject(NamedTuple):
    """A created or deleted object, by the kind and name under which it counts."""

    kind: Kind
    name: str


class Act(NamedTuple):
    """The audited operation of a request whose route alone does not determine it."""

    name: str
    """Name of the operation."""
    target: str
    """Name of its target."""
    makes: CountedObject | None = None
    """An object that it creates, which counts against the user's quota."""
    ends: CountedObject | None = None
    """An object that it deletes, which counts no longer."""


def queue_made(space: str, name: str) -> CountedObject:
    """Return the counted object of a queue."""
    return CountedObject("queues", f"{space}/{name}")


def topic_made(space: str, name: str) -> CountedObject:
    """Return the counted object of a topic, which differs from that of a queue of the same name."""
    return CountedObject("queues", f"{space}/topic:{name}")


def subscription_made(space: str, topic: str, name: str) -> CountedObject:
    """Return the counted object of a subscription."""
    return CountedObject("subscriptions", f"{space}/{topic}/{name}")
