"""Liveness of remote sessions: a session without heartbeats is closed after a timeout.

A session ends with the connection of its consumer, if there is one. Over HTTP no connection lasts;
there the consumer sends heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from millrace import limits
from millrace.core.model import ShardId
from millrace.core.session_commands import Claim, CloseSession
from millrace.errors import Full, MillraceError

Tell = Callable[[ShardId, CloseSession], None]

_Key = tuple[ShardId, int]


class SessionLiveness:
    """Closes sessions whose heartbeats stop."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._timers: dict[_Key, SilenceTimer] = {}
        self.seconds: float | None = None
        """Timeout in seconds; None: `SESSION_SILENCE_SECONDS`."""

    def hear(self, shard: ShardId, claim: Claim) -> None:
        """Record a heartbeat and restart the session's timer.

        The claim must be the session's current one: there is one timer per session, and heartbeats
        of a previous owner must not keep it alive.

        Raises:
            Full: too many sessions need heartbeats.
        """
        key = (shard, claim.session)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.stop()
        elif len(self._timers) >= limits.WIRE_SPEAKERS_MAX:
            limit = limits.WIRE_SPEAKERS_MAX
            raise Full(f"{limit} sessions are spoken for; close one", field="session", limit=limit)
        seconds = limits.SESSION_SILENCE_SECONDS if self.seconds is None else self.seconds
        self._wait(seconds, key, claim)

    def _wait(self, seconds: float, key: _Key, claim: Claim) -> None:
        self._timers[key] = SilenceTimer(seconds, partial(self._miss, key, claim))

    def _miss(self, key: _Key, claim: Claim) -> None:
        del self._timers[key]
        try:
            self._tell(key[0], CloseSession(claim, 0, failed=True))
        except Full as error:
            self._wait(error.after_ms / 1000, key, claim)
        except MillraceError:
            # The queue or the engine has ended; the next engine suspects the session.
            return

    def close(self) -> None:
        """Stop all timers."""
        for timer in self._timers.values():
            timer.stop()
        self._timers.clear()


class SilenceTimer:
    """Calls `then` unless it is stopped within a number of seconds, tolerating stalls of the event
    loop.

    Rule 1: a stall of this process does not count. Messages that arrived during it have not been
    read yet: the timer starts again, up to a bound for consecutive stalls.
    Rule 2: some event loops run timers before they read. So the last part of the time is a second
    timer; before that fires, earlier messages have been read.
    """

    def __init__(self, seconds: float, then: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._then = then
        self._forgiven = 0.0
        self._wait(is_last=False)

    def stop(self) -> None:
        """Stop the timer: a message arrived, or none is expected any more."""
        self._timer.cancel()

    def _wait(self, *, is_last: bool) -> None:
        share = limits.SESSION_LAST_SHARE
        seconds = self._seconds * (share if is_last else 1 - share)
        due = self._loop.time() + seconds
        self._timer = self._loop.call_at(due, self._look, due, is_last)

    def _look(self, due: float, is_last: bool) -> None:  # noqa: FBT001
        late = self._loop.time() - due
        if late > limits.HTTP_STALL_SECONDS and self._forgiven < limits.HTTP_FORGIVEN_SECONDS_MAX:
            self._forgiven += late
            self._wait(is_last=False)
        elif is_last:
            self._then()
        else:
            self._wait(is_last=True)
