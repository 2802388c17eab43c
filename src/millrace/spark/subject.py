"""The queue that is read, as seen by the driver."""

from __future__ import annotations

import msgspec

from millrace.client.millrace import Millrace
from millrace.client.position import read_position, see_places
from millrace.client.queue import Queue, engine_and_shards
from millrace.client.snapshot_token import read_snapshot_token
from millrace.core.state.fold import ShardMeta
from millrace.errors import Invalid
from millrace.spark.options import Options, View
from millrace.spark.start import Start, read_places


class Subject(msgspec.Struct, frozen=True):
    """A queue with the metadata of its shards at one moment."""

    queue: Queue
    metas: tuple[ShardMeta, ...]

    @property
    def shards(self) -> tuple[int, ...]:
        """The ids of its shards."""
        return tuple(self.queue.shards.ids)

    @property
    def history(self) -> str:
        """The queue's history, in hex."""
        return self.metas[0].history.hex()

    @property
    def lasts(self) -> tuple[int, ...]:
        """The last seq of each shard."""
        return tuple(meta.last_seq for meta in self.metas)

    @property
    def row_bytes(self) -> int:
        """The average size of a row in bytes."""
        rows = sum(meta.published for meta in self.metas)
        return max(sum(meta.weight for meta in self.metas) // rows, 1) if rows else 1

    def check_view(self, view: View) -> None:
        """Check that the queue supports the view.

        Raises:
            Invalid: it does not.
        """
        is_keyed = self.metas[0].keyed
        if view == "log" and is_keyed:
            raise Invalid(
                f"queue {self.queue.name!r} is keyed, so that older revisions are gone: there is "
                "no log of it; use view=changes, which shows every key once, deletes included",
                field="view",
            )
        if view == "latest" and not is_keyed:
            raise Invalid(
                f"queue {self.queue.name!r} is not keyed, so that no row is the latest of its key; "
                "use view=log",
                field="view",
            )

    async def places(self, start: Start, field: str, *, is_end: bool = False) -> tuple[int, ...]:
        """Return the last seq before a place, in each shard.

        Raises:
            Invalid: it is not a place in this queue.
            NotFound: it is the snapshot or the position of another one.
            RolledBack: rows up to that position were rolled back.
        """
        engine, shards = engine_and_shards(self.queue)
        if start.position:
            kept = read_position(start.position, shards)
            return await see_places(engine, shards, kept, "begin with earliest")
        if start.ticket:
            return read_snapshot_token(self.queue, start.ticket).boundaries
        if start.time_ms is not None:
            return tuple([await engine.seq_at(one, start.time_ms) - 1 for one in shards.ids])
        if start.is_latest:
            return self.lasts
        return read_places(start.seqs, self.lasts, field, is_end=is_end)


async def look(m: Millrace, options: Options) -> Subject:
    """Find the queue and read its metadata.

    Raises:
        NotFound: no queue has this name.
        Invalid: it does not support the requested view.
    """
    queue = await m.find(options.queue, space=options.space)
    engine, shards = engine_and_shards(queue)
    metas = tuple([await engine.meta(shard) for shard in shards.ids])
    subject = Subject(queue, metas)
    subject.check_view(options.view)
    return subject
