"""Errors as responses: problem details (RFC 9457), with the action that the caller should take."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from millrace import errors
from millrace.server.http.parser import BadRequest
from millrace.server.http.response import Response
from millrace.server.web.message import Seq

TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True, rename={"kind": "type"}):
    """The error of a request, as problem details."""

    kind: str
    """`urn:millrace:` and the error's code."""
    title: str
    status: int
    detail: str
    """A text for people: it names the field and the limit, and ends with the next action."""
    code: str
    outcome: Literal["refused", "retry", "unknown"]
    """`refused`: not done, and a repetition has the same result. `retry`: not done; the same
    request may succeed later. `unknown`: it may have been done; repeat it with the same producer
    and number, or receipt.
    """
    field: str | None = None
    limit: int | None = None
    retry_after_ms: int | None = None
    done: int | None = None
    """For a request with several messages: the number for which it was done."""
    refused: list[RefusedOut] = []
    """For such a request: each refused message with its own problem."""
    position: str | None = None
    """With `rolled_back`: the position to return to."""


class RefusedOut(msgspec.Struct, frozen=True):
    """A message for which the operation was refused."""

    seq: Seq
    problem: Problem


_STATUS: dict[type[errors.MillraceError], int] = {
    errors.Unauthenticated: 401,
    errors.Denied: 403,
    errors.NotFound: 404,
    errors.Exists: 409,
    errors.Stale: 409,
    errors.OutOfOrder: 409,
    errors.AcrossGroups: 409,
    errors.Gone: 410,
    errors.SnapshotExpired: 410,
    errors.CursorExpired: 410,
    errors.TooLarge: 413,
    errors.Quarantined: 503,
    errors.Refused: 400,
    errors.Exhausted: 429,
    errors.Retry: 503,
    errors.MillraceError: 500,
}
"""The status of each class of errors; an error has that of its nearest base class."""


def status_of(error: errors.MillraceError) -> int:
    """Return the HTTP status of an error."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    raise AssertionError("every error has a root")


def problem_of(error: errors.MillraceError) -> Problem:
    """Return an error as problem details."""
    status = status_of(error)
    is_retry = isinstance(error, errors.Retry)
    is_refused = isinstance(error, errors.Refused)
    return Problem(
        f"urn:millrace:{error.code}",
        type(error).__name__,
        status,
        error.message,
        error.code,
        "retry" if is_retry else "refused" if is_refused else "unknown",
        error.field,
        error.limit,
        error.after_ms if isinstance(error, errors.Retry) else None,
        position=error.position if isinstance(error, errors.RolledBack) else None,
    )


def answer_error(error: errors.MillraceError) -> Response:
    """Return the response for an error."""
    problem = problem_of(error)
    headers: dict[str, str] = {}
    if problem.retry_after_ms is not None:
        headers["retry-after"] = str(max(1, math.ceil(problem.retry_after_ms / 1000)))
    if problem.status == 401:
        headers["www-authenticate"] = 'Bearer realm="millrace", Basic realm="millrace"'
    return Response(problem.status, msgspec.json.encode(problem), type=TYPE, headers=headers)


def answer_refused(refused: list[RefusedOut]) -> Response:
    """Return the response for a request that was refused for each of its messages."""
    problem = msgspec.structs.replace(refused[0].problem, done=0, refused=refused)
    return Response(problem.status, msgspec.json.encode(problem), type=TYPE)


def answer_bad(bad: BadRequest) -> Response:
    """Return the response to a malformed request; the connection is closed after it."""
    if bad.status == 503:
        return answer_error(errors.Full(bad.detail, field="request", after_ms=1000))
    if bad.status == 413:
        return answer_error(errors.TooLarge(bad.detail, field="body", limit=bad.limit))
    problem = Problem(
        "urn:millrace:bad_request", "BadRequest", bad.status, bad.detail, "bad_request", "refused"
    )
    return Response(bad.status, msgspec.json.encode(problem), type=TYPE)


def answer_method(allowed: list[str]) -> Response:
    """Return the response to a request with a method that the address does not have."""
    detail = f"this address takes {', '.join(allowed)}"
    problem = Problem(
        "urn:millrace:method", "MethodNotAllowed", 405, detail, "method", "refused", "method"
    )
    headers = {"allow": ", ".join(allowed)}
    return Response(405, msgspec.json.encode(problem), type=TYPE, headers=headers)
