"""Errors of SQS, in its words."""

from __future__ import annotations

from millrace import limits
from millrace.server.aws.fault import Fault

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
    """The queue is there, and otherwise."""
    return Fault(
        "QueueNameExists",
        "A queue already exists with the same name and a different value for attribute "
        f"{attribute}",
        query="QueueAlreadyExists",
    )


def purged_lately(name: str, seconds: int) -> Fault:
    """The queue was purged a moment ago."""
    return Fault(
        "PurgeQueueInProgress",
        f"Only one PurgeQueue operation on {name} is allowed every {seconds} seconds.",
        status=403,
        query=f"{_OLD}PurgeQueueInProgress",
    )


def deleted_lately(seconds: int) -> Fault:
    """A queue of this name was deleted a moment ago."""
    return Fault(
        "QueueDeletedRecently",
        f"You must wait {seconds} seconds after deleting a queue before you can create another "
        "with the same name.",
        query=f"{_OLD}QueueDeletedRecently",
    )


def unknown_attribute(name: str) -> Fault:
    """A queue has no such attribute."""
    return Fault("InvalidAttributeName", f"Unknown Attribute {name}.")


def fifo_attribute(name: str) -> Fault:
    """A standard queue is created with an attribute of FIFO queues."""
    return Fault(
        "InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true."
    )


def bad_attribute(name: str, why: str = "") -> Fault:
    """An attribute of a queue cannot be so."""
    reason = f" Reason: {why}" if why else ""
    return Fault("InvalidAttributeValue", f"Invalid value for the parameter {name}.{reason}")


def bad_receipt(receipt: str) -> Fault:
    """It is no receipt, or none of this queue."""
    return Fault(
        "ReceiptHandleIsInvalid",
        f'The input receipt handle "{receipt[:300]}" is not a valid receipt handle.',
        status=404,
    )


def over_limit(message: str) -> Fault:
    """Too many are in flight."""
    return Fault("OverLimit", message, status=403)


def no_entries(name: str) -> Fault:
    """A batch of nothing."""
    return Fault(
        "EmptyBatchRequest",
        f"There should be at least one {name} in the request.",
        query=f"{_OLD}EmptyBatchRequest",
    )


def too_many_entries(count: int, most: int) -> Fault:
    """A batch of too many."""
    return Fault(
        "TooManyEntriesInBatchRequest",
        f"Maximum number of entries per request are {most}. You have sent {count}.",
        query=f"{_OLD}TooManyEntriesInBatchRequest",
    )


def same_ids(one: str) -> Fault:
    """Two entries of a batch have one id."""
    return Fault(
        "BatchEntryIdsNotDistinct",
        f"Id {one} repeated.",
        query=f"{_OLD}BatchEntryIdsNotDistinct",
    )


def bad_entry_id() -> Fault:
    """An entry of a batch has an id that it cannot have."""
    return Fault(
        "InvalidBatchEntryId",
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It "
        f"can be at most {limits.SQS_ENTRY_ID_CHARS_MAX} letters long.",
        query=f"{_OLD}InvalidBatchEntryId",
    )


def batch_too_long(most: int, size: int) -> Fault:
    """All messages of a batch together are too large."""
    return Fault(
        "BatchRequestTooLong",
        f"Batch requests cannot be longer than {most} bytes. You have sent {size} bytes.",
        query=f"{_OLD}BatchRequestTooLong",
    )


CHARACTERS = "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"


def bad_contents() -> Fault:
    """A text has characters that XML cannot hold."""
    return Fault(
        "InvalidMessageContents",
        "Invalid binary character was found in the message body, the set of allowed characters is "
        f"{CHARACTERS}",
    )


def not_found(message: str) -> Fault:
    """What a task names is not there."""
    return Fault("ResourceNotFoundException", message, status=404)
