"""Speaking for the sessions of this program, over a line that is no connection that lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from millrace import limits
from millrace.client.line import Lost
from millrace.core.model import ShardId
from millrace.core.session_commands import Claim, CloseSession, SessionRef, SuspectSession
from millrace.errors import MillraceError
from millrace.rpc.calls import (
    Ask,
    Call,
    Speak,
    Tell,
)

Send = Callable[[list[Speak]], Awaitable[None]]


class Speaking:
    """Says from time to time that somebody speaks for the sessions that were opened."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._claims: dict[tuple[ShardId, int], Claim] = {}
        self._task: asyncio.Task[None] | None = None

    def note(self, call: Call, answer: object) -> None:
        """Take note of what a call was answered: a session is spoken for until it is closed."""
        if not isinstance(call, Ask):
            return
        if isinstance(answer, SessionRef):
            self._claims[call.shard, answer.claim.session] = answer.claim
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._speak())
        elif isinstance(call.command, CloseSession) and not call.command.keep:
            self._claims.pop((call.shard, call.command.claim.session), None)

    def noted(self, call: Call) -> None:
        """Take note of what is told."""
        if isinstance(call, Tell) and isinstance(call.command, CloseSession | SuspectSession):
            self._claims.pop((call.shard, call.command.claim.session), None)

    async def _speak(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # However long the last word took: the next one has its time.
            due = max(due + limits.WIRE_SPEAK_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())
            calls = [Speak(shard, claim) for (shard, _), claim in self._claims.items()]
            for at in range(0, len(calls), limits.WIRE_CALLS_MAX):
                # Whoever is not heard is suspected; then the session is resumed.
                with suppress(Lost, MillraceError, TimeoutError):
                    async with asyncio.timeout(limits.WIRE_SPOKEN_SECONDS_MAX):
                        await self._send(calls[at : at + limits.WIRE_CALLS_MAX])

    def close(self) -> None:
        """Speak no more."""
        if self._task is not None:
            self._task.cancel()
