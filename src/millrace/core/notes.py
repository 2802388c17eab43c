"""Notes: small texts that a front end keeps with a queue, a topic or a subscription.

The engine does not look at them. They are sorted by their names, and each name is there once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millrace import limits
from millrace.errors import TooLarge

Notes = tuple[tuple[str, str], ...]
"""Names and texts."""


class Most(msgspec.Struct, frozen=True):
    """A bound that a change of notes is judged by, where all changes are in turn."""

    prefix: str
    count: int
    """So many notes have names that begin so."""


def merge(known: Notes, named: Notes | None) -> Notes:
    """`known` with what is named in its place; a note whose text is empty is no longer there."""
    if not named:
        return known
    found = dict(known) | dict(named)
    return tuple(sorted((name, text) for name, text in found.items() if text))


def merge_all(known: Notes, several: Iterable[Notes]) -> Notes:
    """`known` with each of these in turn that there is room for. Each takes the time of its own
    notes: there may be 100,000."""
    found = dict(known)
    size = sum(map(_size, known))
    for named in several:
        texts = dict(named)
        gone = [(name, found[name]) for name in texts if name in found]
        added = [(name, text) for name, text in texts.items() if text]
        grown = size + sum(map(_size, added)) - sum(map(_size, gone))
        count = len(found) + len(added) - len(gone)
        if count > limits.NOTES_MAX or grown > limits.NOTES_BYTES_MAX:
            continue
        for name, _ in gone:
            del found[name]
        found.update(added)
        size = grown
    return tuple(sorted(found.items()))


def _size(note: tuple[str, str]) -> int:
    name, text = note
    return len(name.encode()) + len(text.encode())


def check(
    notes: Notes, most_bytes: int = limits.NOTES_BYTES_MAX, most: Most | None = None
) -> TooLarge | None:
    """Whether there may be so many of them, with so many bytes."""
    if most is not None:
        count = sum(name.startswith(most.prefix) for name, _ in notes)
        if count > most.count:
            return TooLarge(
                f"there would be {count} notes that begin with {most.prefix!r}, up to {most.count} "
                "are asked for",
                field="notes",
                limit=most.count,
            )
    if len(notes) > limits.NOTES_MAX:
        return TooLarge(
            f"there are {len(notes)} notes, up to {limits.NOTES_MAX} are allowed; a note with an "
            "empty text goes",
            field="notes",
            limit=limits.NOTES_MAX,
        )
    size = sum(map(_size, notes))
    if size > most_bytes:
        return TooLarge(
            f"the notes have {size} bytes, up to {most_bytes} are allowed",
            field="notes",
            limit=most_bytes,
        )
    return None
