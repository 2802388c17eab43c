"""What routes know of the server that they are part of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from millrace.errors import MillraceError
from millrace.server.access import Principal
from millrace.server.audit import Begun
from millrace.server.book import Book
from millrace.server.calls import Service
from millrace.server.counted import Handed
from millrace.server.holding import Holding
from millrace.server.http.response import Response
from millrace.server.quota import Quotas
from millrace.server.rest.act import Act
from millrace.server.rest.face import Face, FaceName
from millrace.server.rest.held import Sessions
from millrace.server.rest.jobs import Jobs
from millrace.server.rest.slots import Streams
from millrace.server.rest.stopping import Stopping

if TYPE_CHECKING:
    from millrace.server.rest.route import Ask

T = TypeVar("T")


class Server(Protocol):
    """What routes know of the server that they are part of."""

    @property
    def stopping(self) -> Stopping:
        """Who waits for something to come."""
        ...

    @property
    def sessions(self) -> Sessions:
        """Sessions of clients that come and go."""
        ...

    @property
    def streams(self) -> Streams:
        """How many streams of events there are."""
        ...

    @property
    def jobs(self) -> Jobs:
        """What goes on beside requests."""
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether it takes no new requests."""
        ...

    @property
    def service(self) -> Service:
        """What calls of other programs are made through."""
        ...

    @property
    def book(self) -> Book | None:
        """Who is known, and how that is changed; None where nobody is written down."""
        ...

    @property
    def handed(self) -> Handed:
        """What lease calls were given."""
        ...

    @property
    def holding(self) -> Holding:
        """What callers hold at a time."""
        ...

    @property
    def quotas(self) -> Quotas:
        """What callers may have."""
        ...

    def face(self, name: FaceName) -> Face:
        """One of the APIs."""
        ...

    async def metrics(self, principal: Principal) -> bytes:
        """What it has counted."""
        ...

    async def begin_act(self, ask: Ask, act: Act, detail: str = "") -> Begun | None:
        """Note that something is about to be done that goes on after its request was answered; None
        where nothing is noted. Have it done by `carry_out`.

        Raises:
            MillraceError: it could not be noted, and must not be done.
        """
        ...

    def denied(self, principal: Principal, name: str, target: str) -> None:
        """Note that an act was denied."""
        ...

    async def act(self, ask: Ask, act: Act, work: Callable[[], Awaitable[T]]) -> T:
        """Have something done that the route does not tell of, and written down."""
        ...

    def note(self, ask: Ask, response: Response, began: float) -> Response:
        """Count an answer that goes out now."""
        ...

    def left(self, ask: Ask) -> None:
        """Count a request that is not answered, for nobody is there any more."""
        ...

    def answer_error(self, ask: Ask, error: MillraceError) -> Response:
        """What is answered to an error."""
        ...

    def again(self, ask: Ask) -> Awaitable[Response]:
        """Handle the request from the beginning, by a task."""
        ...

    def rest(self, ask: Ask, work: Awaitable[Response], began: float) -> Awaitable[Response]:
        """Do by a task what is left to do, with errors as answers."""
        ...
