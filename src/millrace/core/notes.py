"""Notes: small texts that a front end keeps with a queue, a topic or a subscription.

The engine does not interpret them. They are sorted by name, and names are unique.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millrace import limits
from millrace.errors import TooLarge

Notes = tuple[tuple[str, str], ...]
"""Names and texts."""


class NotesLimit(msgspec.Struct, frozen=True):
    """A bound on notes, checked in the decision, where changes come one after the other."""

    prefix: str
    count: int
    """Limit of notes whose names have this prefix."""


def merge(known: Notes, named: Notes | None) -> Notes:
    """Return `known` updated with the given notes; an empty text removes a note."""
    if not named:
        return known
    merged = dict(known) | dict(named)
    return tuple(sorted((name, text) for name, text in merged.items() if text))


def merge_all(known: Notes, several: Iterable[Notes]) -> Notes:
    """Return `known` updated with each of these in turn that fits. The time grows only with the
    notes of each: there may be 100,000."""
    merged = dict(known)
    size = sum(map(_size, known))
    for named in several:
        texts = dict(named)
        gone = [(name, merged[name]) for name in texts if name in merged]
        added = [(name, text) for name, text in texts.items() if text]
        grown = size + sum(map(_size, added)) - sum(map(_size, gone))
        count = len(merged) + len(added) - len(gone)
        if count > limits.NOTES_MAX or grown > limits.NOTES_BYTES_MAX:
            continue
        for name, _ in gone:
            del merged[name]
        merged.update(added)
        size = grown
    return tuple(sorted(merged.items()))


def _size(note: tuple[str, str]) -> int:
    name, text = note
    return len(name.encode()) + len(text.encode())


def check(
    notes: Notes, most_bytes: int = limits.NOTES_BYTES_MAX, most: NotesLimit | None = None
) -> TooLarge | None:
    """Check the number of notes and their size in bytes against the limits."""
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
