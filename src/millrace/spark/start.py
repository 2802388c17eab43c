"""Start and end positions of a read, as options name them.

In JSON a place is a seq for each shard: a list, or an object by the shards' numbers. As with Kafka,
the start is the first seq that is read and the end the first that is not; -2 is the earliest, -1
the latest.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from millrace.client.position import is_position
from millrace.core import validate
from millrace.errors import Invalid

_EARLIEST, _LATEST = -2, -1

_DIGITS_MAX = 15
"""Maximum number of digits of milliseconds: some ten thousand years."""


class Start(msgspec.Struct, frozen=True):
    """A position: the earliest unless one of the fields is set."""

    is_latest: bool = False
    seqs: tuple[tuple[int, int], ...] = ()
    """Pairs of shard and seq."""
    time_ms: int | None = None
    ticket: str = ""
    """The token of a snapshot."""
    position: str = ""
    """The token of a position."""


EARLIEST = Start()
LATEST = Start(is_latest=True)


def read_start(text: str, field: str) -> Start:
    """Parse earliest, latest, seqs in JSON, a time, a position, or the token of a snapshot.

    Raises:
        Invalid: it has none of these forms.
    """
    if text.lower() == "earliest":
        return EARLIEST
    if text.lower() == "latest":
        return LATEST
    if text.startswith(("{", "[")):
        return Start(seqs=_read_seqs(text, field))
    if text[:4].isdigit() and text[4:5] == "-":
        return Start(time_ms=read_time(text, field))
    if is_position(text):
        return Start(position=text)
    if len(text) > 40:
        return Start(ticket=text)
    raise Invalid(
        f"{field} is {validate.shown(text)}, not earliest, latest, seqs in JSON such as "
        '{"0": 17}, a time such as 2030-01-31T12:00:00Z, a position, or the text of a snapshot',
        field=field,
    )


def _read_seqs(text: str, field: str) -> tuple[tuple[int, int], ...]:
    try:
        found = msgspec.json.decode(text, type=list[int] | dict[int, int])
    except msgspec.MsgspecError as error:
        raise Invalid(f"{field} is no JSON of seqs: {error}", field=field) from None
    pairs = enumerate(found) if isinstance(found, list) else sorted(found.items())
    seqs = tuple(pairs)
    if not seqs or any(shard < 0 or not _EARLIEST <= seq < 2**63 for shard, seq in seqs):
        raise Invalid(
            f"{field} is {validate.shown(text)}; shards are counted from 0, and a seq is from 0 "
            "on, "
            "or -2 (earliest), or -1 (latest)",
            field=field,
        )
    return seqs


def read_time(text: str, field: str) -> int:
    """Parse a time in ISO 8601, or milliseconds since 1970.

    Raises:
        Invalid: it is neither.
    """
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"{field} is {validate.shown(text)}, not a time such as 2030-01-31T12:00:00Z",
            field=field,
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


def read_places(
    pairs: Sequence[tuple[int, int]], lasts: Sequence[int], field: str, *, is_end: bool = False
) -> tuple[int, ...]:
    """Return the last seq before each place. Shards that are not named are read from the earliest
    row on, and to the latest.

    Raises:
        Invalid: the shard does not exist, or has not reached the seq.
    """
    found = list(lasts) if is_end else [0] * len(lasts)
    for shard, seq in pairs:
        if shard >= len(lasts):
            raise Invalid(
                f"{field} names shard {shard}; the queue's last one is {len(lasts) - 1}",
                field=field,
                limit=len(lasts) - 1,
            )
        last = lasts[shard]
        if seq > last + 1:
            raise Invalid(
                f"{field} is {seq} in shard {shard}, whose next seq is {last + 1}",
                field=field,
                limit=last + 1,
            )
        if is_end and seq == _EARLIEST:
            raise Invalid(
                f"{field} is -2, the earliest, in shard {shard}; give -1, the latest, or a seq",
                field=field,
            )
        found[shard] = last if seq == _LATEST else max(seq, 1) - 1
    return tuple(found)
