"""The engine of `millrace.open`, in the same process, on the caller's event loop."""

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
from millrace.client.engine import PendingCommand
from millrace.client.maintenance import NodeMaintenance
from millrace.client.message import rows_in_steps, rows_that_fit
from millrace.client.reading import BatchIterator, Part, read_in_steps
from millrace.client.receipt_cache import ReceiptCache
from millrace.core.answers import QueueRef
from millrace.core.cells import (
    Cell,
    Kind,
    LeaseCell,
    ProducerCell,
    QuarantineCell,
    QueueCell,
    SessionCell,
    SubscriptionCell,
    TopicCell,
)
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    Explain,
    Publish,
    PublishStaged,
)
from millrace.core.delivery.quarantine import STATE, quarantined
from millrace.core.format.codec import decode_cell
from millrace.core.format.receipt import Proved, Receipt
from millrace.core.format.seq_sets import unpack_seqs
from millrace.core.model import (
    CATALOG,
    History,
    LeaseId,
    Row,
    ShardId,
)
from millrace.core.publishing import validate_rows
from millrace.core.session_commands import Claim
from millrace.core.spec import QueueSpec
from millrace.core.state.fold import Reader, ShardMeta
from millrace.core.state.view import View, number, number_key
from millrace.engine import quarantine_reports
from millrace.engine.command_request import CommandRequest, adds_messages
from millrace.engine.commit_loop import CommitLoop
from millrace.engine.forward_waiters import ForwardOutcomes
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
from millrace.rpc.calls import ShardName
from millrace.rpc.proofs import check_proofs
from millrace.rpc.session_liveness import SessionLiveness
from millrace.store.base import Store
from millrace.store.scan import Scan
from millrace.store.unreadable import Unreadable

if TYPE_CHECKING:
    from millrace.telemetry import Telemetry

T = TypeVar("T")


def _check_own(host: CommitLoop, request: CommandRequest) -> None:
    """Refuse a command whose rows have too many distinct values of their own.

    Raises:
        TooLarge: the error names the field with the most values.
    """
    command = request.command
    if isinstance(command, Publish):
        parts: Sequence[tuple[ShardId, object]] = ((request.shard, command),)
    elif isinstance(command, ApplyTransaction):
        parts = command.parts
    else:
        return
    publishes: list[tuple[View, Publish]] = []
    for shard, part in parts:
        view = host.view(shard) if isinstance(part, Publish) else None
        if view is not None and isinstance(part, Publish):
            publishes.append((view, part))
    refused = validate_rows.check_own_values(publishes)
    if refused is not None:
        raise refused


class EmbeddedEngine:
    """The engine of `millrace.open`: the node runs on the caller's event loop."""

    def __init__(self, node: Node, where: str = "a folder") -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._closed = False
        # Random: programs that publish a little per run must not always use the same shard first.
        self._turns = count(int.from_bytes(node.chance(4)))
        self._warming: dict[ShardId, asyncio.Future[None]] = {}
        """The newest running read of a shard's cold rows."""
        self._shard_names = ShardNames(node.store)
        self._receipts = ReceiptCache()
        self.maintenance = NodeMaintenance(node, self._check_open)
        self._liveness = SessionLiveness(self.tell)
        self.where = where
        self.telemetry: Telemetry | None = None
        self.is_remote = False
        self.is_served = False
        """True if network clients share the event loop; then distinct values per row are
        limited."""

    # --- Commands -----------------------------------------------------------------------------

    async def ask(self, shard: ShardId, command: Command, kind: type[T], *, wait_ms: int = 0) -> T:
        if asyncio.get_running_loop() is not self._loop:
            raise Invalid(
                f"{self.where} was opened on another event loop; use it there, or millrace.sync",
                field="loop",
            )
        if isinstance(command, Explain | PublishStaged | ApplyTransaction):
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
            # Break the reference cycle: future, its error, the traceback, this frame.
            del request

    def submit(self, shard: ShardId, command: Command, wait_ms: int = 0) -> CommandRequest:
        """See `CallbackEngine.submit`."""
        deadline = self._loop.time() + wait_ms / 1000 if wait_ms else 0
        request = CommandRequest(shard, command, self._loop.create_future(), wait_until=deadline)
        host = self._node.commit_loop_of(shard)
        if request.grows:
            if self.is_served and not request.is_plain:
                _check_own(host, request)
            marks = self._node.supervisor.watermarks
            if marks.refusal is not None or host.short_of_space:
                if self.maintenance.may_use_reserve(request):
                    # Treated as a command that frees space: it may use the log's reserve.
                    request.grows = False
                elif adds_messages(command):
                    marks.check()
        host.submit(request)
        return request

    def then(self, asked: PendingCommand, tell: Callable[[object], None]) -> None:
        cast("CommandRequest", asked).future.add_done_callback(tell)

    def heard(self, asked: PendingCommand) -> object:
        return cast("CommandRequest", asked).future.result()

    def take_back(self, asked: PendingCommand) -> None:
        request = cast("CommandRequest", asked)
        future = request.future
        if not future.done():
            future.cancel()
        elif not future.cancelled() and future.exception() is None:
            self._node.commit_loop_of(request.shard).take_back(request, future.result())

    async def _warm_for(
        self, shard: ShardId, command: Explain | PublishStaged | ApplyTransaction
    ) -> None:
        """Read the cold rows that a command's decision needs."""
        store = self._node.store
        parts = command.parts if isinstance(command, ApplyTransaction) else ((shard, command),)
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
                await self._node.read_thread.submit(cold)

    def tell(self, shard: ShardId, command: Command) -> None:
        future: asyncio.Future[object] = self._loop.create_future()
        future.add_done_callback(_ignore)
        self._node.commit_loop_of(shard).submit(CommandRequest(shard, command, future))

    def set_session_timeout(self, seconds: float) -> None:
        """Set the timeout of sessions that are kept alive by heartbeats (`heartbeat`)."""
        self._liveness.seconds = seconds

    def heartbeat(self, shard: ShardId, claim: Claim) -> None:
        self._check_open()
        cell = self._cell(shard, Kind.SESSION, number_key(claim.session))
        if not isinstance(cell, SessionCell) or (cell.claim, cell.epoch) != (
            claim.number,
            claim.epoch,
        ):
            raise Stale("the session has ended, or was resumed by someone else", field="session")
        self._liveness.hear(shard, claim)

    async def transact(self, command: ApplyTransaction) -> tuple[object, ...]:
        hosts = {self._node.commit_loop_of(shard) for shard, _ in command.parts}
        if len(hosts) > 1:
            raise AcrossGroups(
                "the queues of a transaction must be in one commit group: make one beside the "
                "other (beside=), or split it: publish with a producer and number first, which may "
                "be repeated, and settle after that",
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
            # From another process, which may have sent any seqs: allow only those leased.
            cell = self._cell(shard, Kind.LEASE, number_key(lease))
            seqs = seqs & unpack_seqs(cell.open) if isinstance(cell, LeaseCell) else BitMap64()
        try:
            if len(seqs) > limits.ROWS_READ_STEP:
                return await read_in_steps(partial(self.rows, shard), seqs, size)
            rows = self._rows_in_memory(shard, seqs, size)
            if rows is None:
                await self._warm(shard, seqs)
                rows = self._node.store.rows(shard, seqs, size)
        except Unreadable as error:
            raise await self._quarantined(error) from None
        return rows

    async def _warm(self, shard: ShardId, seqs: BitMap64) -> None:
        """Read cold rows into memory.

        All callers that wait for the same read continue in the same turn of the event loop, so that
        their next commands are committed together.
        """
        store = self._node.store
        job = self._warming.get(shard)
        if job is not None:
            await asyncio.wait([job])
            # Check again: the queue may have been deleted, or the engine closed.
            self._meta(shard)
            if store.hot(shard, seqs):
                return
        job = self._submit(shard, store.warm(shard, seqs))
        await asyncio.wait([job])
        job.result()
        self._meta(shard)

    def _submit(self, shard: ShardId, touch: Callable[[], None]) -> asyncio.Future[None]:
        job = self._node.read_thread.submit(touch)
        self._warming[shard] = job

        def end(_: asyncio.Future[None]) -> None:
            if self._warming.get(shard) is job:
                del self._warming[shard]

        job.add_done_callback(end)
        # A failure is raised by the next read of these rows.
        job.add_done_callback(_ignore)
        return job

    def rows_in_memory(self, shard: ShardId, seqs: BitMap64, size: int) -> list[Row] | None:
        """As `rows`, if they are in memory and few; else None."""
        if len(seqs) > limits.ROWS_READ_STEP:
            return None
        try:
            return self._rows_in_memory(shard, seqs, size)
        except Unreadable as error:
            raise self._quarantine(error) from None
        except KeyError:
            # The queue may have ended since it answered.
            self._meta(shard)
            raise

    def _rows_in_memory(self, shard: ShardId, seqs: BitMap64, size: int) -> list[Row] | None:
        store = self._node.store
        if len(seqs) == 1:
            rows = store.recent_row(shard, seqs.min())
            if rows is not None:
                return rows
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
            # If the pin has expired, rows that only it kept may be gone.
            self._check_pin(scan[0], reader)
            return scan[0].find()

        def check() -> None:
            self._check_open()
            if scan:
                self._check_pin(scan[0], reader)

        return BatchIterator(self._loop, self._thread, check, find, self._quarantine)

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
                source: Iterable[pa.RecordBatch] = part
                if not part.is_hot():
                    source = await self._node.read_thread.submit(part.load)
                for batch in source:
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
                    pieces = part.load_packed(least)
                else:
                    pieces = await self._node.read_thread.submit(partial(part.load_packed, least))
                for piece in pieces:
                    self._check_pin(scan, reader)
                    yield piece

    def _begin(self, shard: ShardId, after: int, upto: int, reader: Reader) -> Scan:
        state = self._cell(shard, Kind.QUARANTINE, STATE)
        if isinstance(state, QuarantineCell):
            raise quarantined(state)
        return self._node.store.scan(shard, after, upto, reader)

    def _check_pin(self, scan: Scan, reader: Reader) -> None:
        """Raise the error that ends a scan; on any thread."""
        self._check_open()
        meta = scan.meta()
        if meta is None:
            raise NotFound("the queue was deleted", field="queue")
        if reader.pin is not None and all(reader.pin != other.pin for other in meta.intervals):
            raise SnapshotExpired(
                "the snapshot is no longer pinned: its time is over, or it was let go; take "
                "another",
                field="snapshot",
            )

    async def _quarantined(self, error: Unreadable) -> Quarantined:
        """Quarantine the queue of unreadable rows; return the error to raise once that is
        committed."""
        await quarantine_reports.wait_until_committed(
            self._node.commit_loop_of(ShardId(error.shard)).quarantine(error)
        )
        return quarantine_reports.quarantined_error(error)

    @asynccontextmanager
    async def _quarantining(self) -> AsyncIterator[None]:
        """Raise the error of `_quarantined` if the body reads unreadable rows."""
        try:
            yield
        except Unreadable as error:
            raise await self._quarantined(error) from None

    def _quarantine(self, error: Unreadable) -> Quarantined:
        """As `_quarantined`, without waiting for the commit; on any thread."""
        host = self._node.commit_loop_of(ShardId(error.shard))
        if threading.get_ident() == self._thread:
            host.quarantine(error)
        else:
            with suppress(RuntimeError):
                # If the loop was closed, the next reader finds the damage again.
                self._loop.call_soon_threadsafe(host.quarantine, error)
        return quarantine_reports.quarantined_error(error)

    async def peek(self, shard: ShardId, after: int, upto: int | None, count: int) -> list[Row]:
        last = self._meta(shard).last_seq
        rows: list[Row] = []
        room = limits.PEEK_BYTES_MAX
        upto = last if upto is None else min(upto, last)
        async with aclosing(self.batches(shard, after, upto, Reader())) as batches:
            async for batch in batches:
                wanted = batch.slice(0, count - len(rows))
                part = wanted.slice(0, rows_that_fit(wanted, room) or (0 if rows else 1))
                rows += await rows_in_steps(part)
                room -= part.nbytes
                if len(rows) >= count or part.num_rows < batch.num_rows:
                    break
        return rows

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
        cells = {
            number(key): decode_cell(kind, value)
            for kind, key, value in self._node.store.cells(shard, Kind.SUBSCRIPTION)
        }
        return {n: cell for n, cell in cells.items() if isinstance(cell, SubscriptionCell)}

    async def topic_cell(self, shard: ShardId) -> TopicCell:
        cell = self._cell(shard, Kind.TOPIC, b"")
        if not isinstance(cell, TopicCell):
            raise NotFound("there is no such topic", field="topic")
        return cell

    async def arrived(self, shard: ShardId, first: int, count: int) -> ForwardOutcomes:
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
            await self._node.read_thread.submit(cold)
            self._meta(shard)
        return store.seq_at(shard, time_ms)

    def now_ms(self) -> int:
        return self._node.now_ms()

    def history(self, shard: ShardId, lease: LeaseId) -> History:
        return self._node.commit_loop_of(shard).history

    def proved(
        self, shard: ShardId, number: int, history: bytes | None = None, *, session: bool = False
    ) -> Proved:
        when = self._meta(shard).history if history is None else history
        return Proved.of(number, when, self._node.prove(shard, when, number, session=session))

    def judge(self, shard: ShardId, command: Command) -> Command:
        return check_proofs(self._node.prove, shard, command)

    async def name_of(self, shard: ShardId) -> ShardName | None:
        self._check_open()
        return self._shard_names.find(shard)

    def seal(self, receipt: Receipt) -> str:
        return self._node.seal(receipt)

    def sealed(
        self, shard: ShardId, lease: LeaseId, proved: Proved, seqs: Sequence[int]
    ) -> list[str]:
        return self._receipts.write(shard, lease, proved, seqs)

    def unseal(self, text: str) -> Receipt:
        return self._receipts.take(text) or self._node.unseal(text)

    # --- The end ------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.where} was closed; open it again")

    async def close(self) -> None:
        self._closed = True
        self._liveness.close()
        await self.maintenance.stop()
        await self._node.close()


def _ignore(future: asyncio.Future[T]) -> None:
    """Mark an error as retrieved: it is not awaited, and refusals are no programming errors."""
    if not future.cancelled():
        future.exception()


class ShardNames:
    """Names of the queues and topics that shards belong to, as committed: a reverse index of the
    catalog.

    Numbers of shards are never reused, so entries stay valid. For an unknown shard the catalog is
    read again if it has changed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[ShardId, ShardName] = {}
        self._index = -1

    def find(self, shard: ShardId) -> ShardName | None:
        """Return the queue or topic of a shard, or of one that was just deleted."""
        named = self._known.get(shard)
        if named is None:
            meta = self._store.meta(CATALOG)
            if meta is not None and meta.index != self._index:
                self._index = meta.index
                self._known = self._read()
                named = self._known.get(shard)
        return named

    def _read(self) -> dict[ShardId, ShardName]:
        names = {CATALOG: ShardName("catalog", "", "", (CATALOG,))}
        for kind in (Kind.QUEUE, Kind.TOPIC):
            for _, key, value in self._store.cells(CATALOG, kind):
                cell = decode_cell(kind, value)
                space, _, name = key.decode().partition("\0")
                if isinstance(cell, QueueCell):
                    shards = tuple(map(ShardId, cell.shards))
                    named = ShardName("queue", space, name, shards)
                    names |= dict.fromkeys(shards, named)
                elif isinstance(cell, TopicCell):
                    shard = ShardId(cell.shard)
                    names[shard] = ShardName("topic", space, name, (shard,))
        return names
