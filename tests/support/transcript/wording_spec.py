"""The maxima and notes of a queue in the words of transcripts."""

from __future__ import annotations

from millrace.core.notes import Notes
from millrace.core.spec import QueueSpec


def bounded(spec: QueueSpec) -> str:
    """What a queue holds at most, and what becomes of the rest."""
    out = f", at most {spec.max_messages} messages" if spec.max_messages else ""
    out += f", at most {spec.max_bytes} bytes" if spec.max_bytes else ""
    out += ", drops the oldest" if spec.overflow == "drop" else ""
    out += f", at most {spec.max_in_flight} in flight" if spec.max_in_flight else ""
    out += f", messages of at most {spec.message_bytes_max} bytes" if spec.message_bytes_max else ""
    return out + say_notes(spec.notes)


def say_notes(notes: Notes) -> str:
    """What is kept with it."""
    return "".join(f", note {name} {text!r}" for name, text in notes)
