"""The protocols of one server's APIs: authentication of requests and rendering of errors.

A route names the API that it belongs to. `NativeApi` is the server's own: its callers authenticate
by a token, and errors are problem details in JSON.
"""

from __future__ import annotations

from typing import Literal, Protocol

from millrace.errors import MillraceError
from millrace.server.auth.access import Principal
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from millrace.server.web import problem

FaceName = Literal["own", "aws", "cassieq", "dynamiq"]


class Authenticates(Protocol):
    """Authenticates requests by their headers."""

    def admit(self, headers: dict[str, str], peer: str) -> Principal | MillraceError:
        """Return the principal of a request, or the error if it cannot be authenticated."""
        ...

    def who(self, headers: dict[str, str], peer: str) -> Principal | None:
        """Return the principal again for a request that was admitted before, or None."""
        ...

    def version(self) -> int:
        """Return a number that changes whenever results of `who` may have changed."""
        ...


class ApiProtocol(Protocol):
    """The protocol of one API."""

    @property
    def proves_later(self) -> bool:
        """True if authentication needs the body. Then the handler charges the request to the
        caller's quotas, after it has verified the caller.
        """
        ...

    def admit(
        self, request: Request, params: dict[str, str], peer: str
    ) -> Principal | MillraceError:
        """Authenticate a request by its head; return the principal, or the error that refuses
        it.
        """
        ...

    def who(self, request: Request, params: dict[str, str], peer: str) -> Principal | None:
        """Authenticate an admitted request again; return None on failure, which is not counted."""
        ...

    def answer_error(self, request: Request, error: MillraceError) -> Response:
        """Return the response for an error in this API's form."""
        ...


class NativeApi:
    """The server's native API."""

    proves_later = False

    def __init__(self, guard: Authenticates) -> None:
        self._guard = guard

    def admit(
        self, request: Request, params: dict[str, str], peer: str
    ) -> Principal | MillraceError:
        return self._guard.admit(request.headers, peer)

    def who(self, request: Request, params: dict[str, str], peer: str) -> Principal | None:
        return self._guard.who(request.headers, peer)

    def answer_error(self, request: Request, error: MillraceError) -> Response:
        return problem.answer_error(error)
