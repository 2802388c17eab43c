"""Who keeps rows from going: what is asked, and what is answered."""

from __future__ import annotations

from typing import Literal

import msgspec


class ListHolders(msgspec.Struct, frozen=True):
    """Who keeps rows from going? Answer: `Holders`."""


class Holder(msgspec.Struct, frozen=True):
    """Somebody for whom rows stay that would have gone otherwise."""

    kind: Literal["pin", "cursor", "dead letters"]
    name: str
    """Of the cursor; of a pin that is read by one, too."""
    seq: int
    """The pin's boundary, where the cursor stands, or the first of the dead letters."""
    rows: int
    """The dead rows that a pin keeps; the rows that a cursor has not read."""
    bytes: int
    """About how many bytes these have."""
    age_ms: int
    """Since the pin was made, or since the cursor moved."""
    pin: int = 0
    dropped: bool = False
    """The cursor held back too much, and holds nothing any more."""


class Holders(msgspec.Struct, frozen=True):
    """What is there of a queue, and who keeps rows from going."""

    first: int
    """No row before this seq is left but for pins."""
    wanted: int
    """Without those who hold rows back, none before this seq would be left for its number or
    bytes."""
    held: tuple[Holder, ...]
    in_flight: int = 0
    """Messages that workers hold: `explain` says "leased". Not those that were given back, and not
    those whose lease is over, since others can be given them."""
    held_by_workers: int = 0
    """Those in flight, and those that were given back with a delay that is not over."""
    delayed: int = 0
    """Messages that were never handed out and whose delay is not over; of very many, the next."""
