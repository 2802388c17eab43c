"""A leased message, and the work that is done on it."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from millrace.core.commands import Leased, Outcome
from millrace.core.model import Headers, History, LeaseId, Row, Seq
from millrace.core.receipt import Receipt

if TYPE_CHECKING:
    from millrace.client.queue import Queue


class Grant:
    """What the messages of one lease call have in common."""

    __slots__ = ("counts", "deadline_ms", "history", "lease", "lease_ms", "open", "queue")

    def __init__(self, queue: Queue, leased: Leased, history: History, lease_ms: int) -> None:
        self.queue = queue
        self.lease = leased.lease
        self.history = history
        self.deadline_ms = leased.deadline_ms
        self.lease_ms = lease_ms
        self.counts = leased.counts
        self.open = leased.seqs
        """Messages that this process has neither settled nor released."""


class Lease:
    """A message handed to this worker until a deadline; proved by its receipt.

    It stays valid past the deadline until someone else leases the message. As a context manager it
    settles on success, and releases the message as failed when the body raises.
    """

    __slots__ = ("_grant", "_row")

    def __init__(self, grant: Grant, row: Row) -> None:
        self._grant = grant
        self._row = row

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self._row.body or b""

    @property
    def key(self) -> bytes | None:
        """The message's key."""
        return self._row.key

    @property
    def headers(self) -> Headers:
        """Names and values, in the order in which they were given."""
        return self._row.headers

    @property
    def seq(self) -> int:
        """The message's number within its queue."""
        return self._row.seq

    @property
    def time_ms(self) -> int:
        """When it was published, in milliseconds since 1970."""
        return self._row.time_ms

    @property
    def deliveries(self) -> int:
        """How often the message was handed out, this time included."""
        return self._grant.counts.get(self._row.seq, (1, 0))[0]

    @property
    def failures(self) -> int:
        """How often a worker rejected it or let its lease run out."""
        return self._grant.counts.get(self._row.seq, (1, 0))[1]

    @property
    def version(self) -> int:
        """The number of the lease call: it only rises, and fences a worker's own writes."""
        return self._grant.lease

    @property
    def deadline_ms(self) -> int:
        """Until when the message is this worker's alone."""
        return self._grant.deadline_ms

    @property
    def receipt(self) -> str:
        """Text that proves the lease, in this or another process."""
        grant = self._grant
        return grant.queue.engine.seal(
            Receipt(grant.queue.shard, grant.history, Seq(self._row.seq), grant.lease)
        )

    async def settle(self) -> None:
        """The work is done: when this returns, the message is never handed out again.

        Settling twice is answered as the first time, as long as the lease is remembered.

        Raises:
            Superseded: a newer revision of the key has replaced the message.
            Stale: someone else has leased it meanwhile.
            Gone: the lease is no longer remembered; an earlier settle may have counted.
        """
        await self._grant.queue.settle_one(self)

    async def release(self, *, failed: bool = False) -> None:
        """Give the message back at once; `failed` counts it as a failure."""
        await self._grant.queue.release_one(self, failed=failed)

    async def extend(self, seconds: float) -> None:
        """Hold the message for so many seconds from now."""
        await self._grant.queue.extend_one(self, seconds)

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.settle()
        else:
            await self.release(failed=isinstance(error, Exception))

    def __repr__(self) -> str:
        return f"<Lease of message {self.seq} by call {self.version}>"

    @property
    def grant(self) -> Grant:
        """The lease call that it came with."""
        return self._grant


def by_call(queue: Queue, leases: Iterable[Lease | str]) -> dict[tuple[LeaseId, bytes], BitMap64]:
    """The seqs of leases and receipts, by lease call."""
    found: dict[tuple[LeaseId, bytes], list[int]] = {}
    for lease in leases:
        if isinstance(lease, Lease):
            at = (lease.grant.lease, bytes(lease.grant.history))
            seq = lease.seq
        else:
            receipt = queue.receipt(lease)
            at, seq = (receipt.lease, bytes(receipt.history)), receipt.seq
        found.setdefault(at, []).append(seq)
    return {at: BitMap64(seqs) for at, seqs in found.items()}


def raise_refused(outcome: Outcome) -> None:
    """Raise what the only message of a command was answered with."""
    for seq in sorted(outcome.refused):
        raise outcome.refused[seq]
