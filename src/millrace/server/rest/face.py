"""The APIs of one server: how their callers say who they are, and how they are told errors.

A route names the face that it belongs to. That of the server's own API is `Own`: its callers show
a token, and are answered problems in JSON.
"""

from __future__ import annotations

from typing import Literal, Protocol

from millrace.errors import MillraceError
from millrace.server.access import Principal
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from millrace.server.rest import problem

FaceName = Literal["own", "aws", "cassieq", "dynamiq"]


class Guard(Protocol):
    """Knows who asks."""

    def admit(self, headers: dict[str, str], peer: str) -> Principal | MillraceError:
        """Whoever sent these headers; or why nobody is known by them."""
        ...

    def who(self, headers: dict[str, str], peer: str) -> Principal | None:
        """The same of one who was admitted before."""
        ...

    def version(self) -> int:
        """Another number when that may have become other."""
        ...


class Face(Protocol):
    """One of the APIs."""

    @property
    def proves_later(self) -> bool:
        """Whether it takes the body to know that callers are who they say they are: they are held
        to what they may have by the handler, and not before."""
        ...

    def admit(
        self, request: Request, params: dict[str, str], peer: str
    ) -> Principal | MillraceError:
        """Who asks, by the head of a request; or why nobody is let in."""
        ...

    def who(self, request: Request, params: dict[str, str], peer: str) -> Principal | None:
        """The same of one who was admitted before; nothing is counted where nobody is known."""
        ...

    def answer_error(self, request: Request, error: MillraceError) -> Response:
        """What callers are answered to an error."""
        ...


class Own:
    """The server's own API."""

    proves_later = False

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def admit(
        self, request: Request, params: dict[str, str], peer: str
    ) -> Principal | MillraceError:
        return self._guard.admit(request.headers, peer)

    def who(self, request: Request, params: dict[str, str], peer: str) -> Principal | None:
        return self._guard.who(request.headers, peer)

    def answer_error(self, request: Request, error: MillraceError) -> Response:
        return problem.answer_error(error)
