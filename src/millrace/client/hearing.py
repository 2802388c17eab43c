"""Who speaks for the sessions of programs far away, as far as is heard.

A session ends with the connection of whoever speaks for it, where there is one. Over HTTP there is
none that lasts: whoever is not heard of for a while is gone, and the session ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millrace import limits
from millrace.client.silence import Silence
from millrace.core.model import ShardId
from millrace.core.session_commands import Claim, CloseSession
from millrace.errors import Full, MillraceError

Tell = Callable[[ShardId, CloseSession], None]

_Key = tuple[ShardId, int]


class Hearing:
    """Ends sessions that nobody speaks for."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._timers: dict[_Key, Silence] = {}
        self.seconds: float | None = None
        """How long nobody may be heard; None: as usual."""

    def hear(self, shard: ShardId, claim: Claim) -> None:
        """Somebody speaks for the session now, and must do so again in time.

        The claim is one that is heard: nobody speaks for a session under more names than one, and
        whoever was resumed elsewhere keeps nobody from being missed.

        Raises:
            Full: too many are spoken for.
        """
        key = (shard, claim.session)
        before = self._timers.pop(key, None)
        if before is not None:
            before.stop()
        elif len(self._timers) >= limits.WIRE_SPEAKERS_MAX:
            most = limits.WIRE_SPEAKERS_MAX
            raise Full(f"{most} sessions are spoken for; close one", field="session", limit=most)
        seconds = limits.SESSION_SILENCE_SECONDS if self.seconds is None else self.seconds
        self._wait(seconds, key, claim)

    def _wait(self, seconds: float, key: _Key, claim: Claim) -> None:
        self._timers[key] = Silence(seconds, partial(self._miss, key, claim))

    def _miss(self, key: _Key, claim: Claim) -> None:
        del self._timers[key]
        try:
            self._tell(key[0], CloseSession(claim, 0, failed=True))
        except Full as error:
            self._wait(error.after_ms / 1000, key, claim)
        except MillraceError:
            # The queue or the engine has ended; the next engine will suspect the session.
            return

    def close(self) -> None:
        """Miss nobody any more."""
        for timer in self._timers.values():
            timer.stop()
        self._timers.clear()
