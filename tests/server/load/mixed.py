"""Everything that clients do to a server, again and again, for as long as a soak lasts."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import millrace
from tests.server.load.talk import Talk

SPACE = "/v1/spaces/default"
WORK, LOG, SIDE = f"{SPACE}/queues/work", f"{SPACE}/queues/log", f"{SPACE}/queues/side"


class Mixed:
    """Clients of every kind; what they did is counted."""

    def __init__(self, port: int, token: str, seed: int) -> None:
        self._port = port
        self._token = token
        self._seed = seed
        self.done: Counter[str] = Counter()
        self.is_over = False

    def _talk(self) -> Talk:
        return Talk(self._port, self._token)

    async def run(self, seconds: float) -> None:
        """Do all of it for so long."""
        talk = self._talk()
        await talk.get("PUT", WORK, {})
        await talk.get("PUT", SIDE, {})
        await talk.get("PUT", LOG, {"retention": "log", "keep_messages": 2_000})
        talk.cut()
        acts: list[Callable[[Talk, random.Random], Awaitable[None]]] = [
            self._publish,
            self._bulk,
            self._work,
            self._work,
            self._poll,
            self._leave,
            self._follow,
            self._snapshot,
            self._cursor,
            self._session,
            self._transact,
            self._connect,
            self._disturb,
            self._make,
            self._watch,
        ]
        async with asyncio.TaskGroup() as tasks:
            for number, act in enumerate(acts):
                tasks.create_task(self._repeat(act, random.Random(f"{self._seed}/{number}")))
            await asyncio.sleep(seconds)
            self.is_over = True

    async def _repeat(
        self, act: Callable[[Talk, random.Random], Awaitable[None]], chance: random.Random
    ) -> None:
        talk = self._talk()
        while not self.is_over:
            await act(talk, chance)
            self.done[act.__name__.strip("_")] += 1
            if chance.random() < 0.05:
                talk.cut()
            await asyncio.sleep(chance.random() * 0.05)
        talk.cut()

    async def _publish(self, talk: Talk, chance: random.Random) -> None:
        for queue in (WORK, LOG):
            body = "x" * chance.randint(1, 2_000)
            await talk.get("POST", f"{queue}/messages", {"body": body, "headers": {"a": "b"}})

    async def _bulk(self, talk: Talk, chance: random.Random) -> None:
        lines = "\n".join(json.dumps({"body": "y" * 500}) for _ in range(chance.randint(1, 50)))
        await talk.ask("POST", f"{WORK}/messages", lines.encode(), "application/x-ndjson")

    async def _work(self, talk: Talk, chance: random.Random) -> None:
        leased = await talk.get("POST", f"{WORK}/leases", {"count": 100, "wait": 0.2})
        receipts = [one["receipt"] for one in leased["messages"]]
        if receipts:
            verb = "release" if chance.random() < 0.05 else "settle"
            await talk.get("POST", f"{WORK}/{verb}", {"receipts": receipts})

    async def _poll(self, talk: Talk, chance: random.Random) -> None:
        await talk.get("POST", f"{SIDE}/leases", {"wait": chance.random() * 2})

    async def _leave(self, talk: Talk, chance: random.Random) -> None:
        """Ask for something that takes long, and go."""
        await talk.begin("POST", f"{SIDE}/leases", b'{"wait":30}', "application/json")
        await asyncio.sleep(chance.random() * 0.2)
        talk.cut()

    async def _follow(self, talk: Talk, chance: random.Random) -> None:
        path = chance.choice([f"{LOG}/events", f"{WORK}/stats/events", f"{SPACE}/stats/events"])
        reader, _ = await talk.begin("GET", path, b"", "application/json")
        with suppress(TimeoutError):
            async with asyncio.timeout(chance.random() * 2):
                while await reader.read(65_536):
                    pass
        talk.cut()

    async def _snapshot(self, talk: Talk, chance: random.Random) -> None:
        made = await talk.get("POST", f"{LOG}/snapshots", {"seconds": 5})
        path = f"{LOG}/snapshots/{made['snapshot']}"
        await talk.ask("GET", path)
        if chance.random() < 0.7:
            await talk.get("DELETE", path)

    async def _cursor(self, talk: Talk, chance: random.Random) -> None:
        path = f"{LOG}/cursors/report"
        await talk.get("PUT", path, {})
        status, answer = await talk.ask("POST", f"{path}/next", {"wait": 0.1})
        if status == 410:
            await talk.get("POST", f"{path}/reset", {"start": "end"})
            return
        found = json.loads(answer)
        if found.get("snapshot"):
            await talk.get("POST", f"{path}/commit", {"snapshot": found["snapshot"]["snapshot"]})

    async def _session(self, talk: Talk, chance: random.Random) -> None:
        made = await talk.get("POST", f"{WORK}/sessions", {"credit": 20, "suspect": 5})
        path = f"{WORK}/sessions/{made['session']}"
        status, answer = await talk.ask("POST", f"{path}/receive", {"wait": 0.1})
        if status == 200:
            numbers = [one["number"] for one in json.loads(answer)["messages"]]
            if numbers:
                await talk.get("POST", f"{path}/settle", {"numbers": numbers})
        if chance.random() < 0.8:
            await talk.ask("DELETE", path)
        await asyncio.sleep(0.2)

    async def _transact(self, talk: Talk, chance: random.Random) -> None:
        leased = await talk.get("POST", f"{WORK}/leases", {"count": 5})
        parts: list[dict[str, object]] = [{"do": "publish", "queue": "log", "body": "done"}]
        receipts = [one["receipt"] for one in leased["messages"]]
        if receipts:
            parts.append({"do": "settle", "queue": "work", "receipts": receipts})
        await talk.get("POST", f"{SPACE}/transactions", {"parts": parts})

    async def _connect(self, talk: Talk, chance: random.Random) -> None:
        async with millrace.connect(f"http://127.0.0.1:{self._port}", token=self._token) as m:
            queue = await m.find("work")
            await queue.publish_many([b"z" * 100] * 10)
            await queue.settle(await queue.lease(10))
            async with (await m.find("log")).snapshot() as snapshot:
                async for _ in snapshot.rows():
                    break
        await asyncio.sleep(0.3)

    async def _disturb(self, talk: Talk, chance: random.Random) -> None:
        """What nobody should send."""
        how = chance.randrange(5)
        if how == 0:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(chance.randbytes(200) + b"\r\n\r\n")
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(2):
                    await reader.read(1_000)
            writer.transport.abort()
        elif how == 1:
            stranger = Talk(self._port, "mr_nobody")
            await stranger.ask("GET", "/v1/whoami")
            stranger.cut()
        elif how == 2:
            await talk.ask("POST", f"{WORK}/messages", b'{"body":', "application/json")
        elif how == 3:
            await talk.ask("GET", f"{SPACE}/queues/{chance.random()}")
        else:
            _, writer = await talk.begin("POST", f"{WORK}/messages", b"", "application/json")
            writer.write(b"POST /v1 HTTP/1.1\r\ncontent-length: 100\r\n\r\nhalf")
            await asyncio.sleep(0.05)
            talk.cut()

    async def _make(self, talk: Talk, chance: random.Random) -> None:
        path = f"{SPACE}/queues/other-{chance.randrange(20)}"
        await talk.ask("PUT", path, {})
        await talk.ask("POST", f"{path}/messages", {"body": "x"})
        await talk.ask("DELETE", path)
        await asyncio.sleep(0.5)

    async def _watch(self, talk: Talk, chance: random.Random) -> None:
        status, _ = await talk.ask("GET", chance.choice(["/metrics", "/readyz", "/healthz"]))
        assert status == 200, status
        await asyncio.sleep(0.5)
