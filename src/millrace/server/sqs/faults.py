"""Errors of SQS with the codes and messages of AWS, and the checks of all batch actions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from millrace import limits
from millrace.server.aws.fault import Fault
from millrace.server.sqs.schemas import SqsFailedEntry

_OLD = "AWS.SimpleQueueService."


def no_queue() -> Fault:
    """The queue does not exist, or the caller may not see it."""
    return Fault(
        "QueueDoesNotExist",
        "The specified queue does not exist.",
        query=f"{_OLD}NonExistentQueue",
        query_message="The specified queue does not exist for this wsdl version.",
    )


def queue_exists(attribute: str) -> Fault:
    """A queue of this name exists with other attributes."""
    return Fault(
        "QueueNameExists",
        "A queue already exists with the same name and a different value for attribute "
        f"{attribute}",
        query="QueueAlreadyExists",
    )


def purged_lately(name: str, seconds: int) -> Fault:
    """The queue was purged less than `seconds` ago."""
    return Fault(
        "PurgeQueueInProgress",
        f"Only one PurgeQueue operation on {name} is allowed every {seconds} seconds.",
        status=403,
        query=f"{_OLD}PurgeQueueInProgress",
    )


def deleted_lately(seconds: int) -> Fault:
    """A queue of this name was deleted less than `seconds` ago."""
    return Fault(
        "QueueDeletedRecently",
        f"You must wait {seconds} seconds after deleting a queue before you can create another "
        "with the same name.",
        query=f"{_OLD}QueueDeletedRecently",
    )


def unknown_attribute(name: str) -> Fault:
    """The queue attribute does not exist."""
    return Fault("InvalidAttributeName", f"Unknown Attribute {name}.")


def fifo_attribute(name: str) -> Fault:
    """An attribute of FIFO queues was given for a standard queue."""
    return Fault(
        "InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true."
    )


def bad_attribute(name: str, why: str = "") -> Fault:
    """The value of a queue attribute is invalid."""
    reason = f" Reason: {why}" if why else ""
    return Fault("InvalidAttributeValue", f"Invalid value for the parameter {name}.{reason}")


def bad_receipt(receipt: str) -> Fault:
    """The receipt handle is invalid or belongs to another queue."""
    return Fault(
        "ReceiptHandleIsInvalid",
        f'The input receipt handle "{receipt[:300]}" is not a valid receipt handle.',
        status=404,
    )


def over_limit(message: str) -> Fault:
    """A limit is exceeded, such as that of messages in flight."""
    return Fault("OverLimit", message, status=403)


def no_entries(name: str) -> Fault:
    """The batch has no entries."""
    return Fault(
        "EmptyBatchRequest",
        f"There should be at least one {name} in the request.",
        query=f"{_OLD}EmptyBatchRequest",
    )


def too_many_entries(count: int, most: int) -> Fault:
    """The batch has too many entries."""
    return Fault(
        "TooManyEntriesInBatchRequest",
        f"Maximum number of entries per request are {most}. You have sent {count}.",
        query=f"{_OLD}TooManyEntriesInBatchRequest",
    )


def same_ids(one: str) -> Fault:
    """Two entries of a batch have the same id."""
    return Fault(
        "BatchEntryIdsNotDistinct",
        f"Id {one} repeated.",
        query=f"{_OLD}BatchEntryIdsNotDistinct",
    )


def bad_entry_id() -> Fault:
    """The id of a batch entry is invalid."""
    return Fault(
        "InvalidBatchEntryId",
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It "
        f"can be at most {limits.SQS_ENTRY_ID_CHARS_MAX} letters long.",
        query=f"{_OLD}InvalidBatchEntryId",
    )


def batch_too_long(most: int, size: int) -> Fault:
    """The messages of a batch are too large together."""
    return Fault(
        "BatchRequestTooLong",
        f"Batch requests cannot be longer than {most} bytes. You have sent {size} bytes.",
        query=f"{_OLD}BatchRequestTooLong",
    )


def not_found(message: str) -> Fault:
    """The queue or task of a move does not exist."""
    return Fault("ResourceNotFoundException", message, status=404)


# --- Validation and errors common to all batch actions -------------------------------------------

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
