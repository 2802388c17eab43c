"""The options of a transcript's words."""

from __future__ import annotations

from millrace.core.notes import Notes, NotesLimit

_OPTIONS = (
    "producer",
    "spans",
    "number",
    "mode",
    "after",
    "for",
    "within",
    "of",
    "id",
    "start",
    "end",
    "keep_deletes",
    "batch",
    "delay",
    "retry_min",
    "retry_max",
    "max_failures",
    "max_deliveries",
    "dead_letter",
    "ids",
    "attempt",
    "ttl",
    "dedup",
    "claim",
    "cursor",
    "epoch",
    "from",
    "count",
    "seen",
    "suspect",
    "keep",
    "keep_bytes",
    "keep_messages",
    "retain_max",
    "retain_max_bytes",
    "pin_max_bytes",
    "shards",
    "route",
    "order",
    "group_in_flight",
    "rate",
    "max_messages",
    "max_in_flight",
    "blocking",
    "message_bytes",
    "max_bytes",
    "group_rate",
    "partitions",
    "age",
)
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def is_option(word: str) -> bool:
    """Whether the word is an option with its value."""
    return word.partition(":")[0] in _OPTIONS and ":" in word


def notes_of(words: list[str]) -> Notes:
    """What is kept with it, as `note:name=text` or (a note that goes) `note:name=`."""
    pairs = [word.removeprefix("note:").split("=") for word in words if word.startswith("note:")]
    return tuple(sorted((name, text) for name, text in pairs))


def most_of(words: list[str]) -> NotesLimit | None:
    """The bound of notes, as `most:prefix=2`."""
    for word in words:
        if word.startswith("most:"):
            prefix, _, count = word.removeprefix("most:").partition("=")
            return NotesLimit(prefix, int(count))
    return None


def millis(word: str) -> int:
    """A time with its unit, as 30s or 7d."""
    number = word.rstrip("msd" if word.endswith("ms") else "smhd")
    return int(number) * _UNITS[word[len(number) :]]
