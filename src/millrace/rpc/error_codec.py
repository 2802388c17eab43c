"""Encodes errors in frames; their codes are part of the format."""

from __future__ import annotations

from typing import cast

from millrace import errors
from millrace.errors import Fatal, InUse, MillraceError, OutOfOrder, Refused, Retry
from millrace.rpc.frames import BlobReader, BlobWriter

_KINDS: tuple[type[MillraceError], ...] = (
    errors.Refused,
    errors.Invalid,
    errors.TooLarge,
    errors.NotFound,
    errors.Exists,
    errors.Stale,
    errors.Late,
    errors.Superseded,
    errors.Suspected,
    errors.Fenced,
    errors.Gone,
    errors.Unauthenticated,
    errors.Denied,
    errors.Forged,
    errors.SnapshotExpired,
    errors.CursorExpired,
    errors.RolledBack,
    errors.AcrossGroups,
    errors.Quarantined,
    errors.Retry,
    errors.Full,
    errors.Exhausted,
    errors.NotYet,
    errors.Closed,
    errors.Fatal,
    errors.DiskFailed,
    errors.Corrupt,
    errors.Copied,
    errors.Unknown,
)
_BY_CODE = {kind.code: kind for kind in _KINDS}


class ErrorCodec:
    """An error as class (r, t or f), code, message, field, limit and one more value.

    An unknown code is decoded as `Refused`, `Retry` or `Fatal`, by its class.
    """

    def pack(self, value: object, blobs: BlobWriter) -> list[object]:
        error = cast("MillraceError", value)
        way, more = "r", 0
        if isinstance(error, OutOfOrder):
            more = error.expected
        elif isinstance(error, InUse):
            way, more = "t", error.pid or 0
        elif isinstance(error, Retry):
            way, more = "t", error.after_ms
        elif isinstance(error, Fatal):
            way = "f"
        return [way, error.code, error.message, error.field, error.limit, more]

    def unpack(self, raw: object, field: str, blobs: BlobReader) -> MillraceError:
        if type(raw) is not list or len(raw) != 6:
            return Fatal(f"an error came that cannot be read: {type(raw).__name__}")
        way, code, message, where, limit, more = cast(
            "tuple[str, str, str, str | None, int | None, int]", raw
        )
        if not (type(code) is type(message) is str and type(more) is int):
            return Fatal("an error came that cannot be read")
        if code == OutOfOrder.code:
            return OutOfOrder(message, expected=more)
        if code == InUse.code:
            return InUse(message, pid=more or None)
        kind = _BY_CODE.get(code)
        if way == "t":
            again = kind if kind is not None and issubclass(kind, Retry) else Retry
            return again(message, field=where, limit=limit, after_ms=more)
        if kind is None:
            kind = Fatal if way == "f" else Refused
        return kind(message, field=where, limit=limit)


ERROR = ErrorCodec()
