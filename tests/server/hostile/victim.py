"""A tenant that publishes, leases and settles, and knows what it was promised."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException

import msgspec

QUEUE = "/v1/spaces/alice/queues/work"

RETRY_SECONDS = 0.05


class Victim:
    """Works at one queue until it is stopped, and measures how long each request takes.

    Each round publishes a message, leases one and settles it. A message counts as acknowledged when
    its publish was answered with 201, and as settled when its settle was answered with 200.
    """

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self._connection = HTTPConnection("127.0.0.1", port, timeout=120)
        self.acknowledged: set[str] = set()
        self.settled: set[str] = set()
        self.seconds: list[float] = []
        self.refused: list[str] = []

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def make_queue(self) -> None:
        """Make the queue, which need not exist before."""
        status, answer = self._ask("PUT", QUEUE, {})
        assert status in (200, 201), answer

    def work(self, is_over: Callable[[], bool]) -> None:
        """Work until `is_over`."""
        while not is_over():
            self.round()

    def work_for(self, seconds: float) -> None:
        """Work for so long."""
        end = time.monotonic() + seconds
        self.work(lambda: time.monotonic() > end)

    def round(self) -> None:
        """Publish, lease and settle one message."""
        body = f"{len(self.acknowledged)}-{time.monotonic_ns()}"
        began = time.perf_counter()
        status, answer = self._ask("POST", f"{QUEUE}/messages", {"body": body})
        if status == 201:
            self.acknowledged.add(body)
        else:
            self._note("publish", status, answer)
        status, answer = self._ask("POST", f"{QUEUE}/leases", {"count": 1, "seconds": 600})
        if status != 200:
            self._note("lease", status, answer)
        for message in msgspec.json.decode(answer).get("messages", []) if status == 200 else ():
            receipts = {"receipts": [message["receipt"]]}
            status, answer = self._ask("POST", f"{QUEUE}/settle", receipts)
            if status == 200:
                self.settled.add(message["body"])
            else:
                self._note("settle", status, answer)
        self.seconds.append(time.perf_counter() - began)

    def left(self) -> set[str]:
        """Return the bodies that are still in the queue, leased or not."""
        bodies: set[str] = set()
        after = 0
        while True:
            status, answer = self._ask("GET", f"{QUEUE}/messages?after={after}&count=1000")
            assert status == 200, answer
            rows = msgspec.json.decode(answer)["messages"]
            if not rows:
                return bodies
            bodies.update(row["body"] for row in rows)
            after = rows[-1]["seq"]

    def lost(self) -> set[str]:
        """Return the bodies that were acknowledged, and are neither settled nor in the queue."""
        return self.acknowledged - self.settled - self.left()

    def p99_seconds(self) -> float:
        """Return the 99th percentile of the rounds since the last call."""
        times = sorted(self.seconds)
        self.seconds.clear()
        return times[min(len(times) - 1, len(times) * 99 // 100)]

    def _note(self, act: str, status: int, answer: bytes) -> None:
        self.refused.append(f"{act}: {status} {answer[:200]!r}")
        threading.Event().wait(RETRY_SECONDS)

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        try:
            self._connection.request(method, path, data, self._headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException) as error:
            self._connection.close()
            return 0, repr(error).encode()
