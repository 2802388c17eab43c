"""The engine of another process, called over a transport, with retries after a lost connection.

Rule 1: a retryable call is repeated for some time after the connection was lost: the next owner of
the folder, or the server when it is back, answers it.
Rule 2: the outcome of any other call that was sent and not answered is UNKNOWN, and reported so.
Rule 3: leases and pins granted to a cancelled call are released, however late its answer.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as TimedOut
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import pyarrow as pa
from pyroaring import BitMap64

from millrace import limits
from millrace.client.engine import PendingCommand, Resubmit
from millrace.client.maintenance_results import Backup, Health, Repaired
from millrace.client.reading import read_in_steps
from millrace.client.receipt_cache import ReceiptCache
from millrace.core import plain_types
from millrace.core.answers import Leased, QueueRef, ShardLeases
from millrace.core.cells import Cell, Kind, SubscriptionCell, TopicCell
from millrace.core.commands import ApplyTransaction, Command
from millrace.core.format.receipt import (
    Proved,
    Receipt,
    read,
    write,
)
from millrace.core.model import (
    History,
    LeaseId,
    Row,
    ShardId,
)
from millrace.core.session_commands import Claim
from millrace.core.spec import QueueSpec
from millrace.core.state.fold import Reader, ShardMeta
from millrace.engine.command_request import undo_commands
from millrace.engine.forward_waiters import ForwardOutcomes
from millrace.errors import Closed, Forged, Invalid, MillraceError, Retry, Unknown
from millrace.instruments import Gauges
from millrace.rpc import calls
from millrace.rpc.calls import (
    Call,
    Heartbeat,
    Notify,
    ShardName,
    Submit,
)
from millrace.rpc.retryable import is_retryable
from millrace.rpc.transport import (
    CallResult,
    ConnectionLost,
    PendingCall,
    Transport,
)

if TYPE_CHECKING:
    from millrace.maintenance.backup import ProgressCallback
    from millrace.telemetry import Telemetry

T = TypeVar("T")

_BESIDE_BYTES_MAX = limits.HEADER_BYTES_MAX + limits.KEY_BYTES_MAX
_KIND_NAMES = {kind: name for name, kind in calls.READABLE_CELL_KINDS.items()}


class RemoteEngine:
    """The engine of the process that owns a folder, or of a server."""

    def __init__(self, patience: float = limits.WIRE_PATIENCE_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.patience = patience
        """Retry timeout of retryable calls, in seconds."""
        self._transport: Transport = cast("Transport", None)
        self._closed = False
        self._turns = count(int.from_bytes(os.urandom(4)))
        self._rows_ahead: dict[tuple[ShardId, int], list[Row]] = {}
        """Messages that came with the answer of a lease call, by the seq of the first one."""
        self._receipts = ReceiptCache()
        self.maintenance = RemoteMaintenance(self)
        self.telemetry: Telemetry | None = None
        self.is_remote = True

    def use(self, transport: Transport) -> None:
        """Set the transport for calls."""
        self._transport = transport

    @property
    def where(self) -> str:
        return self._transport.where

    @property
    def is_here(self) -> bool:
        """True if the engine is on this machine, so that file paths mean the same to it."""
        return self._transport.is_here

    # --- The line -------------------------------------------------------------------------------

    async def call(self, call: Call, *, repeat: bool = True) -> CallResult:
        """Make a call, and repeat it after a lost connection if that is safe (`repeat`).

        Raises:
            Closed: the engine is unreachable, or this was closed; nothing was accepted.
            Unknown: the call was sent, and its outcome is unknown.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise Invalid(
                f"{self.where} was opened on another event loop; use it there, or millrace.sync",
                field="loop",
            )
        deadline, pause = self._loop.time() + self.patience, limits.WIRE_PAUSE_SECONDS_MIN
        was_sent = False
        while True:
            self._check_open()
            try:
                return await self._transport.call(call)
            except ConnectionLost as lost:
                was_sent = was_sent or lost.sent
                error = _unknown(self.where) if was_sent else _unreachable(self.where, lost)
                if (lost.sent and not repeat) or lost.lasts or self._loop.time() + pause > deadline:
                    raise error from lost
            except Closed as closed:
                # The owner is shutting down; another one may take over.
                if self._closed or self._loop.time() + pause > deadline:
                    raise _unknown(self.where) if was_sent else closed from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, limits.WIRE_PAUSE_SECONDS_MAX)

    def late(self, call: Call, answered: CallResult) -> None:
        """Release leases and pins granted to a call whose caller has gone."""
        if isinstance(call, Submit):
            history = _history_of(answered.value)
            for shard, undo in undo_commands(call.shard, call.command, answered.value, history):
                self._transport.tell(Notify(shard, undo))

    async def _value(self, call: Call, kind: type[T]) -> T:
        return cast("T", (await self.call(call)).value)

    # --- Commands -------------------------------------------------------------------------------

    async def ask(self, shard: ShardId, command: Command, kind: type[T], *, wait_ms: int = 0) -> T:
        answered = await self.call(Submit(shard, wait_ms, command), repeat=is_retryable(command))
        return cast("T", self._value_of(shard, answered))

    def _value_of(self, shard: ShardId, answered: CallResult) -> object:
        """Return the answer of a command; rows that came with it are kept for `rows_in_memory`."""
        if answered.rows:
            if len(self._rows_ahead) >= limits.WIRE_ROWS_AHEAD_MAX:
                del self._rows_ahead[next(iter(self._rows_ahead))]
            self._rows_ahead[shard, answered.rows[0].seq] = answered.rows
        return answered.value

    def submit(self, shard: ShardId, command: Command, wait_ms: int = 0) -> PendingCommand:
        self._check_open()
        begun = self._transport.begin(Submit(shard, wait_ms, command))
        if begun is None:
            raise Closed(f"{self.where} cannot be asked at once")
        return cast("PendingCommand", begun)

    def then(self, asked: PendingCommand, tell: Callable[[object], None]) -> None:
        cast("PendingCall", asked).then(tell)

    def heard(self, asked: PendingCommand) -> object:
        begun = cast("PendingCall", asked)
        call = cast("Submit", begun.call)
        try:
            return self._value_of(call.shard, begun.result())
        except Closed as error:
            # The owner is shutting down; another one may take over.
            raise Resubmit from error
        except ConnectionLost as lost:
            if lost.sent and not is_retryable(call.command):
                raise _unknown(self.where) from lost
            raise Resubmit from lost

    def take_back(self, asked: PendingCommand) -> None:
        cast("PendingCall", asked).give_up()

    def rows_in_memory(self, shard: ShardId, seqs: BitMap64, size: int) -> list[Row] | None:
        if not seqs:
            return []
        rows = self._rows_ahead.pop((shard, seqs.min()), None) if self._rows_ahead else None
        if rows is None or len(rows) != len(seqs) or rows[-1].seq != seqs.max():
            return None
        return rows if len(rows) == 1 else _fitting(rows, size)

    def tell(self, shard: ShardId, command: Command) -> None:
        self._check_open()
        self._transport.tell(Notify(shard, command))

    def heartbeat(self, shard: ShardId, claim: Claim) -> None:
        self._check_open()
        self._transport.tell(Heartbeat(shard, claim))

    async def transact(self, command: ApplyTransaction) -> tuple[object, ...]:
        if not command.parts:
            return ()
        return await self.ask(command.parts[0][0], command, tuple)

    # --- Rows -----------------------------------------------------------------------------------

    async def rows(
        self,
        shard: ShardId,
        seqs: BitMap64,
        size: int,
        lease: int | None = None,
        history: bytes = b"",
    ) -> list[Row]:
        rows = self.rows_in_memory(shard, seqs, size)
        if rows is not None:
            return rows
        if len(seqs) > limits.ROWS_READ_STEP:
            return await read_in_steps(
                lambda part, room: self.rows(shard, part, max(room, 1), lease, history), seqs, size
            )
        size = min(size, limits.LEASE_BYTES_MAX)
        call: Call = calls.ReadRows(shard, seqs, size)
        if lease is not None:
            call = calls.ReadLeased(shard, seqs, size, LeaseId(lease), history)
        return cast("list[Row]", (await self.call(call)).value)

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        source = self.batches(shard, after, upto, reader)
        if threading.get_ident() == self._thread:
            raise Invalid(
                "an Arrow reader of another process's rows would stop the event loop, which has "
                "to fetch them: take `batches` in a coroutine, or pull in another thread",
                field="loop",
            )
        while True:
            step = anext(source, None)
            answer = asyncio.run_coroutine_threadsafe(_await(step), self._loop)
            try:
                batch = answer.result(limits.READ_SECONDS_MAX)
            except TimedOut as error:
                answer.cancel()
                raise Retry(
                    f"no rows came for {limits.READ_SECONDS_MAX} s; read them again"
                ) from error
            if batch is None:
                return
            yield batch

    async def packed(
        self, shard: ShardId, after: int, upto: int, reader: Reader, *, least: int
    ) -> AsyncGenerator[pa.RecordBatch | pa.Buffer, None]:
        async with aclosing(self.batches(shard, after, upto, reader)) as batches:
            async for batch in batches:
                yield batch

    async def batches(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        deadline, pause = self._loop.time() + self.patience, limits.WIRE_PAUSE_SECONDS_MIN
        while True:
            self._check_open()
            call = calls.ReadBatches(shard, after, upto, reader.pin, reader.retain)
            try:
                async with aclosing(self._transport.batches(call)) as batches:
                    async for batch in batches:
                        yield batch
                        # Resume here after a lost connection: the pin still holds.
                        after = batch.column("seq")[-1].as_py()
                        deadline = self._loop.time() + self.patience
                return
            except ConnectionLost as lost:
                if lost.lasts or self._loop.time() + pause > deadline:
                    raise _unreachable(self.where, lost) from lost
            except Closed:
                if self._closed or self._loop.time() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, limits.WIRE_PAUSE_SECONDS_MAX)

    async def peek(self, shard: ShardId, after: int, upto: int | None, count: int) -> list[Row]:
        return cast("list[Row]", (await self.call(calls.Peek(shard, after, upto, count))).value)

    # --- Facts ----------------------------------------------------------------------------------

    async def cells(self, shard: ShardId, kind: Kind) -> dict[str, Cell]:
        return await self._value(calls.ReadCells(shard, _KIND_NAMES[kind]), dict)

    async def producer_number(self, shard: ShardId, producer: str) -> int:
        return await self._value(calls.FindNumber(shard, producer), int)

    async def find_queue(self, space: str, name: str) -> QueueRef | None:
        return cast("QueueRef | None", (await self.call(calls.FindQueue(space, name))).value)

    def turn(self) -> int:
        return next(self._turns)

    async def spaces(self) -> list[str]:
        return await self._value(calls.ListSpaces(), list)

    async def queue_names(self, space: str) -> list[str]:
        return await self._value(calls.ListQueues(space), list)

    async def find_topic(self, space: str, name: str) -> ShardId | None:
        return cast("ShardId | None", (await self.call(calls.FindTopic(space, name))).value)

    async def topic_names(self, space: str) -> list[str]:
        return await self._value(calls.ListTopics(space), list)

    async def subscriptions(self, shard: ShardId) -> dict[int, SubscriptionCell]:
        return await self._value(calls.ListSubscriptions(shard), dict)

    async def topic_cell(self, shard: ShardId) -> TopicCell:
        return await self._value(calls.ReadTopic(shard), TopicCell)

    async def arrived(self, shard: ShardId, first: int, count: int) -> ForwardOutcomes:
        return await self._value(calls.AwaitForwarding(shard, first, count), dict)

    async def trouble(self, shard: ShardId) -> dict[int, MillraceError]:
        return await self._value(calls.ListForwardErrors(shard), dict)

    async def spec(self, shard: ShardId) -> QueueSpec:
        return await self._value(calls.ReadSpec(shard), QueueSpec)

    async def meta(self, shard: ShardId) -> ShardMeta:
        return await self._value(calls.ReadMeta(shard), ShardMeta)

    async def seq_at(self, shard: ShardId, time_ms: int) -> int:
        return await self._value(calls.FindSeq(shard, time_ms), int)

    async def name_of(self, shard: ShardId) -> ShardName | None:
        return cast("ShardName | None", (await self.call(calls.FindName(shard))).value)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._transport.clock_ahead_ms()

    # --- Receipts -------------------------------------------------------------------------------

    def history(self, shard: ShardId, lease: LeaseId) -> History:
        return History(_proved(lease).history)

    def seal(self, receipt: Receipt) -> str:
        return write(receipt, _proved(receipt.lease).proof)

    def sealed(
        self, shard: ShardId, lease: LeaseId, proved: Proved, seqs: Sequence[int]
    ) -> list[str]:
        return self._receipts.write(shard, lease, proved, seqs)

    def unseal(self, text: str) -> Receipt:
        receipt = self._receipts.take(text)
        if receipt is not None:
            return receipt
        plain = plain_types.text(text)
        if plain is None:
            raise Forged("a receipt is text", field="receipt")
        # The proof is verified by the engine.
        (shard, history, seq, number), proof = read(plain)
        return Receipt(shard, history, seq, LeaseId(Proved.of(number, history, proof)))

    def proved(
        self, shard: ShardId, number: int, history: bytes | None = None, *, session: bool = False
    ) -> Proved:
        return _proved(number)

    def judge(self, shard: ShardId, command: Command) -> Command:
        return command

    # --- The end --------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.where} was closed; open it again")

    async def close(self) -> None:
        self._closed = True
        await self._transport.close()


class RemoteMaintenance:
    """Maintenance of an engine in another process."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    async def backup(self, into: Path, told: ProgressCallback, *, follow: bool) -> Backup:
        """See `Millrace.backup`. The folder is on the engine's machine; progress is polled."""
        call = calls.BackUp(_place(into, is_here=self._engine.is_here), follow)
        polling = asyncio.ensure_future(self._tell(told))
        try:
            facts = cast("calls.BackupFacts", (await self._engine.call(call, repeat=False)).value)
        finally:
            polling.cancel()
            await asyncio.wait([polling])
        path, first, last, time_ms, size = facts
        told(size, size)
        return Backup(Path(path), first, last, datetime.fromtimestamp(time_ms / 1000, UTC), size)

    async def _tell(self, told: ProgressCallback) -> None:
        """Report the progress of a backup until cancelled; errors are reported by the backup
        itself."""
        with suppress(MillraceError):
            while True:
                await asyncio.sleep(limits.BACKUP_TOLD_SECONDS)
                copied, total = await self.backing_up()
                if total:
                    told(copied, total)

    async def backing_up(self) -> tuple[int, int]:
        """See `Maintenance.backing_up`."""
        progress = (await self._engine.call(calls.ReadBackup())).value
        return cast("tuple[int, int]", progress)

    async def unfollow(self) -> bool:
        """See `Millrace.unfollow`."""
        return cast("bool", (await self._engine.call(calls.Unfollow(), repeat=False)).value)

    async def health(self) -> Health:
        """See `Millrace.health`."""
        fields = (await self._engine.call(calls.ReadHealth())).value
        return Health(
            *cast("tuple[str | None, int, None, tuple[str, ...], None, int, bool, None]", fields)
        )

    async def repair(
        self, shards: Sequence[ShardId], export: Path | None, *, drop: bool
    ) -> Repaired:
        """See `Millrace.repair`. The export folder is on the engine's machine."""
        folder = "" if export is None else _place(export, is_here=self._engine.is_here)
        call = calls.Repair(tuple(shards), folder, drop)
        fields = (await self._engine.call(call, repeat=False)).value
        return Repaired(*cast("tuple[int, int, int, bool]", fields))

    async def gauges(self) -> Gauges:
        """Return the counters of the remote engine."""
        return cast("Gauges", (await self._engine.call(calls.ReadGauges())).value)

    def keep_room(self, shards: Iterable[ShardId]) -> None:
        """Do nothing: the server of the engine has configured it there."""


def _place(path: Path, *, is_here: bool) -> str:
    """Return the absolute path of a folder, as the other side needs it."""
    if not is_here and not path.is_absolute():
        raise Invalid(
            f"{path} is a place on this machine; name the whole path of one on the server's",
            field="into",
        )
    return str(path.absolute())


def _proved(number: int) -> Proved:
    if not isinstance(number, Proved):
        raise Forged("this lease was not handed out by that engine", field="lease")
    return number


def _unreachable(where: str, lost: ConnectionLost) -> MillraceError:
    """Return the error for a call that was not sent, with a hint."""
    if lost.lasts:
        return Invalid(lost.why, field="url")
    hint = "does a server run there?" if "://" in where else "is its engine open?"
    return Closed(f"{where}: {lost.why}; {hint}")


def _unknown(where: str) -> Unknown:
    return Unknown(
        f"{where}: the connection was lost before the answer: it was done, or it was not. Ask "
        "again with the same producer and number, or the same receipt"
    )


def _history_of(answer: object) -> bytes:
    """Return the history of the leases in an answer; empty if it has none."""
    if isinstance(answer, ShardLeases):
        return _history_of(answer.parts[0][1]) if answer.parts else b""
    if isinstance(answer, Leased) and isinstance(answer.lease, Proved):
        return answer.lease.history
    return b""


def _fitting(rows: list[Row], size: int) -> list[Row]:
    """Return the first rows that fit into `size` bytes, and at least one."""
    # Usually all fit, which an upper bound for headers shows without reading them.
    if sum([len(row.body or b"") for row in rows]) + len(rows) * _BESIDE_BYTES_MAX <= size:
        return rows
    for at, row in enumerate(rows):
        size -= row.size()
        if size < 0 and at:
            return rows[:at]
    return rows


async def _await(step: object) -> pa.RecordBatch | None:
    return cast("pa.RecordBatch | None", await cast("asyncio.Future[object]", step))
