"""Validation and errors common to all batch actions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from millrace import limits
from millrace.server.aws.fault import Fault
from millrace.server.sqs.faults import bad_entry_id, no_entries, same_ids, too_many_entries
from millrace.server.sqs.schemas import SqsFailedEntry

_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{limits.SQS_ENTRY_ID_CHARS_MAX}}}")


def see_entries(ids: Sequence[str], name: str, most: int) -> None:
    """Validate the ids of a batch.

    Raises:
        Fault: the batch has none or too many, or an id is invalid or repeated.
    """
    if not ids:
        raise no_entries(name)
    if len(ids) > most:
        raise too_many_entries(len(ids), most)
    if not all(map(_ID.fullmatch, ids)):
        raise bad_entry_id()
    if len(set(ids)) < len(ids):
        raise same_ids(next(one for at, one in enumerate(ids) if one in ids[:at]))


def failed_entry(one: str, fault: Fault) -> SqsFailedEntry:
    """Return the error entry of a refused batch entry."""
    return SqsFailedEntry(one, fault.is_sender, fault.query, fault.message)
