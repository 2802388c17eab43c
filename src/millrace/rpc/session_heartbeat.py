"""Heartbeats for sessions over HTTP, where no connection lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from millrace import limits
from millrace.core.model import ShardId
from millrace.core.session_commands import Claim, CloseSession, SessionRef, SuspectSession
from millrace.errors import MillraceError
from millrace.rpc.calls import (
    Call,
    Heartbeat,
    Notify,
    Submit,
)
from millrace.rpc.transport import ConnectionLost

Send = Callable[[list[Heartbeat]], Awaitable[None]]


class SessionHeartbeat:
    """Sends heartbeats for all sessions that this client has opened."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._claims: dict[tuple[ShardId, int], Claim] = {}
        self._task: asyncio.Task[None] | None = None

    def note(self, call: Call, answer: object) -> None:
        """Record the answer of a call: heartbeats start when a session is opened, and end when it
        is closed."""
        if not isinstance(call, Submit):
            return
        if isinstance(answer, SessionRef):
            self._claims[call.shard, answer.claim.session] = answer.claim
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._speak())
        elif isinstance(call.command, CloseSession) and not call.command.keep:
            self._claims.pop((call.shard, call.command.claim.session), None)

    def noted(self, call: Call) -> None:
        """Record a call without answer that ends a session."""
        if isinstance(call, Notify) and isinstance(call.command, CloseSession | SuspectSession):
            self._claims.pop((call.shard, call.command.claim.session), None)

    async def _speak(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            # A fixed rate, unless the last heartbeat took longer than the interval.
            due = max(due + limits.WIRE_SPEAK_SECONDS, loop.time())
            await asyncio.sleep(due - loop.time())
            calls = [Heartbeat(shard, claim) for (shard, _), claim in self._claims.items()]
            for at in range(0, len(calls), limits.WIRE_CALLS_MAX):
                # A session without heartbeats is suspected; then the client resumes it.
                with suppress(ConnectionLost, MillraceError, TimeoutError):
                    async with asyncio.timeout(limits.WIRE_SPOKEN_SECONDS_MAX):
                        await self._send(calls[at : at + limits.WIRE_CALLS_MAX])

    def close(self) -> None:
        """Stop the heartbeats."""
        if self._task is not None:
            self._task.cancel()
