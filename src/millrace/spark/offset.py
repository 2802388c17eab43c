"""How far a stream has read, as Spark's checkpoint keeps it.

Rule 1: an offset says which rows its batch has, alone: where they begin (Spark does not keep the
start of the first batch), where they end, and the snapshot that they are read from.
Rule 2: it names the queue by what no other queue ever has, so that one that was made anew under the
same name is noticed.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace.decoding import json_decoder
from millrace.errors import Invalid
from millrace.sinks.boundary import Boundary, Place, Span


class Offset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a batch, and where it began. Fields are only ever added, with a default."""

    version: Literal[1]
    space: str
    queue: str
    shards: tuple[int, ...]
    """Their ids."""
    history: str
    """In hex."""
    cursor: str
    """Its name."""
    ids: tuple[int, ...]
    """Which cursor of that name it is, in each shard; empty: it is not made yet."""
    ticket: str
    """The snapshot that the rows are read from; empty where there are none."""
    after: tuple[int, ...] = msgspec.field(name="from")
    """The rows are those after these seqs ..."""
    seqs: tuple[int, ...] = ()
    """... up to and with these."""

    @classmethod
    def of(cls, told: object) -> Offset:
        """What Spark gives back of `shown`, as a dictionary or as JSON.

        Raises:
            Invalid: it is no offset of this source.
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
        """The offset as Spark wants it: a dictionary that becomes JSON."""
        found: dict[str, object] = msgspec.to_builtins(self)
        return found

    def place(self) -> Place:
        """Where it ends, as sinks store it."""
        return Place(self.space, self.queue, self.shards, self.history, self.seqs)

    def span(self) -> Span:
        """The rows of its batch."""
        upto = self.place()
        after = msgspec.structs.replace(upto, seqs=self.after)
        return Span(Boundary((after,)), Boundary((upto,)))


_encode = msgspec.json.encode
_decoder = json_decoder(Offset)
