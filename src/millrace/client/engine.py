"""What the objects of the API stand on: an engine that takes commands and reads rows.

`embedded` has the node in the same process, `remote` asks one in another. So everything that
another process would have to be asked for is awaited.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa
from pyroaring import BitMap64

from millrace.client.health import Health
from millrace.client.repaired import Repaired
from millrace.core.answers import QueueRef
from millrace.core.commands import Command, Transaction
from millrace.core.fold import Reader, ShardMeta
from millrace.core.model import Cell, History, Kind, LeaseId, QueueSpec, Row, ShardId
from millrace.core.receipt import Proved, Receipt
from millrace.core.session_commands import Claim
from millrace.core.topic_cells import SubscriptionCell, TopicCell
from millrace.engine.forward_waiters import Fates
from millrace.errors import MillraceError
from millrace.meter import Gauges
from millrace.rpc.calls import Named

if TYPE_CHECKING:
    from millrace.client.backup import Backup
    from millrace.maintenance.backup import Told
    from millrace.telemetry import Telemetry

T = TypeVar("T")


class Care(Protocol):
    """Who looks after the data of an engine, on request."""

    async def backup(self, into: Path, told: Told, *, follow: bool) -> Backup:
        """See `Millrace.backup`."""
        ...

    async def backing_up(self) -> tuple[int, int]:
        """How many bytes of the backup that is being made were copied, and of how many; 0 of 0:
        none is."""
        ...

    async def unfollow(self) -> bool:
        """See `Millrace.unfollow`."""
        ...

    async def health(self) -> Health:
        """How the engine is, now."""
        ...

    async def repair(
        self, shards: Sequence[ShardId], export: Path | None, *, drop: bool
    ) -> Repaired:
        """See `Millrace.repair`; the shards are those of one queue or topic."""
        ...

    async def gauges(self) -> Gauges:
        """What the engine has counted since it was opened, and how large it is."""
        ...

    def keep_room(self, shards: Iterable[ShardId]) -> None:
        """Let what is published to these shards with the header `who` use a reserve that is kept
        while disk or memory is short; it is shared among those whom the header names.

        An engine in another process has been told so by its own server.
        """
        ...


class Engine(Protocol):
    """Takes commands, reads rows."""

    telemetry: Telemetry | None
    """Who makes spans and measurements of what is asked; None: nobody."""

    @property
    def where(self) -> str:
        """The folder or the address, for people to read."""
        ...

    @property
    def is_far(self) -> bool:
        """Whether it is another process's, which may end and begin again meanwhile."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether it was closed here; then nobody will answer any more."""
        ...

    async def ask(self, shard: ShardId, command: Command, kind: type[T], *, wait_ms: int = 0) -> T:
        """Have the command decided and committed; its answer is of the type `kind`.

        If the caller is cancelled, a command that was not decided yet never will be, and what a
        decided one handed out (a lease, a pin) is given back. Any other one is UNKNOWN.
        """
        ...

    def tell(self, shard: ShardId, command: Command) -> None:
        """Have the command decided some time; nobody waits for the answer."""
        ...

    def speak(self, shard: ShardId, claim: Claim) -> None:
        """Say that somebody speaks for a session who has no connection that lasts.

        It ends unless that is said again in time (`SESSION_SILENCE_SECONDS`).

        Raises:
            Stale: the claim is not the one by which the session is spoken for.
        """
        ...

    async def transact(self, command: Transaction) -> tuple[object, ...]:
        """Have several commands decided at once, all or nothing."""
        ...

    async def rows(
        self,
        shard: ShardId,
        seqs: BitMap64,
        size: int,
        lease: int | None = None,
        history: bytes = b"",
    ) -> list[Row]:
        """These rows, those left out that are not readable any more.

        Of messages that a lease call holds, name it: then whoever may work may read them, where
        another process has to be asked; those that it holds no more are left out there.

        It ends before the row with which they would have more than `size` bytes; the first one is
        always there.
        """
        ...

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        """The rows within (after, upto] that the reader sees; it may be pulled by any thread.

        That thread reads them; where it is the event loop's own, it may wait for a disk.

        Raises:
            SnapshotExpired: the reader's pin is gone; so at every step, never other rows.
        """
        ...

    def batches(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """As `scan`, for coroutines: the event loop never waits for a disk."""
        ...

    def packed(
        self, shard: ShardId, after: int, upto: int, reader: Reader, *, least: int
    ) -> AsyncGenerator[pa.RecordBatch | pa.Buffer, None]:
        """As `batches`; those of `least` bytes that lie in files as they would be sent come as
        their IPC messages, without the column `shard`."""
        ...

    async def peek(self, shard: ShardId, after: int, upto: int | None, count: int) -> list[Row]:
        """The first `count` visible rows within (after, upto], as of now.

        It ends early before the row with which they would have more than `PEEK_BYTES_MAX` bytes;
        the first one is always read.
        """
        ...

    async def cells(self, shard: ShardId, kind: Kind) -> dict[str, Cell]:
        """The committed cells of a kind whose keys are names, in their order."""
        ...

    async def producer_number(self, shard: ShardId, producer: str) -> int:
        """The last number of a producer that was committed; 0 if it is unknown."""
        ...

    async def find_queue(self, space: str, name: str) -> QueueRef | None:
        """Where a queue is, or None if there is none."""
        ...

    def turn(self) -> int:
        """A number that rises with each call: messages without a key take turns by it."""
        ...

    async def spaces(self) -> list[str]:
        """The spaces in which there are queues or topics, in order."""
        ...

    async def queue_names(self, space: str) -> list[str]:
        """The queues of a space, in order."""
        ...

    async def find_topic(self, space: str, name: str) -> ShardId | None:
        """The shard of a topic, or None if there is none."""
        ...

    async def topic_names(self, space: str) -> list[str]:
        """The topics of a space, in order."""
        ...

    async def subscriptions(self, shard: ShardId) -> dict[int, SubscriptionCell]:
        """The committed subscriptions of a topic."""
        ...

    async def topic_cell(self, shard: ShardId) -> TopicCell:
        """The topic's settings."""
        ...

    async def arrived(self, shard: ShardId, first: int, count: int) -> Fates:
        """What became of rows that were published to a topic, once every queue has them.

        Of an engine that was closed before they were forwarded, that they will be; or nothing.
        """
        ...

    async def trouble(self, shard: ShardId) -> dict[int, MillraceError]:
        """The subscriptions of a topic whose queues refuse what they are sent, and why."""
        ...

    async def spec(self, shard: ShardId) -> QueueSpec:
        """The queue's settings."""
        ...

    async def meta(self, shard: ShardId) -> ShardMeta:
        """The shard's counters."""
        ...

    async def seq_at(self, shard: ShardId, time_ms: int) -> int:
        """The first seq that is not older than `time_ms`."""
        ...

    def now_ms(self) -> int:
        """The time by which deadlines are judged, as far as it is known here."""
        ...

    def history(self, shard: ShardId, lease: LeaseId) -> History:
        """The history in which a lease was made that has just been handed out."""
        ...

    def seal(self, receipt: Receipt) -> str:
        """The receipt as text."""
        ...

    def unseal(self, text: str) -> Receipt:
        """The receipt behind the text; raises `Forged`."""
        ...

    def proved(
        self, shard: ShardId, number: int, history: bytes | None = None, *, session: bool = False
    ) -> Proved:
        """The number of a lease call or session that was just handed out, with its proof."""
        ...

    def judge(self, shard: ShardId, command: Command) -> Command:
        """The command of another process, whose leases and sessions are proved.

        Raises:
            Forged: one of them was handed out to nobody.
        """
        ...

    async def name_of(self, shard: ShardId) -> Named | None:
        """Whose shard it is; None if there is none."""
        ...

    @property
    def care(self) -> Care:
        """Who looks after the data on request."""
        ...

    async def close(self) -> None:
        """End; what was accepted is finished first."""
        ...
