"""Every error, grouped by what the caller must do.

- `Refused`: the request is wrong. It was not applied and never will be; every replica answers the
  same.
- `Retry`: not now. Nothing was accepted; the same request may succeed later, elsewhere or smaller.
- `Fatal`: the engine has ended. What was not answered yet is UNKNOWN: open again and retry with the
  same producer and number, or the same receipt; it is applied at most once.

A message names the field and the limit, and ends with what to do next where that is not obvious.
"""

from __future__ import annotations

from typing import Self, TypeVar

E = TypeVar("E", bound=BaseException)


class MillraceError(Exception):
    """The root of every error that Millrace raises on purpose."""

    code = "error"

    def __init__(self, message: str, *, field: str | None = None, limit: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.limit = limit

    def again(self) -> Self:
        """The same error for someone else: one that is raised holds the frames it came through."""
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
    """Drop the tracebacks of an error and of what caused it, and return the error.

    For every error that is stored, or was handled and may be stored elsewhere (in a future, in an
    answer). Frames hold requests with their bodies; a frame that holds the error is a cycle, and
    the garbage collector of a server runs seldom.
    """
    linked: list[BaseException | None] = [error]
    while linked:
        found = linked.pop()
        if found is not None and (found.__traceback__ or found.__cause__ or found.__context__):
            found.__traceback__ = None
            linked += (found.__cause__, found.__context__)
            found.__context__ = None
            if not isinstance(found, Fatal):
                # The log names the cause of a `Fatal`.
                found.__cause__ = None
    return error


# --- Refused: change the request -------------------------------------------------------------


class Refused(MillraceError):
    """Not applied, and never will be."""

    code = "refused"


class Invalid(Refused):
    """A field has a value that no queue would take."""

    code = "invalid"


class TooLarge(Refused):
    """A field is above its limit; `limit` says which one."""

    code = "too_large"


class NotFound(Refused):
    """No queue, message, cursor, pin or stage of this name.

    `near` is what is spelled most like it, as space/name; the message ends with it.
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
        """The same for someone who may not know what else there is."""
        return NotFound(self._plain, field=self.field, limit=self.limit)


class Exists(Refused):
    """It is there already, with other settings."""

    code = "exists"


class Stale(Refused):
    """The receipt was overtaken: someone else leased the message, or it was given back."""

    code = "stale"


class Late(Stale):
    """The deadline was over when it was decided, and that was asked to count."""

    code = "late"


class Superseded(Stale):
    """A newer revision of the key has replaced the leased message."""

    code = "superseded"


class Suspected(Stale):
    """Nobody spoke for the session for a while, as far as is known; resume it to go on."""

    code = "suspected"


class Fenced(Stale):
    """A later follower has opened the cursor: it has the cursor now, and this one must end.

    To take the cursor back, open it again.
    """

    code = "fenced"


class Gone(Refused):
    """The lease is no longer remembered. This attempt changed nothing; an earlier one may have."""

    code = "gone"


class Unauthenticated(Refused):
    """Nobody is known by what was sent: no token, an unknown, an expired or a revoked one."""

    code = "unauthenticated"


class Denied(Refused):
    """Whoever asks is known, and may not do this."""

    code = "denied"


class Forged(Refused):
    """The receipt was not made by this cluster for this queue."""

    code = "forged"


class OutOfOrder(Refused):
    """A producer's number is above the expected one; `expected` says where to go on."""

    code = "out_of_order"

    def __init__(self, message: str, *, expected: int) -> None:
        super().__init__(message, field="number", limit=expected)
        self.expected = expected


class SnapshotExpired(Refused):
    """The pin was dropped, so its rows can no longer be promised."""

    code = "snapshot_expired"


class CursorExpired(Refused):
    """Rows that the cursor had not read are gone; it must be reset, it never skips."""

    code = "cursor_expired"


class RolledBack(CursorExpired):
    """The queue went back behind what was read, by a restore or a takeover.

    What was read after `position` is not part of the queue any more: undo it, and go on from there.
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
        """The token of the place to go back to, where it is known; see `Position`."""


class Quarantined(Refused):
    """Rows of the queue cannot be read: it is closed to reads, leases and publishes until it is
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
    """Whoever asks has used up what is allowed to them for now; `field` says which quota."""

    code = "exhausted"


class NotYet(Retry):
    """A follower has not committed the position yet; wait for it again."""

    code = "not_yet"


class InUse(Retry):
    """The folder is open already, in another process or in this one; `pid` says where."""

    code = "in_use"

    def __init__(self, message: str, *, pid: int | None) -> None:
        super().__init__(message, field="path")
        self.pid = pid


class Closed(Retry):
    """The engine was closed or handed over before this was accepted; open it again."""

    code = "closed"


# --- Fatal: open again -----------------------------------------------------------------------


class Fatal(MillraceError):
    """The engine has ended; what was not answered is UNKNOWN."""

    code = "fatal"


class DiskFailed(Fatal):
    """A write or a sync failed. It is never tried again: the pages may count as clean."""

    code = "disk_failed"


class Corrupt(Fatal):
    """Bytes on disk are not those that were written. Nothing is skipped; the message says where."""

    code = "corrupt"


class Copied(Fatal):
    """The folder is a copy of another one; open it with `fork=True` to give it a new history."""

    code = "copied"


class Unknown(Fatal):
    """The connection was lost before the answer: it was done, or it was not.

    The engine may go on, and so may whoever asked: the same again, with the same producer and
    number or the same receipt, is done at most once.
    """

    code = "unknown"
