"""What the clients of a server say, heard by the ledger as it is said."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType

from tests.crash.events import Duty, End, Ended, Took
from tests.crash.findings import Findings
from tests.crash.ledger import Ledger
from tests.crash.served.chores import Chores
from tests.crash.served.events import AnyChore, Rested, Said, said_in
from tests.crash.served.scene import QUEUES
from tests.support.timeouts import scaled

PACKET_BYTES_MAX = 1 << 20
"""More than anybody says at once."""


class Hearing:
    """Listens in a thread of its own, so that nobody has to wait for it."""

    def __init__(self) -> None:
        self._ledger = Ledger(QUEUES)
        self._chores = Chores(self._ledger.findings)
        self._lock = threading.Condition()
        self._rested: set[int] = set()
        self._error: BaseException | None = None
        self._taken: dict[str, int] = {}
        """Lease calls, and how many kills there had been when they were answered."""
        self._ends: dict[int, End] = {}
        self._kills = 0
        self._ear, mouth = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mouth.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES_MAX)
        self.mouth = mouth
        """Where clients say what they do, each event in one packet."""
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Hearing:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The clients are gone: when this is closed, everything was said.
        self.mouth.close()
        self._thread.join(scaled(60))
        self._ear.close()

    def _listen(self) -> None:
        while packet := self._ear.recv(PACKET_BYTES_MAX):
            with self._lock:
                try:
                    self._hear(said_in(packet))
                except BaseException as error:  # noqa: BLE001
                    # Told to whoever waits: the thread has nobody.
                    self._error = self._error or error
                self._lock.notify_all()

    def _hear(self, event: Said) -> None:
        if isinstance(event, Rested):
            self._rested.add(event.client)
        elif isinstance(event, AnyChore):
            self._chores.hear(event)
        else:
            self._ledger.hear(event)
            self._count(event)

    def _count(self, event: Said) -> None:
        """Count what was leased before a kill and settled after it."""
        if isinstance(event, Took):
            for seq, _, _ in event.rows:
                self._taken[f"{seq}/{event.version}"] = self._kills
        elif isinstance(event, End):
            self._ends[event.op] = event
        elif isinstance(event, Ended):
            end = self._ends.pop(event.op, None)
            for seq, version in end.calls if end is not None and end.is_settle else ():
                since = self._taken.pop(f"{seq}/{version}", self._kills)
                is_late = since < self._kills and seq not in event.refused
                self._ledger.counts["settled after a kill"] += is_late

    # --- For whoever kills ----------------------------------------------------------------------

    @property
    def findings(self) -> Findings:
        """What the ledger finds fault with."""
        return self._ledger.findings

    @property
    def counts(self) -> Counter[str]:
        """What was done."""
        return self._ledger.counts

    def killed(self) -> None:
        """Something is about to be killed."""
        with self._lock:
            self._kills += 1

    def end_life(self, seed: int) -> Duty:
        """All clients rest: what was not answered by now is UNKNOWN."""
        with self._lock:
            return self._ledger.end_life(seed=seed)

    def until_rested(self, clients: set[int], seconds: float, check: Callable[[], None]) -> None:
        """Wait until all of these have said that they rest.

        Raises:
            TimeoutError: they have not.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            while not clients <= self._rested:
                if self._error is not None:
                    raise self._error
                check()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{sorted(clients - self._rested)} do not come to rest")
                self._lock.wait(0.2)
            self._rested -= clients

    def summary(self) -> str:
        """The counts of the ledger, in one line."""
        counts = self.counts
        return (
            f"{counts['engines killed']} engines and {counts['front ends killed']} front ends "
            f"killed, {counts['attempted']:,} attempted, {counts['acknowledged']:,} acknowledged, "
            f"{counts['settled']:,} settled, {counts['settled after a kill']:,} of them leased "
            f"before a kill, {counts['transactions']:,} transactions, {counts['shown']:,} "
            f"followed, {self._chores.worked:,} chores ({self._chores.repeats} repeats), "
            f"{counts['unknown']:,} calls unknown, {counts['refused']:,} refused; "
            f"{self.findings.line()}"
        )
