"""Whose shard it is: the catalog, read the other way round."""

from __future__ import annotations

from millrace.core.codec import decode_cell
from millrace.core.model import CATALOG, Kind, QueueCell, ShardId
from millrace.core.topic_cells import TopicCell
from millrace.rpc.calls import Named
from millrace.store.base import Store


class Names:
    """The names of shards, as far as they are committed.

    A shard's number is never given twice, so that what was found once holds; of one that is not
    known the catalog is read, if it has changed since it was read last.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[ShardId, Named] = {}
        self._index = -1

    def find(self, shard: ShardId) -> Named | None:
        """Whose shard it is, or was until a moment ago."""
        found = self._known.get(shard)
        if found is None:
            meta = self._store.meta(CATALOG)
            if meta is not None and meta.index != self._index:
                self._index = meta.index
                self._known = self._read()
                found = self._known.get(shard)
        return found

    def _read(self) -> dict[ShardId, Named]:
        known = {CATALOG: Named("catalog", "", "", (CATALOG,))}
        for kind in (Kind.QUEUE, Kind.TOPIC):
            for _, key, value in self._store.cells(CATALOG, kind):
                cell = decode_cell(kind, value)
                space, _, name = key.decode().partition("\0")
                if isinstance(cell, QueueCell):
                    shards = tuple(map(ShardId, cell.shards))
                    named = Named("queue", space, name, shards)
                    known |= dict.fromkeys(shards, named)
                elif isinstance(cell, TopicCell):
                    shard = ShardId(cell.shard)
                    known[shard] = Named("topic", space, name, (shard,))
        return known
