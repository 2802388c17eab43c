"""An engine in another process, over a line.

Rule 1: a call that may be repeated is, for some time, when the line is lost: whoever opens the
folder next, or the server when it is back, answers it.
Rule 2: any other one that was sent and not answered is UNKNOWN, and says so.
Rule 3: what was handed out to a call that was cancelled is given back, however late its answer.
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
from millrace.client.backup import Backup
from millrace.client.health import Health
from millrace.client.line import Answered, Begun, Line, Lost
from millrace.client.reading import read_in_steps
from millrace.client.repaired import Repaired
from millrace.client.repeats import may_repeat
from millrace.client.submitting import Again, Asked
from millrace.client.written import Written
from millrace.core import exact
from millrace.core.across_commands import LeasedAcross
from millrace.core.answers import Leased, QueueRef
from millrace.core.commands import Command, Transaction
from millrace.core.fold import Reader, ShardMeta
from millrace.core.model import Cell, History, Kind, LeaseId, QueueSpec, Row, ShardId
from millrace.core.receipt import Proved, Receipt, read, write
from millrace.core.session_commands import Claim
from millrace.core.topic_cells import SubscriptionCell, TopicCell
from millrace.engine.forward_waiters import Fates
from millrace.engine.request import undo_of
from millrace.errors import Closed, Forged, Invalid, MillraceError, Retry, Unknown
from millrace.meter import Gauges
from millrace.rpc import calls
from millrace.rpc.calls import (
    Ask,
    Call,
    Named,
    Speak,
    Tell,
)

if TYPE_CHECKING:
    from millrace.maintenance.backup import Told
    from millrace.telemetry import Telemetry

T = TypeVar("T")

_BESIDE_BYTES_MAX = limits.HEADER_BYTES_MAX + limits.KEY_BYTES_MAX
_KIND_NAMES = {kind: name for name, kind in calls.CELL_KINDS.items()}


class RemoteEngine:
    """The engine of whoever has the folder open, or of a server."""

    def __init__(self, patience: float = limits.WIRE_PATIENCE_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.patience = patience
        """For how long a call that may be repeated is."""
        self._line: Line = cast("Line", None)
        self._closed = False
        self._turns = count(int.from_bytes(os.urandom(4)))
        self._ahead: dict[tuple[ShardId, int], list[Row]] = {}
        """Messages that came with the answer of a lease call, by the first one's seq."""
        self._written = Written()
        self.care = RemoteCare(self)
        self.telemetry: Telemetry | None = None
        self.is_far = True

    def use(self, line: Line) -> None:
        """Have calls carried by this line."""
        self._line = line

    @property
    def where(self) -> str:
        return self._line.where

    @property
    def is_here(self) -> bool:
        """Whether paths of files mean the same to that engine."""
        return self._line.is_here

    # --- The line -------------------------------------------------------------------------------

    async def call(self, call: Call, *, repeat: bool = True) -> Answered:
        """Have a call made, again where it may be and the line was lost.

        Raises:
            Closed: nobody answers, or this was closed; nothing was accepted.
            Unknown: it was sent, and nobody knows what became of it.
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
                return await self._line.call(call)
            except Lost as lost:
                was_sent = was_sent or lost.sent
                error = _unknown(self.where) if was_sent else _unheard(self.where, lost)
                if (lost.sent and not repeat) or lost.lasts or self._loop.time() + pause > deadline:
                    raise error from lost
            except Closed as closed:
                # Whoever had it ends. Another may come.
                if self._closed or self._loop.time() + pause > deadline:
                    raise _unknown(self.where) if was_sent else closed from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, limits.WIRE_PAUSE_SECONDS_MAX)

    def late(self, call: Call, answered: Answered) -> None:
        """The answer to a call that nobody waits for any more."""
        if isinstance(call, Ask):
            history = _history_of(answered.value)
            for shard, undo in undo_of(call.shard, call.command, answered.value, history):
                self._line.tell(Tell(shard, undo))

    async def _value(self, call: Call, kind: type[T]) -> T:
        return cast("T", (await self.call(call)).value)

    # --- Commands -------------------------------------------------------------------------------

    async def ask(self, shard: ShardId, command: Command, kind: type[T], *, wait_ms: int = 0) -> T:
        answered = await self.call(Ask(shard, wait_ms, command), repeat=may_repeat(command))
        return cast("T", self._value_of(shard, answered))

    def _value_of(self, shard: ShardId, answered: Answered) -> object:
        """The answer of a command; rows that came with it are kept for whoever asks for them."""
        if answered.rows:
            if len(self._ahead) >= limits.WIRE_ROWS_AHEAD_MAX:
                del self._ahead[next(iter(self._ahead))]
            self._ahead[shard, answered.rows[0].seq] = answered.rows
        return answered.value

    def submit(self, shard: ShardId, command: Command, wait_ms: int = 0) -> Asked:
        self._check_open()
        begun = self._line.begin(Ask(shard, wait_ms, command))
        if begun is None:
            raise Closed(f"{self.where} cannot be asked at once")
        return cast("Asked", begun)

    def then(self, asked: Asked, tell: Callable[[object], None]) -> None:
        cast("Begun", asked).then(tell)

    def heard(self, asked: Asked) -> object:
        begun = cast("Begun", asked)
        call = cast("Ask", begun.call)
        try:
            return self._value_of(call.shard, begun.result())
        except Closed as error:
            # Whoever had it ends. Another may come.
            raise Again from error
        except Lost as lost:
            if lost.sent and not may_repeat(call.command):
                raise _unknown(self.where) from lost
            raise Again from lost

    def take_back(self, asked: Asked) -> None:
        cast("Begun", asked).give_up()

    def rows_at_hand(self, shard: ShardId, seqs: BitMap64, size: int) -> list[Row] | None:
        if not seqs:
            return []
        found = self._ahead.pop((shard, seqs.min()), None) if self._ahead else None
        if found is None or len(found) != len(seqs) or found[-1].seq != seqs.max():
            return None
        return found if len(found) == 1 else _fitting(found, size)

    def tell(self, shard: ShardId, command: Command) -> None:
        self._check_open()
        self._line.tell(Tell(shard, command))

    def speak(self, shard: ShardId, claim: Claim) -> None:
        self._check_open()
        self._line.tell(Speak(shard, claim))

    async def transact(self, command: Transaction) -> tuple[object, ...]:
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
        found = self.rows_at_hand(shard, seqs, size)
        if found is not None:
            return found
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
        found = self.batches(shard, after, upto, reader)
        if threading.get_ident() == self._thread:
            raise Invalid(
                "an Arrow reader of another process's rows would stop the event loop, which has "
                "to fetch them: take `batches` in a coroutine, or pull in another thread",
                field="loop",
            )
        while True:
            step = anext(found, None)
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
                async with aclosing(self._line.batches(call)) as batches:
                    async for batch in batches:
                        yield batch
                        # After a lost line it goes on from here: the pin still holds.
                        after = batch.column("seq")[-1].as_py()
                        deadline = self._loop.time() + self.patience
                return
            except Lost as lost:
                if lost.lasts or self._loop.time() + pause > deadline:
                    raise _unheard(self.where, lost) from lost
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

    async def arrived(self, shard: ShardId, first: int, count: int) -> Fates:
        return await self._value(calls.Arrive(shard, first, count), dict)

    async def trouble(self, shard: ShardId) -> dict[int, MillraceError]:
        return await self._value(calls.ListTrouble(shard), dict)

    async def spec(self, shard: ShardId) -> QueueSpec:
        return await self._value(calls.ReadSpec(shard), QueueSpec)

    async def meta(self, shard: ShardId) -> ShardMeta:
        return await self._value(calls.ReadMeta(shard), ShardMeta)

    async def seq_at(self, shard: ShardId, time_ms: int) -> int:
        return await self._value(calls.FindSeq(shard, time_ms), int)

    async def name_of(self, shard: ShardId) -> Named | None:
        return cast("Named | None", (await self.call(calls.FindName(shard))).value)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._line.ahead_ms()

    # --- Receipts -------------------------------------------------------------------------------

    def history(self, shard: ShardId, lease: LeaseId) -> History:
        return History(_proved(lease).history)

    def seal(self, receipt: Receipt) -> str:
        return write(receipt, _proved(receipt.lease).proof)

    def sealed(
        self, shard: ShardId, lease: LeaseId, proved: Proved, seqs: Sequence[int]
    ) -> list[str]:
        return self._written.write(shard, lease, proved, seqs)

    def unseal(self, text: str) -> Receipt:
        known = self._written.take(text)
        if known is not None:
            return known
        plain = exact.text(text)
        if plain is None:
            raise Forged("a receipt is text", field="receipt")
        # Whether the proof holds is judged by the engine that is asked.
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
        await self._line.close()


class RemoteCare:
    """Care of the data of an engine in another process."""

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    async def backup(self, into: Path, told: Told, *, follow: bool) -> Backup:
        """See `Millrace.backup`. The folder is one of the machine that the engine runs on, which is
        asked now and then how far it is."""
        call = calls.BackUp(_place(into, is_here=self._engine.is_here), follow)
        asking = asyncio.ensure_future(self._tell(told))
        try:
            made = cast("calls.BackupFacts", (await self._engine.call(call, repeat=False)).value)
        finally:
            asking.cancel()
            await asyncio.wait([asking])
        path, first, last, time_ms, size = made
        told(size, size)
        return Backup(Path(path), first, last, datetime.fromtimestamp(time_ms / 1000, UTC), size)

    async def _tell(self, told: Told) -> None:
        """Tell how far a backup is, until this is cancelled; whoever makes it tells what fails."""
        with suppress(MillraceError):
            while True:
                await asyncio.sleep(limits.BACKUP_TOLD_SECONDS)
                copied, total = await self.backing_up()
                if total:
                    told(copied, total)

    async def backing_up(self) -> tuple[int, int]:
        """See `Care.backing_up`."""
        found = (await self._engine.call(calls.ReadBackup())).value
        return cast("tuple[int, int]", found)

    async def unfollow(self) -> bool:
        """See `Millrace.unfollow`."""
        return cast("bool", (await self._engine.call(calls.Unfollow(), repeat=False)).value)

    async def health(self) -> Health:
        """See `Millrace.health`."""
        found = (await self._engine.call(calls.ReadHealth())).value
        return Health(
            *cast("tuple[str | None, int, None, tuple[str, ...], None, int, bool, None]", found)
        )

    async def repair(
        self, shards: Sequence[ShardId], export: Path | None, *, drop: bool
    ) -> Repaired:
        """See `Millrace.repair`. The folder is one of the machine that the engine runs on."""
        place = "" if export is None else _place(export, is_here=self._engine.is_here)
        call = calls.Repair(tuple(shards), place, drop)
        found = (await self._engine.call(call, repeat=False)).value
        return Repaired(*cast("tuple[int, int, int, bool]", found))

    async def gauges(self) -> Gauges:
        """Counted where the engine is."""
        return cast("Gauges", (await self._engine.call(calls.ReadGauges())).value)

    def keep_room(self, shards: Iterable[ShardId]) -> None:
        """Nothing: whoever serves the engine has told it which shards those are."""


def _place(path: Path, *, is_here: bool) -> str:
    """The whole path, as the other side must be told it."""
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


def _unheard(where: str, lost: Lost) -> MillraceError:
    """Nothing was asked: because nobody answers, or because of what somebody has to change."""
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
    """The history of what an answer has handed out."""
    if isinstance(answer, LeasedAcross):
        return _history_of(answer.parts[0][1]) if answer.parts else b""
    if isinstance(answer, Leased) and isinstance(answer.lease, Proved):
        return answer.lease.history
    return b""


def _fitting(rows: list[Row], size: int) -> list[Row]:
    """As many as fit, and the first in any case."""
    # Mostly all do, as can be seen without a look at each header.
    if sum([len(row.body or b"") for row in rows]) + len(rows) * _BESIDE_BYTES_MAX <= size:
        return rows
    for at, row in enumerate(rows):
        size -= row.size()
        if size < 0 and at:
            return rows[:at]
    return rows


async def _await(step: object) -> pa.RecordBatch | None:
    return cast("pa.RecordBatch | None", await cast("asyncio.Future[object]", step))
