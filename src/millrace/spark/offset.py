"""The offset of a stream, as Spark's checkpoint stores it.

Rule 1: an offset alone determines the rows of its batch: their start (Spark does not store the
start of the first batch), their end, and the snapshot from which they are read.

Rule 2: it identifies the queue by ids that are never reused, so that a queue that was created again
under the same name is detected.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace.decoding import json_decoder
from millrace.errors import Invalid
from millrace.sinks.boundary import Boundary, Place, Span


class Offset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The start and end of a batch. Fields are only ever added, with a default."""

    version: Literal[1]
    space: str
    queue: str
    shards: tuple[int, ...]
    """The ids of the queue's shards."""
    history: str
    """The queue's history, in hex."""
    cursor: str
    """Name of the cursor."""
    ids: tuple[int, ...]
    """The id of the cursor in each shard; empty: it is not created yet."""
    ticket: str
    """The snapshot from which the rows are read; empty if there are no rows."""
    after: tuple[int, ...] = msgspec.field(name="from")
    """The rows begin after these seqs ..."""
    seqs: tuple[int, ...] = ()
    """... and end with these, inclusive."""

    @classmethod
    def of(cls, told: object) -> Offset:
        """Parse the result of `shown`, as a dictionary or as JSON.

        Raises:
            Invalid: it is not an offset of this source.
        """
        try:
            return _decoder.decode(told if isinstance(told, str | bytes) else _encode(told))
        except msgspec.MsgspecError as error:
            raise Invalid(
                f"the checkpoint holds an offset that is none of a Millrace queue: {error}; is it "
                "the checkpoint of another query?",
                field="checkpointLocation",
            ) from None

    def shown(self) -> dict[str, object]:
        """Return the offset as a dictionary, which Spark converts to JSON."""
        found: dict[str, object] = msgspec.to_builtins(self)
        return found

    def place(self) -> Place:
        """Return the end of the batch, as sinks store it."""
        return Place(self.space, self.queue, self.shards, self.history, self.seqs)

    def span(self) -> Span:
        """Return the span of the batch."""
        upto = self.place()
        after = msgspec.structs.replace(upto, seqs=self.after)
        return Span(Boundary((after,)), Boundary((upto,)))


_encode = msgspec.json.encode
_decoder = json_decoder(Offset)
