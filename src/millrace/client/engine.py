"""What the objects of the API stand on: an engine that takes commands and reads rows.

`EmbeddedEngine` has the node in the same process; a client of a server will bring one of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Protocol, TypeVar, cast

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from millrace.core.commands import Command, Transaction
from millrace.core.fold import Reader, ShardMeta
from millrace.core.model import Kind, ProducerCell, QueueSpec, Row, ShardId
from millrace.core.receipt import Receipt
from millrace.errors import AcrossGroups, NotFound
from millrace.node import Node
from millrace.shard.request import Request

T = TypeVar("T")


class Engine(Protocol):
    """Takes commands, reads rows."""

    async def ask(self, shard: ShardId, command: Command, kind: type[T], *, wait_ms: int = 0) -> T:
        """Have the command decided and committed; its answer is of the type `kind`."""
        ...

    async def transact(self, command: Transaction) -> tuple[object, ...]:
        """Have several commands decided at once, all or nothing."""
        ...

    async def rows(self, shard: ShardId, seqs: BitMap64) -> list[Row]:
        """These rows, those left out that are not readable any more."""
        ...

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        """The rows within (after, upto] that the reader sees."""
        ...

    async def peek(self, shard: ShardId, after: int, count: int) -> list[Row]:
        """The first visible rows after a seq, as of now."""
        ...

    def producer_number(self, shard: ShardId, producer: str) -> int:
        """The last number of a producer that was committed; 0 if it is unknown."""
        ...

    def find_queue(self, space: str, name: str) -> tuple[ShardId, ...] | None:
        """The shards of a queue, or None if there is none."""
        ...

    def queue_names(self, space: str) -> list[str]:
        """The queues of a space, in order."""
        ...

    def spec(self, shard: ShardId) -> QueueSpec:
        """The queue's settings."""
        ...

    def meta(self, shard: ShardId) -> ShardMeta:
        """The shard's counters."""
        ...

    def seq_at(self, shard: ShardId, time_ms: int) -> int:
        """The first seq that is not older than `time_ms`."""
        ...

    def now_ms(self) -> int:
        """The engine's clock."""
        ...

    def seal(self, receipt: Receipt) -> str:
        """The receipt as text."""
        ...

    def unseal(self, text: str) -> Receipt:
        """The receipt behind the text; raises `Forged`."""
        ...

    async def close(self) -> None:
        """End; what was accepted is finished first."""
        ...


class EmbeddedEngine:
    """The engine of `millrace.open`: the node runs on the caller's event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()

    async def ask(self, shard: ShardId, command: Command, kind: type[T], *, wait_ms: int = 0) -> T:
        future: asyncio.Future[object] = self._loop.create_future()
        until = self._node.now_ms() + wait_ms if wait_ms else 0
        host = self._node.host_of(shard)
        host.submit(Request(shard, command, future, wait_until_ms=until))
        return cast("T", await future)

    async def transact(self, command: Transaction) -> tuple[object, ...]:
        hosts = {self._node.host_of(shard) for shard, _ in command.parts}
        if len(hosts) > 1:
            raise AcrossGroups(
                "the queues of a transaction must be in one commit group; make one beside the other"
            )
        if not hosts:
            return ()
        return await self.ask(command.parts[0][0], command, tuple)

    async def rows(self, shard: ShardId, seqs: BitMap64) -> list[Row]:
        store = self._node.store
        if not store.hot(shard, seqs):
            await self._node.reading.submit(store.warm(shard, seqs))
        return store.rows(shard, seqs)

    def scan(
        self, shard: ShardId, after: int, upto: int, reader: Reader
    ) -> Iterator[pa.RecordBatch]:
        return self._node.store.scan(shard, after, upto, reader)

    async def peek(self, shard: ShardId, after: int, count: int) -> list[Row]:
        store, found = self._node.store, BitMap64()
        upto = self.meta(shard).last_seq
        for batch in store.scan(shard, after, upto, Reader()):
            found |= BitMap64(batch.column("seq").slice(0, count - len(found)).to_numpy())
            if len(found) >= count:
                break
        return await self.rows(shard, found) if found else []

    def producer_number(self, shard: ShardId, producer: str) -> int:
        self.meta(shard)
        for kind, key, value in self._node.store.cells(shard):
            if kind is Kind.PRODUCER and key == producer.encode():
                return msgspec.msgpack.decode(value, type=ProducerCell).last
        return 0

    def find_queue(self, space: str, name: str) -> tuple[ShardId, ...] | None:
        return self._node.find_queue(space, name)

    def queue_names(self, space: str) -> list[str]:
        return self._node.queue_names(space)

    def spec(self, shard: ShardId) -> QueueSpec:
        view = self._node.host_of(shard).view(shard)
        if view is None:
            raise NotFound("the queue was deleted", field="queue")
        return view.spec

    def meta(self, shard: ShardId) -> ShardMeta:
        meta = self._node.store.meta(shard)
        if meta is None:
            raise NotFound("the queue was deleted", field="queue")
        return meta

    def seq_at(self, shard: ShardId, time_ms: int) -> int:
        return self._node.store.seq_at(shard, time_ms)

    def now_ms(self) -> int:
        return self._node.now_ms()

    def seal(self, receipt: Receipt) -> str:
        return self._node.seal(receipt)

    def unseal(self, text: str) -> Receipt:
        return self._node.unseal(text)

    async def close(self) -> None:
        await self._node.close()
