"""All errors, grouped by the way to handle them.

- `Refused`: the request is wrong. It was not applied and never will be; every replica answers the
  same.
- `Retry`: not now. Nothing was accepted; the same request may succeed later, elsewhere or if it is
  smaller.
- `Fatal`: the engine has ended. The result of unanswered requests is UNKNOWN: open again and retry
  with the same producer and number, or the same receipt; they are applied at most once.

A message names the field and the limit, and ends with the remedy where it is not obvious.
"""

from __future__ import annotations

from typing import Self, TypeVar

E = TypeVar("E", bound=BaseException)


class MillraceError(Exception):
    """Base class of all errors that Millrace raises on purpose."""

    code = "error"

    def __init__(self, message: str, *, field: str | None = None, limit: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.limit = limit

    def again(self) -> Self:
        """Return a copy for another caller: a raised error references the frames it has passed."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__.update(self.__dict__)
        other.__cause__ = self.__cause__
        return other

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, MillraceError)
            and (self.message, self.field, self.limit) == (other.message, other.field, other.limit)
        )

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.message, self.field, self.limit))


def detached(error: E) -> E:
    """Remove the tracebacks of an error and its causes, and return the error.

    Use it for every error that is stored, or was handled and may be stored elsewhere (in a future,
    in an answer). Frames reference requests with their bodies; a frame that references the error is
    a cycle, and a server runs the garbage collector rarely.
    """
    linked: list[BaseException | None] = [error]
    while linked:
        found = linked.pop()
        if found is not None and (found.__traceback__ or found.__cause__ or found.__context__):
            found.__traceback__ = None
            linked += (found.__cause__, found.__context__)
            found.__context__ = None
            if not isinstance(found, Fatal):
                # The cause of a `Fatal` is logged later.
                found.__cause__ = None
    return error


# --- Refused: change the request -------------------------------------------------------------


class Refused(MillraceError):
    """The request is wrong: it was not applied, and never will be."""

    code = "refused"


class Invalid(Refused):
    """A field has a value that is never allowed."""

    code = "invalid"


class TooLarge(Refused):
    """A field exceeds its limit, which is in `limit`."""

    code = "too_large"


class NotFound(Refused):
    """No queue, message, cursor, pin or stage has this name.

    `near` is the most similar existing name as space/name; the message ends with it.
    """

    code = "not_found"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        limit: int | None = None,
        near: str | None = None,
    ) -> None:
        hint = "" if near is None else f"; did you mean {near.partition('/')[2]!r}?"
        super().__init__(message + hint, field=field, limit=limit)
        self.near = near
        self._plain = message

    def without_hint(self) -> NotFound:
        """Return the error without the similar name, for a caller who may not see other names."""
        return NotFound(self._plain, field=self.field, limit=self.limit)


class Exists(Refused):
    """The object exists already, with other settings."""

    code = "exists"


class Stale(Refused):
    """The receipt is outdated: the message was leased again, or returned to the queue."""

    code = "stale"


class Late(Stale):
    """The lease had expired when the command was decided, which required it to be valid."""

    code = "late"


class Superseded(Stale):
    """A newer revision of the key has replaced the leased message."""

    code = "superseded"


class Suspected(Stale):
    """No heartbeat of the session has arrived for a while; resume it to go on."""

    code = "suspected"


class Fenced(Stale):
    """A later follower has opened the cursor and owns it now; this one must end.

    To take the cursor back, open it again.
    """

    code = "fenced"


class Gone(Refused):
    """The lease is no longer remembered. This attempt changed nothing; an earlier one may have."""

    code = "gone"


class Unauthenticated(Refused):
    """Authentication failed: the credentials are missing, unknown, expired or revoked."""

    code = "unauthenticated"


class Denied(Refused):
    """The caller is authenticated, but not authorized to do this."""

    code = "denied"


class Forged(Refused):
    """The receipt was not issued by this cluster for this queue."""

    code = "forged"


class OutOfOrder(Refused):
    """A producer's number is above the expected one; `expected` is the number to go on with."""

    code = "out_of_order"

    def __init__(self, message: str, *, expected: int) -> None:
        super().__init__(message, field="number", limit=expected)
        self.expected = expected


class SnapshotExpired(Refused):
    """The pin was dropped, so that its rows are no longer guaranteed."""

    code = "snapshot_expired"


class CursorExpired(Refused):
    """Rows that the cursor had not read are gone. A cursor never skips; reset it."""

    code = "cursor_expired"


class RolledBack(CursorExpired):
    """The queue went back behind the follower's position, by a restore or a takeover.

    Rows that were read after `position` no longer belong to the queue: undo their effects, and go
    on from there.
    """

    code = "rolled_back"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        limit: int | None = None,
        position: str | None = None,
    ) -> None:
        super().__init__(message, field=field, limit=limit)
        self.position = position
        """The token of the position to go back to, if it is known; see `Position`."""


class Quarantined(Refused):
    """Rows of the queue are unreadable: reads, leases and publishes are refused until it is
    repaired, purged or deleted. Other queues are not affected."""

    code = "quarantined"


class AcrossGroups(Refused):
    """A transaction names queues of different commit groups."""

    code = "across_groups"


# --- Retry: later, elsewhere, smaller --------------------------------------------------------


class Retry(MillraceError):
    """Nothing was accepted; try again after `after_ms`."""

    code = "retry"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        limit: int | None = None,
        after_ms: int = 100,
    ) -> None:
        super().__init__(message, field=field, limit=limit)
        self.after_ms = after_ms


class Full(Retry):
    """The inbox, the log or the disk has no room for more; settling still works."""

    code = "full"


class Exhausted(Retry):
    """The caller's rate limit or quota is used up; `field` says which."""

    code = "exhausted"


class NotYet(Retry):
    """The follower has not committed the position yet; wait again."""

    code = "not_yet"


class InUse(Retry):
    """The folder is already open, in process `pid` or in this one."""

    code = "in_use"

    def __init__(self, message: str, *, pid: int | None) -> None:
        super().__init__(message, field="path")
        self.pid = pid


class Closed(Retry):
    """The engine was closed or handed over before the request was accepted; open it again."""

    code = "closed"


# --- Fatal: open again -----------------------------------------------------------------------


class Fatal(MillraceError):
    """The engine has ended; the result of unanswered requests is UNKNOWN."""

    code = "fatal"


class DiskFailed(Fatal):
    """A write or sync failed. It is never retried: the kernel may have marked the pages clean."""

    code = "disk_failed"


class Corrupt(Fatal):
    """Bytes on the disk differ from those that were written. Nothing is skipped; the message says
    where."""

    code = "corrupt"


class Copied(Fatal):
    """The folder is a copy of another one; open it with `fork=True` to give it a new history."""

    code = "copied"


class Unknown(Fatal):
    """The connection was lost before the answer: the request was applied, or it was not.

    The engine may still run. A repeated request, with the same producer and number or the same
    receipt, is applied at most once.
    """

    code = "unknown"
