"""`Lease`: a message in flight, and how it is settled, released, extended or replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Protocol
from weakref import ReferenceType, ref

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.lease_group import Keepalive, LeaseGroup
from millrace.client.message import Body
from millrace.client.reserved import successor_headers
from millrace.client.shards import Shards
from millrace.core import validate
from millrace.core.answers import Leased, Outcome
from millrace.core.commands import Discard, Extend, Release, Replace, Settle
from millrace.core.format.message_id import id_of
from millrace.core.format.receipt import Receipt
from millrace.core.model import (
    Headers,
    LeaseId,
    NewMessage,
    Row,
    Seq,
    ShardId,
)
from millrace.errors import Forged, Invalid, MillraceError, Refused


class Lease:
    """A message leased to this worker until a deadline, which its receipt proves.

    It stays valid past the deadline until another worker leases the message. As a context manager
    it is extended automatically while the body runs; afterwards the message is settled, or released
    as failed if the body raised an error. If the body replaced the message, this applies to its
    successor.
    """

    __slots__ = ("__weakref__", "_grant", "_number", "_row", "_succession")

    def __init__(self, grant: LeaseGroup, row: Row, number: int | None = None) -> None:
        self._grant = grant
        self._row = row
        self._number = number
        # Weak in the newest lease, which the succession refers to: no reference cycle.
        self._succession: Succession | ReferenceType[Succession] | None = None

    @property
    def body(self) -> bytes:
        """Body of the message."""
        return self._row.body or b""

    @property
    def key(self) -> bytes | None:
        """Key of the message, or None; text was encoded as UTF-8."""
        return self._row.key

    @property
    def headers(self) -> Headers:
        """Names and values of the headers, in the order of publishing."""
        return self._row.headers

    @property
    def group(self) -> bytes:
        """Message group: as published, else the key; messages of a group wait for each other."""
        return self._row.group

    @property
    def seq(self) -> int:
        """Seq of the message within its queue; with several shards its `Place`."""
        return self._grant.shards.place(self._grant.shard, self._row.seq)

    @property
    def id(self) -> int | None:
        """Id of the message if the queue's delivery is "partitions", else None."""
        key = self._grant.shards.key
        return id_of(key, self._row.seq) if key else None

    @property
    def number(self) -> int | None:
        """Delivery number within the session; None if no session delivered it."""
        return self._number

    @property
    def time_ms(self) -> int:
        """Time of publishing, in milliseconds since 1970."""
        return self._row.time_ms

    @property
    def deliveries(self) -> int:
        """Number of deliveries of the message, including this one."""
        return self._grant.counts.get(self._row.seq, (1, 0))[0]

    @property
    def failures(self) -> int:
        """Number of times that a worker failed it or let its lease expire."""
        return self._grant.counts.get(self._row.seq, (1, 0))[1]

    @property
    def version(self) -> int:
        """Number of the lease call; it only increases, so that it is a fencing token."""
        return int(self._grant.lease)

    @property
    def deadline_ms(self) -> int:
        """End of the lease, in milliseconds since 1970."""
        return self._grant.deadline_of(self._row.seq)

    @property
    def lost(self) -> Refused | None:
        """Error that says why the lease was lost, once an extension was refused; else None.

        `Superseded`: a newer revision of its key replaced it; `Stale`: another worker has it.
        Long-running work should check it now and then, and stop. If this worker replaced the
        message, it refers to the successor.
        """
        lease = newest_of(self)
        return lease._grant.lost.get(lease._row.seq)

    @property
    def receipt(self) -> str:
        """Text that proves the lease, in this process or another one."""
        group = self._grant
        return group.engine.seal(
            Receipt(group.shard, group.history, Seq(self._row.seq), group.lease)
        )

    async def settle(self) -> None:
        """Settle (acknowledge) the message: once this returns, it is never delivered again.

        Settling twice returns the first result, as long as the lease is remembered.

        Raises:
            Superseded: a newer revision of the key has replaced the message.
            Stale: another worker leased it since, or it was released.
            Gone: the lease is no longer remembered; an earlier settle may have succeeded.
        """
        group = self._grant
        await self._end(Settle(group.lease, BitMap64([self._row.seq]), group.history))

    async def release(self, *, failed: bool = False, delay: float = 0) -> None:
        """Release the message (nack), to be delivered again after `delay` seconds.

        With `failed` it counts as a failure; then the queue may back off for longer (`retry_min`),
        or make it a dead letter (`max_failures`).

        Raises:
            Superseded, Stale, Gone: as for `settle`.
        """
        group = self._grant
        failed = validate.flag(failed, "failed")
        delay_ms = validate.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
        seqs = BitMap64([self._row.seq])
        await self._end(Release(group.lease, seqs, group.history, failed, delay_ms))

    async def discard(self) -> None:
        """Reject the message for good: it becomes a dead letter.

        It moves to the queue's `dead_letter` atomically; without such a queue it is dropped.

        Raises:
            Superseded, Stale, Gone: as for `settle`.
        """
        group = self._grant
        await self._end(Discard(group.lease, BitMap64([self._row.seq]), group.history))

    async def _end(self, command: Settle | Release | Discard) -> None:
        telemetry = self._grant.engine.telemetry
        if telemetry is None:
            return await self._ask(command)
        operation, label = type(command).__name__.lower(), self._grant.shards.label
        with telemetry.settling(operation, label, None) as step:
            step.set("messaging.message.id", str(self.seq))
            await self._ask(command)

    async def _ask(self, command: Settle | Release | Discard) -> None:
        group = self._grant
        raise_refused(await group.engine.ask(group.shard, command, Outcome))
        group.ended(command.seqs)

    async def extend(self, seconds: float) -> None:
        """Extend the lease to `seconds` from now.

        Raises:
            Superseded, Stale, Gone: as for `settle`.
        """
        group = self._grant
        lease_ms = validate.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        command = Extend(group.lease, BitMap64([self._row.seq]), group.history, lease_ms)
        outcome = await group.engine.ask(group.shard, command, Outcome)
        group.extended(outcome)
        raise_refused(outcome)

    async def replace(
        self,
        body: Body,
        *,
        key: bytes | str | None = None,
        headers: validate.HeadersLike | None = None,
        seconds: float | None = None,
    ) -> Lease:
        """Replace the message with another one atomically, and return the lease of the successor.

        This message is settled and the successor published, with the same key and headers unless
        others are given (headers of SQS and SNS, `aws.`, are dropped, since they describe the body
        that was sent), and with the counts of deliveries and failures. The successor is leased for
        `seconds`, by default for as long as this one, under its own receipt. A worker that stores
        its progress in the body resumes from there after a crash.

        What extends or settles this message automatically (`async with`, `Queue.work`, a `Worker`)
        continues with the successor.

        Raises:
            Superseded, Stale, Gone: as for `settle`; nothing was changed.
            Invalid: the queue's retention is "log", or a session holds the message.
        """
        group = self._grant
        row = self._row
        name = row.key if key is None else key
        new_headers = successor_headers(row.headers) if headers is None else headers
        message = validate.message(body, name, new_headers)
        # A session's leases exceed the limit of a lease time; the engine refuses the replacement.
        lease_ms = min(group.lease_ms, limits.LEASE_MS_MAX)
        if seconds is not None:
            lease_ms = validate.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        call = LeaseCall(group.shard, group.lease, group.history, BitMap64([row.seq]), group)
        group.replacing.add(row.seq)
        try:
            successor = await replace_message(
                group.engine, group.keepalive, group.shards, call, message, lease_ms
            )
        finally:
            group.replacing.discard(row.seq)
        succession_of(self).replace(self, successor)
        group.keepalive.hand_over(group, row.seq, successor._grant, successor._row.seq, successor)
        return successor

    async def __aenter__(self) -> Lease:
        newest = newest_of(self)
        follow(newest)
        newest._grant.keepalive.keep(newest._grant, newest._row.seq, newest)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        newest = newest_of(self)
        group = newest._grant
        group.keepalive.drop(group, newest._row.seq)
        if error is None and newest.lost is not None:
            raise newest.lost
        if newest._row.seq not in group.open:
            # The body has settled or released the message itself.
            return
        if error is None:
            await newest.settle()
        else:
            # The error of the body is raised, not one of the release: that lease just expires.
            with suppress(MillraceError):
                await newest.release(failed=isinstance(error, Exception))

    def __repr__(self) -> str:
        return f"<Lease of message {self.seq} by call {self.version}>"


class Succession:
    """A leased message and its successors; a worker holds the newest.

    Leases that were replaced refer to it, and so do objects that follow the message. The newest
    lease does not, so that it is freed as soon as the program drops it.
    """

    __slots__ = ("__weakref__", "newest", "on_replaced")

    def __init__(self, lease: Lease) -> None:
        self.newest = lease
        self.on_replaced: Callable[[Lease], None] | None = None
        """Callback for each successor."""

    def replace(self, old: Lease, new: Lease) -> None:
        """Continue with the successor of a message."""
        old._succession = self
        new._succession = ref(self)
        self.newest = new
        if _place(old) in old._grant.keepalive.followed:
            follow(new)
        if self.on_replaced is not None:
            self.on_replaced(new)


def succession_of(lease: Lease) -> Succession:
    """Return the succession of a lease; the caller must keep a reference to it."""
    reference = lease._succession
    succession = reference() if isinstance(reference, ReferenceType) else reference
    if succession is None:
        succession = Succession(lease)
        lease._succession = ref(succession)
    return succession


def newest_of(lease: Lease) -> Lease:
    """Return the newest successor of a lease, or the lease itself if it was not replaced."""
    reference = lease._succession
    succession = reference() if isinstance(reference, ReferenceType) else reference
    return lease if succession is None else succession.newest


def _place(lease: Lease) -> tuple[ShardId, LeaseId, bytes, int]:
    group = lease._grant
    return group.shard, group.lease, group.history, lease._row.seq


def follow(lease: Lease) -> None:
    """Register a lease, so that `Queue.replace` finds it by its receipt while the program holds it.

    Automatic extension and settling then continue with the successor.
    """
    lease._grant.keepalive.followed[_place(lease)] = lease


def find_followed(keepalive: Keepalive, call: LeaseCall) -> Lease | None:
    """Return the lease registered by `follow` that a receipt names, or None."""
    lease = keepalive.followed.get((call.shard, call.lease, call.history, call.seqs.min()))
    return lease if isinstance(lease, Lease) else None


Leases = Lease | str | Iterable[Lease | str]
"""A lease or a receipt, or several of them."""


class LeaseCall(NamedTuple):
    """Messages of one lease call that are settled, released or extended together."""

    shard: ShardId
    lease: LeaseId
    history: bytes
    seqs: BitMap64
    grant: LeaseGroup | None
    """None if receipts were given."""

    def ended(self, done: BitMap64) -> None:
        """Record that these messages were settled or released."""
        if self.grant is not None:
            self.grant.ended(done)

    def extended(self, outcome: Outcome) -> None:
        """Record the outcome of an extension."""
        if self.grant is not None:
            self.grant.extended(outcome)

    def note(self, command: Settle | Release | Extend | Discard, outcome: Outcome) -> None:
        """Record the outcome of a command."""
        if isinstance(command, Extend):
            self.extended(outcome)
        else:
            self.ended(outcome.done)


async def replace_message(
    engine: Engine,
    keepalive: Keepalive,
    shards: Shards,
    call: LeaseCall,
    message: NewMessage,
    lease_ms: int,
) -> Lease:
    """Replace a leased message; return the lease of its successor."""
    shards.check_stays(call.shard, message)
    command = Replace(call.lease, call.seqs, call.history, message, lease_ms)
    answer = await engine.ask(call.shard, command, Leased)
    call.ended(call.seqs)
    seq, time_ms = answer.seqs.min(), answer.deadline_ms - lease_ms
    row = Row(seq, time_ms, message.body, message.key, message.headers)
    return Lease(LeaseGroup(engine, keepalive, shards, call.shard, answer, lease_ms), row)


def grant_of(lease: Lease) -> LeaseGroup:
    """Return the group of the lease call that a lease came with."""
    return lease._grant


def seq_of(lease: Lease) -> int:
    """Return the seq of the message within its shard."""
    return lease._row.seq


class ReceiptReader(Protocol):
    """Verifies and parses receipts."""

    def unseal(self, text: str) -> Receipt:
        """Return the receipt that a text stands for; see `Engine.unseal`."""
        ...


def lease_calls_of(engine: ReceiptReader, leases: Leases) -> list[LeaseCall]:
    """Return the messages of leases and receipts, grouped by lease call.

    Raises:
        Forged: one of them was not issued by this engine.
    """
    if isinstance(leases, list) and len(leases) == 1 and isinstance(leases[0], str):
        # Fast path for a single receipt.
        shard, history, seq, lease = engine.unseal(leases[0])
        return [LeaseCall(shard, lease, bytes(history), BitMap64([seq]), None)]
    by_group: dict[LeaseGroup, list[int]] = {}
    by_receipt: dict[tuple[ShardId, LeaseId, bytes], list[int]] = {}
    seqs: list[int] = []
    newest: LeaseGroup | tuple[ShardId, LeaseId, bytes] | None = None
    for item in _listed(leases):
        if isinstance(item, Lease):
            if item._grant is not newest:
                newest = item._grant
                seqs = by_group.setdefault(newest, [])
            seqs.append(item._row.seq)
        else:
            shard, history, seq, lease = engine.unseal(item)
            call_key = (shard, lease, history)
            # Consecutive receipts are usually of the same call.
            if call_key != newest:
                newest = call_key
                seqs = by_receipt.setdefault((shard, lease, bytes(history)), [])
            seqs.append(seq)
    if any(group.engine is not engine for group in by_group):
        raise Forged("a lease is of another Millrace", field="leases")
    return [
        *(
            LeaseCall(group.shard, group.lease, group.history, BitMap64(seqs), group)
            for group, seqs in by_group.items()
        ),
        *(LeaseCall(*call_key, BitMap64(seqs), None) for call_key, seqs in by_receipt.items()),
    ]


def _listed(leases: Leases) -> Iterable[Lease | str]:
    if isinstance(leases, Lease | str):
        return [leases]
    if not isinstance(leases, Iterable):
        raise Invalid(
            f"leases are {type(leases).__name__}, not a lease, a receipt or several", field="leases"
        )
    return leases


def raise_refused(outcome: Outcome) -> None:
    """Raise the refusal of a command for a single message, if it was refused."""
    for seq in sorted(outcome.refused):
        raise outcome.refused[seq]


def first_ms_of(lease: Lease) -> int:
    """Return when the message was first delivered, in milliseconds since 1970; 0 if unknown."""
    return lease._grant.firsts.get(lease._row.seq, 0)
