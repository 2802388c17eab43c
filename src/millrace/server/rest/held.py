"""Sessions that are held for clients that come and go.

One that nobody asks about for a while has ended: its client is gone, and what it held has failed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from millrace import limits
from millrace.client.session import Session, leave, lose
from millrace.client.silence import Silence
from millrace.errors import NotFound
from millrace.server.access import Principal
from millrace.server.quota import Quotas
from millrace.server.rest.slots import Slots


class _Held:
    def __init__(self, session: Session, owner: tuple[str, str, str]) -> None:
        self.session = session
        self.owner = owner
        """Who opened it, and the queue."""
        self.suspect = 0.0
        self.uses = 0
        self.silence: Silence | None = None
        self.ends: list[Callable[[float], None]] = []
        """Called when it ends, or nobody speaks for it, with the seconds that it lasts then."""

    def hear(self) -> None:
        """Somebody asks about it."""
        if self.silence is not None:
            self.silence.stop()
            self.silence = None

    def end(self, seconds: float) -> None:
        self.hear()
        for end in self.ends:
            end(seconds)


class Sessions:
    """Sessions by their ids."""

    def __init__(self, quotas: Quotas | None = None) -> None:
        self._quotas = Quotas() if quotas is None else quotas
        self._held: dict[str, _Held] = {}
        self.silence_seconds = limits.SESSION_SILENCE_SECONDS
        """One that nobody asks about for so long ends."""
        self._slots = Slots("sessions", limits.HTTP_SESSIONS_MAX, "sessions held here")

    @contextmanager
    def place(self, principal: Principal) -> Iterator[None]:
        """A place for one more session, which is given back if it does not come to one that is
        held.

        Raises:
            Exhausted, Full: there is none; see `Slots.take`.
        """
        self._slots.take(principal.name, self._quotas.share(principal, "sessions"))
        try:
            yield
        except BaseException:
            self._slots.give_back(principal.name)
            raise

    def hold(self, session: Session, owner: tuple[str, str, str], suspect: float) -> str:
        """Hold on to an open session, which keeps its messages for `suspect` seconds when nobody
        speaks for it; returns its id. It has a place (`place`), until it is held no more."""
        before = self._held.pop(session.id, None)
        if before is not None:
            self._leave(before)
        held = self._held[session.id] = _Held(session, owner)
        held.suspect = suspect
        self._rest(session.id, held)
        return session.id

    @asynccontextmanager
    async def use(self, id: str, owner: tuple[str, str, str]) -> AsyncIterator[Session]:
        """The session, which stays as long as it is used.

        Raises:
            NotFound: it is not held here, or not for this one.
        """
        held = self._held.get(id)
        if held is None or held.owner != owner:
            raise NotFound(
                "this session is not held here, or not any more; with several front ends, ask on "
                "the connection on which it was opened; resume it, or open another",
                field="session",
            )
        held.uses += 1
        held.hear()
        try:
            yield held.session
        finally:
            held.uses -= 1
            if not held.uses and self._held.get(id) is held:
                self._rest(id, held)

    def note_end(self, id: str, end: Callable[[float], None]) -> None:
        """Have something done when it ends, with the seconds for which it keeps its messages."""
        held = self._held.get(id)
        if held is not None:
            held.ends.append(end)
        else:
            end(0)

    def forget(self, id: str) -> None:
        """It was closed."""
        held = self._held.pop(id, None)
        if held is not None:
            self._slots.give_back(held.owner[0])
            held.end(0)

    def _rest(self, id: str, held: _Held) -> None:
        held.silence = Silence(self.silence_seconds, partial(self._miss, id))

    def _miss(self, id: str) -> None:
        held = self._held.pop(id, None)
        if held is not None:
            self._slots.give_back(held.owner[0])
            held.end(0)
            lose(held.session)

    def _leave(self, held: _Held) -> None:
        self._slots.give_back(held.owner[0])
        held.end(held.suspect)
        leave(held.session)

    def stop(self) -> None:
        """Leave none of them any more: when the engine is closed, they give back what they hold."""
        for held in self._held.values():
            held.hear()
