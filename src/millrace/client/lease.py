"""A leased message, and the work that is done on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Protocol
from weakref import ReferenceType, ref

from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import Engine
from millrace.client.grant import Grant, Keepalive
from millrace.client.message import Body
from millrace.client.reserved import successor_headers
from millrace.client.shards import Shards
from millrace.core import check
from millrace.core.answers import Leased, Outcome
from millrace.core.commands import Discard, Extend, Release, Settle
from millrace.core.leased_commands import Replace
from millrace.core.message_id import id_of
from millrace.core.model import Headers, LeaseId, Message, Row, Seq, ShardId
from millrace.core.receipt import Receipt
from millrace.errors import Forged, Invalid, MillraceError, Refused


class Lease:
    """A message handed to this worker until a deadline; proved by its receipt.

    It stays valid past the deadline until someone else leases the message. As a context manager it
    is extended by itself while the body runs; then it is settled, or released as failed where the
    body raised an error. If the body has replaced it, all of this applies to its successor.
    """

    __slots__ = ("__weakref__", "_grant", "_number", "_row", "_succession")

    def __init__(self, grant: Grant, row: Row, number: int | None = None) -> None:
        self._grant = grant
        self._row = row
        self._number = number
        # The newest lease refers to it weakly: it refers to that one.
        self._succession: Succession | ReferenceType[Succession] | None = None

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self._row.body or b""

    @property
    def key(self) -> bytes | None:
        """The message's key; text was stored as UTF-8."""
        return self._row.key

    @property
    def headers(self) -> Headers:
        """Names and values, in the order in which they were given."""
        return self._row.headers

    @property
    def group(self) -> bytes:
        """Whom it waited for, where the queue's order asks for it: as named, else its key."""
        return self._row.group

    @property
    def seq(self) -> int:
        """The message's number within its queue: of several shards, its `Place`."""
        return self._grant.shards.place(self._grant.shard, self._row.seq)

    @property
    def id(self) -> int | None:
        """The message's id, on a queue whose delivery is "partitions"; else None."""
        key = self._grant.shards.key
        return id_of(key, self._row.seq) if key else None

    @property
    def number(self) -> int | None:
        """The delivery number within its session; None if no session was handed it."""
        return self._number

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
        return int(self._grant.lease)

    @property
    def deadline_ms(self) -> int:
        """Until when the message is this worker's alone, in milliseconds since 1970."""
        return self._grant.deadline_of(self._row.seq)

    @property
    def lost(self) -> Refused | None:
        """Why the message is this worker's no longer, once an extension was refused.

        `Superseded`: a newer revision has replaced it; `Stale`: another worker has it. Whoever
        works for long looks here now and then, and stops. Of a message that this worker has
        replaced itself, it is told of the successor.
        """
        lease = newest_of(self)
        return lease._grant.lost.get(lease._row.seq)

    @property
    def receipt(self) -> str:
        """Text that proves the lease, in this or another process."""
        grant = self._grant
        return grant.engine.seal(
            Receipt(grant.shard, grant.history, Seq(self._row.seq), grant.lease)
        )

    async def settle(self) -> None:
        """The work is done: when this returns, the message is never handed out again.

        Settling twice is answered as the first time, as long as the lease is remembered.

        Raises:
            Superseded: a newer revision of the key has replaced the message.
            Stale: someone else has leased it meanwhile, or it was released.
            Gone: the lease is no longer remembered; an earlier settle may have counted.
        """
        grant = self._grant
        await self._end(Settle(grant.lease, BitMap64([self._row.seq]), grant.history))

    async def release(self, *, failed: bool = False, delay: float = 0) -> None:
        """Give the message back; nobody gets it before `delay` seconds have passed.

        `failed` counts it as a failure, after which the queue may leave it alone for longer
        (`retry_min`), or take it for a dead letter (`max_failures`).

        Raises:
            Superseded, Stale, Gone: as for `settle`.
        """
        grant = self._grant
        failed = check.flag(failed, "failed")
        delay_ms = check.millis(delay, "delay", limits.DELAY_MS_MAX, least_ms=0)
        seqs = BitMap64([self._row.seq])
        await self._end(Release(grant.lease, seqs, grant.history, failed, delay_ms))

    async def discard(self) -> None:
        """Nobody will ever do this: the message is a dead letter.

        It goes to the queue's `dead_letter`, never lost in between, or is dropped without one.

        Raises:
            Superseded, Stale, Gone: as for `settle`.
        """
        grant = self._grant
        await self._end(Discard(grant.lease, BitMap64([self._row.seq]), grant.history))

    async def _end(self, command: Settle | Release | Discard) -> None:
        telemetry = self._grant.engine.telemetry
        if telemetry is None:
            return await self._ask(command)
        operation, label = type(command).__name__.lower(), self._grant.shards.label
        with telemetry.settling(operation, label, None) as step:
            step.set("messaging.message.id", str(self.seq))
            await self._ask(command)

    async def _ask(self, command: Settle | Release | Discard) -> None:
        grant = self._grant
        raise_refused(await grant.engine.ask(grant.shard, command, Outcome))
        grant.ended(command.seqs)

    async def extend(self, seconds: float) -> None:
        """Hold the message for so many seconds from now.

        Raises:
            Superseded, Stale, Gone: as for `settle`.
        """
        grant = self._grant
        lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        command = Extend(grant.lease, BitMap64([self._row.seq]), grant.history, lease_ms)
        outcome = await grant.engine.ask(grant.shard, command, Outcome)
        grant.extended(outcome)
        raise_refused(outcome)

    async def replace(
        self,
        body: Body,
        *,
        key: bytes | str | None = None,
        headers: check.HeadersLike | None = None,
        seconds: float | None = None,
    ) -> Lease:
        """Put another message in the place of this one, and hold that one instead.

        In one step this message is settled and its successor published, with the same key and
        headers unless others are named (but without those of SQS and SNS, `aws.`, which are of the
        body that was sent), and with what was counted of deliveries and failures. It
        is held for `seconds`, else for as long as this one was leased for, under a receipt of its
        own. A worker that writes down in it how far it came goes on from there after a crash.

        What extends and ends this message by itself (`async with`, `Queue.work`, a `Worker`) does
        so with the successor from now on.

        Raises:
            Superseded, Stale, Gone: as for `settle`; nothing was changed.
            Invalid: the queue's retention is "log", or a session holds the message.
        """
        grant = self._grant
        old = self._row
        name = old.key if key is None else key
        kept = successor_headers(old.headers) if headers is None else headers
        message = check.message(body, name, kept)
        # A session holds its messages for longer than anyone may ask for; the engine refuses it.
        lease_ms = min(grant.lease_ms, limits.LEASE_MS_MAX)
        if seconds is not None:
            lease_ms = check.millis(seconds, "seconds", limits.LEASE_MS_MAX)
        call = Call(grant.shard, grant.lease, grant.history, BitMap64([old.seq]), grant)
        grant.replacing.add(old.seq)
        try:
            new = await replaced(
                grant.engine, grant.keepalive, grant.shards, call, message, lease_ms
            )
        finally:
            grant.replacing.discard(old.seq)
        succession_of(self).replace(self, new)
        grant.keepalive.hand_over(grant, old.seq, new._grant, new._row.seq, new)
        return new

    async def __aenter__(self) -> Lease:
        lease = newest_of(self)
        follow(lease)
        lease._grant.keepalive.keep(lease._grant, lease._row.seq, lease)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease = newest_of(self)
        grant = lease._grant
        grant.keepalive.drop(grant, lease._row.seq)
        if error is None and lease.lost is not None:
            raise lease.lost
        if lease._row.seq not in grant.open:
            # The body has settled or released it itself.
            return
        if error is None:
            await lease.settle()
        else:
            # What went wrong in the body is what the caller must hear of; what could not be given
            # back runs out by itself.
            with suppress(MillraceError):
                await lease.release(failed=isinstance(error, Exception))

    def __repr__(self) -> str:
        return f"<Lease of message {self.seq} by call {self.version}>"


class Succession:
    """A leased message and its successors, of which a worker holds the newest.

    The leases that were replaced hold it, and so does whoever follows the message; the newest lease
    does not, so that it is let go as soon as the program drops it.
    """

    __slots__ = ("__weakref__", "newest", "on_replaced")

    def __init__(self, lease: Lease) -> None:
        self.newest = lease
        self.on_replaced: Callable[[Lease], None] | None = None
        """Called with each successor."""

    def replace(self, old: Lease, new: Lease) -> None:
        """Go on with the successor of a message."""
        old._succession = self
        new._succession = ref(self)
        self.newest = new
        if _place(old) in old._grant.keepalive.followed:
            follow(new)
        if self.on_replaced is not None:
            self.on_replaced(new)


def succession_of(lease: Lease) -> Succession:
    """Where the successors of a message will be found; the caller keeps it."""
    found = lease._succession
    succession = found() if isinstance(found, ReferenceType) else found
    if succession is None:
        succession = Succession(lease)
        lease._succession = ref(succession)
    return succession


def newest_of(lease: Lease) -> Lease:
    """The lease that this one was replaced by at last; the lease itself if it was not."""
    found = lease._succession
    succession = found() if isinstance(found, ReferenceType) else found
    return lease if succession is None else succession.newest


def _place(lease: Lease) -> tuple[ShardId, LeaseId, bytes, int]:
    grant = lease._grant
    return grant.shard, grant.lease, grant.history, lease._row.seq


def follow(lease: Lease) -> None:
    """Have `Queue.replace` find this lease by its receipt, as long as the program holds it.

    What extends and ends the message by itself then goes on with the successor.
    """
    lease._grant.keepalive.followed[_place(lease)] = lease


def followed(keepalive: Keepalive, call: Call) -> Lease | None:
    """Return the lease in use that a receipt names; None: this process only knows the receipt."""
    found = keepalive.followed.get((call.shard, call.lease, call.history, call.seqs.min()))
    return found if isinstance(found, Lease) else None


Leases = Lease | str | Iterable[Lease | str]
"""A lease or a receipt, or several."""


class Call(NamedTuple):
    """Messages of one lease call that are settled, released or extended together."""

    shard: ShardId
    lease: LeaseId
    history: bytes
    seqs: BitMap64
    grant: Grant | None
    """None where receipts were given."""

    def ended(self, done: BitMap64) -> None:
        """Take note that these were settled or released."""
        if self.grant is not None:
            self.grant.ended(done)

    def extended(self, outcome: Outcome) -> None:
        """Take note of what an extension was answered."""
        if self.grant is not None:
            self.grant.extended(outcome)

    def note(self, command: Settle | Release | Extend | Discard, outcome: Outcome) -> None:
        """Take note of what a command was answered."""
        if isinstance(command, Extend):
            self.extended(outcome)
        else:
            self.ended(outcome.done)


async def replaced(
    engine: Engine,
    keepalive: Keepalive,
    shards: Shards,
    call: Call,
    message: Message,
    lease_ms: int,
) -> Lease:
    """The successor of a leased message, leased."""
    shards.check_stays(call.shard, message)
    command = Replace(call.lease, call.seqs, call.history, message, lease_ms)
    answer = await engine.ask(call.shard, command, Leased)
    call.ended(call.seqs)
    seq, time_ms = answer.seqs.min(), answer.deadline_ms - lease_ms
    row = Row(seq, time_ms, message.body, message.key, message.headers)
    return Lease(Grant(engine, keepalive, shards, call.shard, answer, lease_ms), row)


def grant_of(lease: Lease) -> Grant:
    """The lease call that it came with."""
    return lease._grant


def seq_of(lease: Lease) -> int:
    """Its number within its shard, by which its lease call knows it."""
    return lease._row.seq


class Unseals(Protocol):
    """Reads receipts."""

    def unseal(self, text: str) -> Receipt:
        """As that of `Engine`."""
        ...


def by_call(engine: Unseals, leases: Leases) -> list[Call]:
    """The messages of leases and receipts, by lease call.

    Raises:
        Forged: one of them was not made by this engine.
    """
    if isinstance(leases, list) and len(leases) == 1 and isinstance(leases[0], str):
        # The way of a single message, which must cost little.
        shard, history, seq, lease = engine.unseal(leases[0])
        return [Call(shard, lease, bytes(history), BitMap64([seq]), None)]
    held: dict[Grant, list[int]] = {}
    proved: dict[tuple[ShardId, LeaseId, bytes], list[int]] = {}
    seqs: list[int] = []
    newest: Grant | tuple[ShardId, LeaseId, bytes] | None = None
    for one in _listed(leases):
        if isinstance(one, Lease):
            if one._grant is not newest:
                newest = one._grant
                seqs = held.setdefault(newest, [])
            seqs.append(one._row.seq)
        else:
            shard, history, seq, lease = engine.unseal(one)
            at = (shard, lease, history)
            # Mostly they are of one call.
            if at != newest:
                newest = at
                seqs = proved.setdefault((shard, lease, bytes(history)), [])
            seqs.append(seq)
    if any(grant.engine is not engine for grant in held):
        raise Forged("a lease is of another Millrace", field="leases")
    return [
        *(
            Call(grant.shard, grant.lease, grant.history, BitMap64(seqs), grant)
            for grant, seqs in held.items()
        ),
        *(Call(*at, BitMap64(seqs), None) for at, seqs in proved.items()),
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
    """Raise what the only message of a command was answered with."""
    for seq in sorted(outcome.refused):
        raise outcome.refused[seq]


def first_ms_of(lease: Lease) -> int:
    """When a message that was handed out before was handed out first; 0: that is not known."""
    return lease._grant.firsts.get(lease._row.seq, 0)
