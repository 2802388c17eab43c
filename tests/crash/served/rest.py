"""A client that speaks plain REST by the standard library, and repeats what it was not answered."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from millrace import Lease, Millrace, errors
from tests.crash.events import Duty, Send, Take, Took, body_of, tag_of
from tests.crash.player import Held, now_ms
from tests.crash.served.visitor import GaveUp, Visitor
from tests.support.timeouts import scaled

PATIENCE_SECONDS = scaled(60)
"""A server that answers nobody for so long is taken to hang."""

PAUSE_SECONDS = 0.05

THREADS = 16
"""Requests of one client at a time."""


class RestPlayer(Visitor):
    """Plays over REST alone."""

    def __init__(self, port: int, token: str, duty: Duty, out: int) -> None:
        super().__init__(cast("Millrace", None), duty, out)
        self._port = port
        self._headers = {
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
        }
        self._idle: list[http.client.HTTPConnection] = []
        self._threads = ThreadPoolExecutor(THREADS)

    async def ask(self, method: str, path: str, body: object, *, repeat: bool) -> Any:
        """The answer to a request, which is made again while nobody answers it.

        Raises:
            Unknown: it was sent and may not be repeated.
            Refused: by its code.
        """
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                status, answer = await loop.run_in_executor(
                    self._threads, self._ask, method, f"/v1/spaces/default{path}", body
                )
            except ConnectionRefusedError:
                pass
            except (OSError, http.client.HTTPException) as error:
                if not repeat:
                    raise errors.Unknown(str(error)) from error
            else:
                if status < 300:
                    return answer
                outcome = answer["outcome"]
                if outcome == "refused":
                    raise Refusal(answer["code"], answer["detail"])
                if outcome == "unknown" and not repeat:
                    raise errors.Unknown(answer["detail"])
                if answer["code"] == "full":
                    raise errors.Full(answer["detail"])
            await asyncio.sleep(PAUSE_SECONDS)
        raise GaveUp(f"{method} {path}")

    def _ask(self, method: str, path: str, body: object) -> tuple[int, Any]:
        connection = (
            self._idle.pop()
            if self._idle
            else http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_SECONDS)
        )
        try:
            connection.request(method, path, json.dumps(body), self._headers)
            answer = connection.getresponse()
            found = json.loads(answer.read())
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer.status, found

    async def room(self, queue: str, most: int) -> None:
        """The other clients see to it that there is room."""
        await asyncio.sleep(PAUSE_SECONDS)

    async def _publish(self, send: Send) -> Sequence[int]:
        messages = [{"body_base64": base64.b64encode(body_of(tag)).decode()} for tag in send.tags]
        body: dict[str, object] = dict(messages[0]) if len(messages) == 1 else {}
        if len(messages) > 1:
            body["messages"] = messages
        if send.producer:
            mode = "rising" if send.producer.startswith("rising") else "dense"
            body |= {"producer": send.producer, "number": send.number, "mode": mode}
        elif len(messages) == 1:
            # Whoever sends it again says so by its id.
            body["dedup"] = str(send.tags[0])
        repeat = bool(send.producer) or len(messages) == 1
        found = await self.ask("POST", f"/queues/{send.queue}/messages", body, repeat=repeat)
        seq = found.get("seq")
        return range(seq, seq + len(messages)) if seq else range(0)

    async def hold(
        self, name: str, count: int, seconds: float, *, wait: float
    ) -> list[tuple[Lease | str, int, int]]:
        """Lease messages by a call that may be repeated."""
        take = Take(self.op(), name, now_ms(), round(seconds * 1000))
        body = {"count": count, "seconds": seconds, "wait": wait, "attempt": secrets.token_hex(8)}
        call = self.ask("POST", f"/queues/{name}/leases", body, repeat=True)
        found = await self.attempt(take, call)
        if found is None:
            return []
        leases = found["messages"]
        version = leases[0]["version"] if leases else 0
        rows = [(one["seq"], tag_of(_body(one), ()), one["deliveries"]) for one in leases]
        self.say(Took(take.op, version, now_ms(), rows, [one["receipt"] for one in leases]))
        return [(one["receipt"], one["seq"], one["version"]) for one in leases]

    async def _end(self, name: str, held: Held, *, is_settle: bool) -> dict[int, str]:
        return await self._judged(name, "settle" if is_settle else "release", held, {})

    async def _extend(self, name: str, held: Held, seconds: float) -> dict[int, str]:
        return await self._judged(name, "extend", held, {"seconds": seconds})

    async def _judged(
        self, name: str, verb: str, held: Held, more: dict[str, object]
    ) -> dict[int, str]:
        body = {"receipts": [receipt for receipt, _, _ in held], **more}
        try:
            found = await self.ask("POST", f"/queues/{name}/{verb}", body, repeat=True)
        except Refusal as refusal:
            if len(held) > 1:
                raise
            return {held[0][1]: refusal.code}
        return {one["seq"]: one["problem"]["code"] for one in found["refused"]}


class Refusal(errors.Refused):
    """A refusal by its code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def _body(one: dict[str, str]) -> bytes:
    if "body_base64" in one:
        return base64.b64decode(one["body_base64"])
    return one["body"].encode()
