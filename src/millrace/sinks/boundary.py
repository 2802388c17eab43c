"""Boundaries and spans: the progress that a sink stores with its rows, and the test for repeated
spans.

Rule 1: a boundary is a place in every shard of every source, and is compared place by place.

Rule 2: rows are carried by spans, (after, upto]. A span that ends at or before the stored boundary
is a repeat; one that begins at it is applied; any other one overlaps or leaves a gap, and is
refused. The end alone would not suffice: after a lost checkpoint, spans may be cut differently.

Rule 3: a boundary of a queue that was deleted and created again does not apply to the new one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.decoding import json_decoder
from millrace.errors import Invalid, Refused, Stale


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The position up to which one queue was read."""

    space: str
    queue: str
    shards: tuple[int, ...]
    """The ids of its shards, which are never reused: a queue that was created again has others."""
    history: str
    """In hex. A restored copy has a different one, and may have other rows under the same seqs."""
    seqs: tuple[int, ...]
    """The last seq that was read, for each shard."""

    def is_of(self, other: Place) -> bool:
        """Return True if both are places in the same queue."""
        return (self.space, self.queue, self.shards) == (other.space, other.queue, other.shards)


class Boundary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The position up to which all sources were read; it has at least one place."""

    places: tuple[Place, ...]

    @property
    def number(self) -> int:
        """A number that rises with every later boundary: a version for rows and tables."""
        return sum(sum(place.seqs) for place in self.places)

    def text(self) -> str:
        """Return the boundary as JSON, to be stored."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of_text(cls, text: str | bytes) -> Boundary:
        """Parse the text that `text` returned.

        Raises:
            Invalid: it is not a boundary.
        """
        try:
            return _decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise Invalid(
                f"this is not the text of a boundary: {error}", field="boundary"
            ) from None

    def covers(self, other: Boundary) -> bool:
        """Return True if everything up to `other` was read here, too.

        Raises:
            Refused: they are boundaries of different queues.
        """
        return all(seq >= until for seq, until in _pairs(self, other))


_decoder = json_decoder(Boundary)


class Span(msgspec.Struct, frozen=True):
    """The rows after one boundary, up to and including another."""

    after: Boundary
    upto: Boundary


def begins(boundary: Boundary) -> Boundary:
    """Return the boundary of the same queues before their first rows."""
    places = (
        msgspec.structs.replace(place, seqs=(0,) * len(place.seqs)) for place in boundary.places
    )
    return Boundary(tuple(places))


def goes_on(stored: Boundary | None, span: Span) -> bool:
    """Return True if a span is to be applied to a sink at `stored`, False if it was applied
    already.

    Raises:
        Stale: it overlaps applied spans, or leaves a gap.
        Refused: the sink holds rows of other queues.
    """
    if stored is None:
        return True
    if stored.covers(span.upto):
        return False
    if all(seq == place for seq, place in _pairs(stored, span.after)):
        return True
    raise Stale(
        f"the sink stands at {_shown(stored)}, and the rows begin after {_shown(span.after)}: they "
        "overlap, or leave something out; start again from the sink's own boundary",
        field="boundary",
    )


def _pairs(one: Boundary, other: Boundary) -> Sequence[tuple[int, int]]:
    """Pair the seqs of both boundaries, shard by shard."""
    found: list[tuple[int, int]] = []
    if len(one.places) != len(other.places):
        raise Refused(
            f"one boundary is of {len(one.places)} queues, the other of {len(other.places)}: the "
            "sources were changed; use another name, or rebuild the sink",
            field="boundary",
        )
    for mine, theirs in zip(one.places, other.places, strict=True):
        if not mine.is_of(theirs):
            raise Refused(
                f"queue {theirs.space}/{theirs.queue} is not the one that the sink was filled "
                f"from ({mine.space}/{mine.queue}), or was deleted and made anew since; empty the "
                "sink, or use another name",
                field="boundary",
            )
        if mine.history != theirs.history:
            raise Refused(
                f"queue {theirs.space}/{theirs.queue} has another history than when the sink was "
                "filled: it was restored, and rows that the sink has may be gone; rebuild the sink",
                field="boundary",
            )
        found += zip(mine.seqs, theirs.seqs, strict=True)
    return found


def _shown(boundary: Boundary) -> str:
    return ", ".join(f"{place.queue} {'+'.join(map(str, place.seqs))}" for place in boundary.places)
