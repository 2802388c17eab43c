"""The engine of `millrace.open`: the node runs in the same process, on the caller's event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.client.care import FolderCare
from millrace.client.hearing import Hearing
from millrace.client.message import fitting, rows_in_steps
from millrace.client.names import Names
from millrace.client.reading import Batches, Part, read_in_steps
from millrace.client.submitting import Asked
from millrace.client.written import Written
from millrace.core import own_values
from millrace.core.answers import QueueRef
from millrace.core.codec import decode_cell
from millrace.core.commands import Command, Explain, Publish, PublishStaged, Transaction
from millrace.core.fold import Reader, ShardMeta
from millrace.core.model import (
    Cell,
    History,
    Kind,
    LeaseCell,
    LeaseId,
    ProducerCell,
    QueueSpec,
    Row,
    SessionCell,
    ShardId,
)
from millrace.core.quarantine import STATE, quarantined
from millrace.core.quarantine_commands import QuarantineCell
from millrace.core.receipt import Proved, Receipt
from millrace.core.seqs import unpack_seqs
from millrace.core.session_commands import Claim
from millrace.core.topic_cells import SubscriptionCell, TopicCell
from millrace.core.view import View, number, number_key
from millrace.engine import damage
from millrace.engine.commit_loop import CommitLoop
from millrace.engine.forward_waiters import Fates
from millrace.engine.request import Request, brings
from millrace.errors import (
    AcrossGroups,
    Closed,
    Invalid,
    MillraceError,
    NotFound,
    Quarantined,
    SnapshotExpired,
    Stale,
)
from millrace.node import Node
from millrace.rpc.calls import Named
from millrace.rpc.proofs import judged
from millrace.store.scanning import Scan
from millrace.store.unreadable import Unreadable

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry

T = TypeVar("T")


def _check_own(host: CommitLoop, request: Request) -> None:
    """Refuse a command whose rows have too many values of their own.

    Raises:
        TooLarge: the error names the field that has most of them.
    """
    command = request.command
    if isinstance(command, Publish):
        parts: Sequence[tuple[ShardId, object]] = ((request.shard, command),)
    elif isinstance(command, Transaction):
        parts = command.parts
    else:
        return
    publishes: list[tuple[View, Publish]] = []
    for shard, part in parts:
        view = host.view(shard) if isinstance(part, Publish) else None
        if view is not None and isinstance(part, Publish):
            publishes.append((view, part))
    refused = own_values.check(publishes)
    if refused is not None:
        raise refused


class EmbeddedEngine:
    """The engine of `millrace.open`: the node runs on the caller's event loop."""

    def __init__(self, node: Node, where: str = "a folder") -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._closed = False
        # Programs that open, publish a little and close must not begin at the same shard each time.
        self._turns = count(int.from_bytes(node.chance(4)))
        self._warming: dict[ShardId, asyncio.Future[None]] = {}
        """The newest call under way that reads cold rows of a shard."""
        self._names = Names(node.store)
        self._written = Written()
        self.care = FolderCare(node, self._check_open)
        self._hearing = Hearing(self.tell)
        self.where = where
        self.telemetry: Telemetry | None = None
        self.is_far = False
        self.is_served = False
        """Whether clients of a network share the loop: values of rows' own are bounded then."""

    # --- Commands -----------------------------------------------------------------------------

    async def ask(self, shard: ShardId, command: Command, kind: type[T], *, wait_ms: int = 0) -> T:
        if asyncio.get_running_loop() is not self._loop:
            raise Invalid(
                f"{self.where} was opened on another event loop; use it there, or millrace.sync",
                field="loop",
            )
        if isinstance(command, Explain | PublishStaged | Transaction):
            async with self._quarantining():
                await self._warm_for(shard, command)
        request = self.submit(shard, command, wait_ms)
        try:
            return cast("T", await request.future)
        except asyncio.CancelledError:
            # The answer may have arrived, but the caller was cancelled before it could see it.
            self.take_back(request)
            raise
        finally:
            # An error in the future would hold this frame, and this frame the future.
            del request

    def submit(self, shard: ShardId, command: Command, wait_ms: int = 0) -> Request:
        """As `Submits.submit`."""
        until = self._loop.time() + wait_ms / 1000 if wait_ms else 0
        request = Request(shard, command, self._loop.create_future(), wait_until=until)
        host = self._node.host_of(shard)
        if request.grows:
            if self.is_served and not request.is_plain:
                _check_own(host, request)
            marks = self._node.warden.watermarks
            if marks.refusal is not None or host.short_of_space:
                if self.care.may_use_reserve(request):
                    # As what frees space, it may use the reserve of the log.
                    request.grows = False
                elif brings(command):
                    marks.check()
        host.submit(request)
        return request

    def then(self, asked: Asked, tell: Callable[[object], None]) -> None:
        cast("Request", asked).future.add_done_callback(tell)

    def heard(self, asked: Asked) -> object:
        return cast("Request", asked).future.result()

    def take_back(self, asked: Asked) -> None:
        request = cast("Request", asked)
        future = request.future
        if not future.done():
            future.cancel()
        elif not future.cancelled() and future.exception() is None:
            self._node.host_of(request.shard).take_back(request, future.result())

    async def _warm_for(
        self, shard: ShardId, command: Explain | PublishStaged | Transaction
    ) -> None:
        """Have the cold rows read that the command will be judged by."""
        store = self._node.store
        parts = command.parts if isinstance(command, Transaction) else ((shard, command),)
        for at, part in parts:
            meta = None if self._closed else store.meta(at)
            if meta is None:
                continue
            cold = None
            if isinstance(part, PublishStaged):
                cold = store.warm_stages(at, part.stages)
            elif isinstance(part, Explain) and meta.keyed:
                seqs = BitMap64([part.seq])
                cold = None if store.hot(at, seqs) else store.warm(at, seqs)
            if cold is not None:
                await self._node.reading.submit(cold)

    def tell(self, shard: ShardId, command: Command) -> None:
        future: asyncio.Future[object] = self._loop.create_future()
        future.add_done_callback(_ignore)
        self._node.host_of(shard).submit(Request(shard, command, future))

    def expect_words(self, seconds: float) -> None:
        """A session that is spoken for (`speak`) ends after so long without another word."""
        self._hearing.seconds = seconds

    def speak(self, shard: ShardId, claim: Claim) -> None:
        self._check_open()
        cell = self._cell(shard, Kind.SESSION, number_key(claim.session))
        if not isinstance(cell, SessionCell) or (cell.claim, cell.epoch) != (
            claim.number,
            claim.epoch,
        ):
            raise Stale("the session has ended, or was resumed by someone else", field="session")
        self._hearing.hear(shard, claim)

    async def transact(self, command: Transaction) -> tuple[object, ...]:
        hosts = {self._node.host_of(shard) for shard, _ in command.parts}
        if len(hosts) > 1:
            raise AcrossGroups(
                "the queues of a transaction must be in one commit group; split it: publish with a "
                "producer and number first, which may be repeated, and settle after that",
                field="parts",
            )
        if not hosts:
            return ()
        return await self.ask(command.parts[0][0], command, tuple)

    # --- Rows ---------------------------------------------------------------------------------

    async def rows(
        self,
        shard: ShardId,
        seqs: BitMap64,
        size: int,
        lease: int | None = None,
        history: bytes = b"",
    ) -> list[Row]:
        self._meta(shard)
        if isinstance(lease, Proved):
            # It comes from another process, which might have named any seq.
            cell = self._cell(shard, Kind.LEASE, number_key(lease))
            seqs = seqs & unpack_seqs(cell.open) if isinstance(cell, LeaseCell) else BitMap64()
        try:
            if len(seqs) > limits.ROWS_READ_STEP:
                return await read_in_steps(partial(self.rows, shard), seqs, size)
            found = self._rows_at_hand(shard, seqs, size)
            if found is None:
                await self._warm(shard, seqs)
                found = self._node.store.rows(shard, seqs, size)
        except Unreadable as error:
            raise await self._quarantined(error) from None
        return found

    async def _warm(self, shard: ShardId, seqs: BitMap64) -> None:
        """Have cold rows read.

        All who wait for the same go on in the same turn of the loop: what they do next is then
        committed together.
        """
        store = self._node.store
        job = self._warming.get(shard)
        if job is not None:
            await asyncio.wait([job])
            # The queue may have been deleted meanwhile, or the engine closed.
            self._meta(shard)
            if store.hot(shard, seqs):
                return
        job = self._submit(shard, store.warm(shard, seqs))
        await asyncio.wait([job])
        job.result()
        self._meta(shard)

    def _submit(self, shard: ShardId, touch: Callable[[], None]) -> asyncio.Future[None]:
        job = self._node.reading.submit(touch)
        self._warming[shard] = job

        def end(_: asyncio.Future[None]) -> None:
            if self._warming.get(shard) is job:
                del self._warming[shard]

        job.add_done_callback(end)
        # If it fails, whoever wants these rows will hear of it.
        job.add_done_callback(_ignore)
        return job

    def rows_at_hand(self, shard: ShardId, seqs: BitMap64, size: int) -> list[Row] | None:
        """As `rows`, if no disk has to be waited for, and they are not many."""
        if len(seqs) > limits.ROWS_READ_STEP:
            return None
        try:
            return self._rows_at_hand(shard, seqs, size)
        except Unreadable as error:
            raise self._quarantine(error) from None
        except KeyError:
            # The queue may have ended since it answered.
            self._meta(shard)
            raise

    def _rows_at_hand(self, shard: ShardId, seqs: BitMap64, size: int) -> list[Row] | None:
        store = self._node.store
        if len(seqs) == 1:
            found = store.row_at_hand(shard, seqs.min())
            if found is not None:
                return found
        if not store.newest(shard, seqs):
            if not store.hot(shard, seqs):
                return None
            ahead = store.ahead(shard, seqs)
            if ahead is not None:
                self._submit(shard, ahead)
        return store.rows(shard, seqs, size)

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        scan: list[Scan] = []

        def find() -> Part | None:
            if not scan:
                scan.append(self._begin(shard, after, upto, reader))
            # Rows that the pin alone has kept may be gone by now.
            self._check_pin(scan[0], reader)
            return scan[0].find()

        def check() -> None:
            self._check_open()
            if scan:
                self._check_pin(scan[0], reader)

        return Batches(self._loop, self._thread, check, find, self._quarantine)

    async def batches(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        scan = self._begin(shard, after, upto, reader)
        async with self._quarantining():
            while True:
                self._check_pin(scan, reader)
                part = scan.find(limits.READ_STEP_BYTES)
                if part is None:
                    return
                found: Iterable[pa.RecordBatch] = part
                if not part.is_hot():
                    found = await self._node.reading.submit(part.load)
                for batch in found:
                    self._check_pin(scan, reader)
                    yield batch

    async def packed(
        self, shard: ShardId, after: int, upto: int, reader: Reader, *, least: int
    ) -> AsyncGenerator[pa.RecordBatch | pa.Buffer, None]:
        scan = self._begin(shard, after, upto, reader)
        async with self._quarantining():
            while True:
                self._check_pin(scan, reader)
                part = scan.find(limits.READ_STEP_BYTES)
                if part is None:
                    return
                if part.is_hot():
                    found = part.load_packed(least)
                else:
                    found = await self._node.reading.submit(partial(part.load_packed, least))
                for one in found:
                    self._check_pin(scan, reader)
                    yield one

    def _begin(self, shard: ShardId, after: int, upto: int, reader: Reader) -> Scan:
        state = self._cell(shard, Kind.QUARANTINE, STATE)
        if isinstance(state, QuarantineCell):
            raise quarantined(state)
        return self._node.store.scan(shard, after, upto, reader)

    def _check_pin(self, scan: Scan, reader: Reader) -> None:
        """Raise what ends the scan; on any thread."""
        self._check_open()
        meta = scan.meta()
        if meta is None:
            raise NotFound("the queue was deleted", field="queue")
        if reader.pin is not None and all(reader.pin != one.pin for one in meta.intervals):
            raise SnapshotExpired(
                "the snapshot is no longer pinned: its time is over, or it was let go; take "
                "another",
                field="snapshot",
            )

    async def _quarantined(self, error: Unreadable) -> Quarantined:
        """What is raised where rows are unreadable, once their queue is quarantined."""
        await damage.committed(self._node.host_of(ShardId(error.shard)).quarantine(error))
        return damage.refused(error)

    @asynccontextmanager
    async def _quarantining(self) -> AsyncIterator[None]:
        """Raise what `_quarantined` says where rows turn out to be unreadable."""
        try:
            yield
        except Unreadable as error:
            raise await self._quarantined(error) from None

    def _quarantine(self, error: Unreadable) -> Quarantined:
        """As `_quarantined`, where nobody can wait; on any thread."""
        host = self._node.host_of(ShardId(error.shard))
        if threading.get_ident() == self._thread:
            host.quarantine(error)
        else:
            with suppress(RuntimeError):
                # The loop may have been closed meanwhile; then the next reader finds them.
                self._loop.call_soon_threadsafe(host.quarantine, error)
        return damage.refused(error)

    async def peek(self, shard: ShardId, after: int, upto: int | None, count: int) -> list[Row]:
        last = self._meta(shard).last_seq
        found: list[Row] = []
        room = limits.PEEK_BYTES_MAX
        upto = last if upto is None else min(upto, last)
        async with aclosing(self.batches(shard, after, upto, Reader())) as batches:
            async for batch in batches:
                wanted = batch.slice(0, count - len(found))
                part = wanted.slice(0, fitting(wanted, room) or (0 if found else 1))
                found += await rows_in_steps(part)
                room -= part.nbytes
                if len(found) >= count or part.num_rows < batch.num_rows:
                    break
        return found

    # --- Facts --------------------------------------------------------------------------------

    async def cells(self, shard: ShardId, kind: Kind) -> dict[str, Cell]:
        return dict(self._cells(shard, kind))

    def _cells(self, shard: ShardId, kind: Kind) -> Iterator[tuple[str, Cell]]:
        self._meta(shard)
        for _, key, value in self._node.store.cells(shard, kind):
            yield key.decode(), decode_cell(kind, value)

    def _cell(self, shard: ShardId, kind: Kind, key: bytes) -> Cell | None:
        self._meta(shard)
        value = self._node.store.cell(shard, kind, key)
        return decode_cell(kind, value) if value is not None else None

    async def producer_number(self, shard: ShardId, producer: str) -> int:
        cell = self._cell(shard, Kind.PRODUCER, producer.encode())
        return cell.last if isinstance(cell, ProducerCell) else 0

    def turn(self) -> int:
        return next(self._turns)

    async def find_queue(self, space: str, name: str) -> QueueRef | None:
        self._check_open()
        return self._node.find_queue(space, name)

    async def spaces(self) -> list[str]:
        self._check_open()
        return self._node.spaces()

    async def queue_names(self, space: str) -> list[str]:
        self._check_open()
        return self._node.queue_names(space)

    async def find_topic(self, space: str, name: str) -> ShardId | None:
        self._check_open()
        return self._node.find_topic(space, name)

    async def topic_names(self, space: str) -> list[str]:
        self._check_open()
        return self._node.topic_names(space)

    async def subscriptions(self, shard: ShardId) -> dict[int, SubscriptionCell]:
        self._meta(shard)
        found = {
            number(key): decode_cell(kind, value)
            for kind, key, value in self._node.store.cells(shard, Kind.SUBSCRIPTION)
        }
        return {n: cell for n, cell in found.items() if isinstance(cell, SubscriptionCell)}

    async def topic_cell(self, shard: ShardId) -> TopicCell:
        cell = self._cell(shard, Kind.TOPIC, b"")
        if not isinstance(cell, TopicCell):
            raise NotFound("there is no such topic", field="topic")
        return cell

    async def arrived(self, shard: ShardId, first: int, count: int) -> Fates:
        return await self._node.forwarder.arrived(shard, first, count)

    async def trouble(self, shard: ShardId) -> dict[int, MillraceError]:
        self._check_open()
        return self._node.forwarder.trouble(shard)

    async def spec(self, shard: ShardId) -> QueueSpec:
        cell = self._cell(shard, Kind.SPEC, b"")
        return cell if isinstance(cell, QueueSpec) else QueueSpec()

    async def meta(self, shard: ShardId) -> ShardMeta:
        return self._meta(shard)

    def _meta(self, shard: ShardId) -> ShardMeta:
        self._check_open()
        meta = self._node.store.meta(shard)
        if meta is None:
            raise NotFound("the queue was deleted", field="queue")
        return meta

    async def seq_at(self, shard: ShardId, time_ms: int) -> int:
        self._meta(shard)
        store = self._node.store
        cold = store.warm_time(shard, time_ms)
        if cold is not None:
            await self._node.reading.submit(cold)
            self._meta(shard)
        return store.seq_at(shard, time_ms)

    def now_ms(self) -> int:
        return self._node.now_ms()

    def history(self, shard: ShardId, lease: LeaseId) -> History:
        return self._node.host_of(shard).history

    def proved(
        self, shard: ShardId, number: int, history: bytes | None = None, *, session: bool = False
    ) -> Proved:
        when = self._meta(shard).history if history is None else history
        return Proved.of(number, when, self._node.prove(shard, when, number, session=session))

    def judge(self, shard: ShardId, command: Command) -> Command:
        return judged(self._node.prove, shard, command)

    async def name_of(self, shard: ShardId) -> Named | None:
        self._check_open()
        return self._names.find(shard)

    def seal(self, receipt: Receipt) -> str:
        return self._node.seal(receipt)

    def sealed(
        self, shard: ShardId, lease: LeaseId, proved: Proved, seqs: Sequence[int]
    ) -> list[str]:
        return self._written.write(shard, lease, proved, seqs)

    def unseal(self, text: str) -> Receipt:
        return self._written.take(text) or self._node.unseal(text)

    # --- The end ------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.where} was closed; open it again")

    async def close(self) -> None:
        self._closed = True
        self._hearing.close()
        await self.care.stop()
        await self._node.close()


def _ignore(future: asyncio.Future[T]) -> None:
    """Nobody waits for the answer: a refusal is not an error that went unnoticed."""
    if not future.cancelled():
        future.exception()
