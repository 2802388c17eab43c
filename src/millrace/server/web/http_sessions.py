"""Sessions over HTTP, which outlive the connections of their clients.

A session without requests for `silence_seconds` is ended: its client is considered lost, and the
deliveries that it held count as failures.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from millrace import limits
from millrace.client.session import Session, leave, lose
from millrace.errors import NotFound
from millrace.rpc.session_liveness import SilenceTimer
from millrace.server.auth.access import Principal
from millrace.server.quota.quotas import Quotas
from millrace.server.web.slots import Slots


class _Held:
    def __init__(self, session: Session, owner: tuple[str, str, str]) -> None:
        self.session = session
        self.owner = owner
        """The user who opened it, with space and name of the queue."""
        self.suspect = 0.0
        self.uses = 0
        self.silence: SilenceTimer | None = None
        self.ends: list[Callable[[float], None]] = []
        """Callbacks at its end or when it is left, with the seconds for which it keeps its
        messages.
        """

    def hear(self) -> None:
        """Stop the idle timer: a request of the client has arrived."""
        if self.silence is not None:
            self.silence.stop()
            self.silence = None

    def end(self, seconds: float) -> None:
        self.hear()
        for end in self.ends:
            end(seconds)


class HttpSessions:
    """The sessions of this process by id."""

    def __init__(self, quotas: Quotas | None = None) -> None:
        self._quotas = Quotas() if quotas is None else quotas
        self._held: dict[str, _Held] = {}
        self.silence_seconds = limits.SESSION_SILENCE_SECONDS
        """The idle timeout of a session, in seconds."""
        self._slots = Slots("sessions", limits.HTTP_SESSIONS_MAX, "sessions held here")

    @contextmanager
    def place(self, principal: Principal) -> Iterator[None]:
        """Reserve a slot for a session; it is returned if the block raises.

        Raises:
            Exhausted, Full: no slot is available; see `Slots.take`.
        """
        self._slots.take(principal.name, self._quotas.share(principal, "sessions"))
        try:
            yield
        except BaseException:
            self._slots.give_back(principal.name)
            raise

    def hold(self, session: Session, owner: tuple[str, str, str], suspect: float) -> str:
        """Keep an open session, and return its id.

        When it is left, it keeps its messages for `suspect` seconds. It occupies the slot that
        `place` has reserved, until it ends here.
        """
        before = self._held.pop(session.id, None)
        if before is not None:
            self._leave(before)
        held = self._held[session.id] = _Held(session, owner)
        held.suspect = suspect
        self._rest(session.id, held)
        return session.id

    @asynccontextmanager
    async def use(self, id: str, owner: tuple[str, str, str]) -> AsyncIterator[Session]:
        """Yield the session; its idle timer is stopped until the block ends.

        Raises:
            NotFound: it is not held here, or has another owner.
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
        """Register a callback for its end, which gets the seconds for which it keeps its
        messages.
        """
        held = self._held.get(id)
        if held is not None:
            held.ends.append(end)
        else:
            end(0)

    def forget(self, id: str) -> None:
        """Remove a session that was closed."""
        held = self._held.pop(id, None)
        if held is not None:
            self._slots.give_back(held.owner[0])
            held.end(0)

    def _rest(self, id: str, held: _Held) -> None:
        held.silence = SilenceTimer(self.silence_seconds, partial(self._miss, id))

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
        """Stop all idle timers: when the engine is closed, the sessions release their messages."""
        for held in self._held.values():
            held.hear()
