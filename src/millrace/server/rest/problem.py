"""Errors as answers: problem details (RFC 9457), with what the caller must do next."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from millrace import errors
from millrace.server.http.parser import BadRequest
from millrace.server.http.response import Response
from millrace.server.rest.message import Seq

TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True, rename={"kind": "type"}):
    """Why a request was not answered as asked."""

    kind: str
    """`urn:millrace:` and the error's code."""
    title: str
    status: int
    detail: str
    """For people: it names the field and the limit, and ends with what to do next."""
    code: str
    outcome: Literal["refused", "retry", "unknown"]
    """Refused: not done, and never will be. Retry: not done; the same request may succeed later.
    Unknown: it may have been done; ask again with the same producer and number, or receipt."""
    field: str | None = None
    limit: int | None = None
    retry_after_ms: int | None = None
    done: int | None = None
    """Of a request that names several messages: how many it was done for."""
    refused: list[RefusedOut] = []
    """Of such a request: each message with its own problem."""
    position: str | None = None
    """Of `rolled_back`: the position to go back to."""


class RefusedOut(msgspec.Struct, frozen=True):
    """A message of which something was refused."""

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
"""The first that an error is one of."""


def status_of(error: errors.MillraceError) -> int:
    """By which status an error is answered."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    raise AssertionError("every error has a root")


def problem_of(error: errors.MillraceError) -> Problem:
    """The error in words that go over the wire."""
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
    """What is answered instead."""
    problem = problem_of(error)
    headers: dict[str, str] = {}
    if problem.retry_after_ms is not None:
        headers["retry-after"] = str(max(1, math.ceil(problem.retry_after_ms / 1000)))
    if problem.status == 401:
        headers["www-authenticate"] = 'Bearer realm="millrace", Basic realm="millrace"'
    return Response(problem.status, msgspec.json.encode(problem), type=TYPE, headers=headers)


def answer_refused(refused: list[RefusedOut]) -> Response:
    """What is answered where a request was refused for each of the messages that it names."""
    problem = msgspec.structs.replace(refused[0].problem, done=0, refused=refused)
    return Response(problem.status, msgspec.json.encode(problem), type=TYPE)


def answer_bad(bad: BadRequest) -> Response:
    """What is answered to bytes that are no request; the connection ends with it."""
    if bad.status == 503:
        return answer_error(errors.Full(bad.detail, field="request", after_ms=1000))
    if bad.status == 413:
        return answer_error(errors.TooLarge(bad.detail, field="body", limit=bad.limit))
    problem = Problem(
        "urn:millrace:bad_request", "BadRequest", bad.status, bad.detail, "bad_request", "refused"
    )
    return Response(bad.status, msgspec.json.encode(problem), type=TYPE)


def answer_method(allowed: list[str]) -> Response:
    """The address is known, but not with this method."""
    detail = f"this address takes {', '.join(allowed)}"
    problem = Problem(
        "urn:millrace:method", "MethodNotAllowed", 405, detail, "method", "refused", "method"
    )
    headers = {"allow": ", ".join(allowed)}
    return Response(405, msgspec.json.encode(problem), type=TYPE, headers=headers)
