"""Interface of the engine behind the objects of the API: it takes commands and reads rows.

`embedded` runs the node in the same process, `remote` calls another process. Methods that may need
a call to another process are therefore coroutines.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa
from pyroaring import BitMap64

from millrace.client.maintenance_results import Backup, Health, Repaired
from millrace.core.answers import QueueRef
from millrace.core.cells import Cell, Kind, SubscriptionCell, TopicCell
from millrace.core.commands import ApplyTransaction, Command
from millrace.core.format.receipt import Proved, Receipt
from millrace.core.model import (
    History,
    LeaseId,
    Row,
    ShardId,
)
from millrace.core.session_commands import Claim
from millrace.core.spec import QueueSpec
from millrace.core.state.fold import Reader, ShardMeta
from millrace.engine.forward_waiters import ForwardOutcomes
from millrace.errors import MillraceError
from millrace.instruments import Gauges
from millrace.rpc.calls import ShardName

if TYPE_CHECKING:
    from millrace.maintenance.backup import ProgressCallback
    from millrace.telemetry import Telemetry

T = TypeVar("T")


class Maintenance(Protocol):
    """Maintenance of an engine's data, on request."""

    async def backup(self, into: Path, told: ProgressCallback, *, follow: bool) -> Backup:
        """See `Millrace.backup`."""
        ...

    async def backing_up(self) -> tuple[int, int]:
        """Return the bytes copied and the total of the running backup; 0 of 0 if none is
        running."""
        ...

    async def unfollow(self) -> bool:
        """See `Millrace.unfollow`."""
        ...

    async def health(self) -> Health:
        """Return the current health of the engine."""
        ...

    async def repair(
        self, shards: Sequence[ShardId], export: Path | None, *, drop: bool
    ) -> Repaired:
        """See `Millrace.repair`; the shards are those of one queue or topic."""
        ...

    async def gauges(self) -> Gauges:
        """Return the engine's counters since it was opened, and its sizes."""
        ...

    def keep_room(self, shards: Iterable[ShardId]) -> None:
        """Let messages of these shards with the header `who` use a reserve when disk or memory is
        short.

        The reserve is shared among those that the header names. A remote engine was configured by
        its own server.
        """
        ...


class Engine(Protocol):
    """Takes commands, reads rows."""

    telemetry: Telemetry | None
    """Makes spans and measurements of calls; None: disabled."""

    @property
    def where(self) -> str:
        """Folder or address, for messages."""
        ...

    @property
    def is_remote(self) -> bool:
        """True for an engine of another process, which may end and be replaced by another one."""
        ...

    @property
    def is_closed(self) -> bool:
        """True after it was closed here; then no call is answered any more."""
        ...

    async def ask(self, shard: ShardId, command: Command, kind: type[T], *, wait_ms: int = 0) -> T:
        """Submit a command and wait until it is committed; return its answer, of the type `kind`.

        If the caller is cancelled, a command that was not decided yet is withdrawn, and what a
        decided one granted (a lease, a pin) is released. The outcome of any other command is
        unknown.
        """
        ...

    def tell(self, shard: ShardId, command: Command) -> None:
        """Submit a command without waiting for its answer."""
        ...

    def heartbeat(self, shard: ShardId, claim: Claim) -> None:
        """Send a heartbeat for a session whose consumer has no permanent connection.

        The session ends if the next heartbeat takes longer than `SESSION_SILENCE_SECONDS`.

        Raises:
            Stale: the claim is not the session's current one.
        """
        ...

    async def transact(self, command: ApplyTransaction) -> tuple[object, ...]:
        """Submit several commands atomically; return their answers."""
        ...

    async def rows(
        self,
        shard: ShardId,
        seqs: BitMap64,
        size: int,
        lease: int | None = None,
        history: bytes = b"",
    ) -> list[Row]:
        """Return these rows, except rows that are not readable any more.

        It stops before the row that would exceed `size` bytes, but always returns the first. For
        messages of a lease call, pass its `lease` and `history`: that suffices for access from
        another process, and messages that it no longer holds are left out.
        """
        ...

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows within (after, upto] that the reader sees, on any thread.

        The thread that iterates reads the rows; it may block on the disk, even if it is the event
        loop's.

        Raises:
            SnapshotExpired: the reader's pin is gone; checked at every step, so that rows never
                change.
        """
        ...

    def batches(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """As `scan`, for coroutines: the event loop never blocks on the disk."""
        ...

    def packed(
        self, shard: ShardId, after: int, upto: int, reader: Reader, *, least: int
    ) -> AsyncGenerator[pa.RecordBatch | pa.Buffer, None]:
        """As `batches`; batches of at least `least` bytes that are stored in files as they would be
        sent come as their IPC messages, without the column `shard`."""
        ...

    async def peek(self, shard: ShardId, after: int, upto: int | None, count: int) -> list[Row]:
        """Return the first `count` visible rows within (after, upto], as of now.

        It stops before the row that would exceed `PEEK_BYTES_MAX` bytes, but always returns the
        first.
        """
        ...

    async def cells(self, shard: ShardId, kind: Kind) -> dict[str, Cell]:
        """Return the committed cells of a kind whose keys are names, sorted by name."""
        ...

    async def producer_number(self, shard: ShardId, producer: str) -> int:
        """Return the last committed number of a producer; 0 if it is unknown."""
        ...

    async def find_queue(self, space: str, name: str) -> QueueRef | None:
        """Return a reference to a queue, or None if it does not exist."""
        ...

    def turn(self) -> int:
        """Return a number that increases with each call, for round-robin routing of messages."""
        ...

    async def spaces(self) -> list[str]:
        """Return the spaces that have queues or topics, sorted."""
        ...

    async def queue_names(self, space: str) -> list[str]:
        """Return the queues of a space, sorted."""
        ...

    async def find_topic(self, space: str, name: str) -> ShardId | None:
        """Return the shard of a topic, or None if it does not exist."""
        ...

    async def topic_names(self, space: str) -> list[str]:
        """Return the topics of a space, sorted."""
        ...

    async def subscriptions(self, shard: ShardId) -> dict[int, SubscriptionCell]:
        """Return the committed subscriptions of a topic, by number."""
        ...

    async def topic_cell(self, shard: ShardId) -> TopicCell:
        """Return the settings of a topic."""
        ...

    async def arrived(self, shard: ShardId, first: int, count: int) -> ForwardOutcomes:
        """Return the fates of rows published to a topic, once every queue has them.

        If the engine is closed before they are forwarded: that they will be; or nothing.
        """
        ...

    async def trouble(self, shard: ShardId) -> dict[int, MillraceError]:
        """Return the subscriptions of a topic whose queues refuse messages, and the reasons."""
        ...

    async def spec(self, shard: ShardId) -> QueueSpec:
        """Return the settings of the queue."""
        ...

    async def meta(self, shard: ShardId) -> ShardMeta:
        """Return the counters of the shard."""
        ...

    async def seq_at(self, shard: ShardId, time_ms: int) -> int:
        """Return the first seq that is not older than `time_ms`."""
        ...

    def now_ms(self) -> int:
        """Return the engine's clock in milliseconds, which decides about deadlines; approximate if
        remote."""
        ...

    def history(self, shard: ShardId, lease: LeaseId) -> History:
        """Return the history of a lease that was just granted."""
        ...

    def seal(self, receipt: Receipt) -> str:
        """Return a receipt as signed text."""
        ...

    def unseal(self, text: str) -> Receipt:
        """Return the receipt of a text; raises `Forged`."""
        ...

    def proved(
        self, shard: ShardId, number: int, history: bytes | None = None, *, session: bool = False
    ) -> Proved:
        """Return the number of a lease call or session that was just granted, with its proof."""
        ...

    def judge(self, shard: ShardId, command: Command) -> Command:
        """Verify the proofs of leases and sessions in a command of another process.

        Raises:
            Forged: one of them was never granted.
        """
        ...

    async def name_of(self, shard: ShardId) -> ShardName | None:
        """Return the queue or topic that a shard belongs to, or None."""
        ...

    @property
    def maintenance(self) -> Maintenance:
        """Maintenance of the data."""
        ...

    async def close(self) -> None:
        """Close the engine; accepted commands are finished first."""
        ...


class Resubmit(Exception):
    """The outcome of a command is unknown or negative, and it is safe to submit it again."""


class PendingCommand(Protocol):
    """A submitted command, as a handle for the engine it was submitted to."""


class CallbackEngine(Protocol):
    """An engine that takes commands with callbacks, without a task per command.

    Commands that need cold rows would block on the disk; submit those with `ask`.
    """

    def submit(self, shard: ShardId, command: Command, wait_ms: int = 0) -> PendingCommand:
        """Submit a command.

        Raises:
            MillraceError: the command was not submitted.
        """
        ...

    def then(self, asked: PendingCommand, tell: Callable[[object], None]) -> None:
        """Set the callback, called once when `heard` has the result, and never before this
        returns."""
        ...

    def heard(self, asked: PendingCommand) -> object:
        """Return the answer of a command, in its callback or later.

        Raises:
            MillraceError: the command was refused.
            Resubmit: the command has to be submitted again.
        """
        ...

    def take_back(self, asked: PendingCommand) -> None:
        """Cancel a command: it is withdrawn, or what it was granted is released."""
        ...

    def rows_in_memory(self, shard: ShardId, seqs: BitMap64, size: int) -> list[Row] | None:
        """As `Engine.rows`, if it needs no waiting; else None."""
        ...

    def proved(
        self, shard: ShardId, number: int, history: bytes | None = None, *, session: bool = False
    ) -> Proved:
        """See `Engine.proved`."""
        ...

    def sealed(
        self, shard: ShardId, lease: LeaseId, proved: Proved, seqs: Sequence[int]
    ) -> list[str]:
        """Return the receipts of a lease call, as texts that `unseal` then recognizes quickly."""
        ...

    def unseal(self, text: str) -> Receipt:
        """See `Engine.unseal`."""
        ...
