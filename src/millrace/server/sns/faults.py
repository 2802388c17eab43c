"""Errors of SNS with the codes and messages of AWS."""

from __future__ import annotations

from millrace import limits
from millrace.errors import (
    Denied,
    Exhausted,
    Full,
    MillraceError,
    NotFound,
    Quarantined,
    Refused,
    Unauthenticated,
)
from millrace.server.auth.access import Verb
from millrace.server.aws.fault import Fault, fault_of


def invalid(what: str) -> Fault:
    """The value of a parameter is invalid."""
    return Fault(
        "InvalidParameterException", f"Invalid parameter: {what}", query="InvalidParameter"
    )


def no_value(parameter: str) -> Fault:
    """A required parameter is missing."""
    return invalid(f"{parameter} Reason: no value for required parameter")


def failed_validation(message: str) -> Fault:
    """The request violates the service model."""
    return Fault("ValidationException", message, query="ValidationError")


def invalid_value(message: str) -> Fault:
    """The value of a message attribute is invalid."""
    return Fault("InvalidParameterValueException", message, query="ParameterValueInvalid")


def no_topic() -> Fault:
    """The topic does not exist."""
    return Fault("NotFoundException", "Topic does not exist", status=404, query="NotFound")


def no_subscription() -> Fault:
    """The subscription does not exist."""
    return Fault("NotFoundException", "Subscription does not exist", status=404, query="NotFound")


def no_resource() -> Fault:
    """The resource to tag does not exist."""
    return Fault(
        "ResourceNotFoundException", "Resource does not exist", status=404, query="ResourceNotFound"
    )


def not_authorized(who: str, action: str, verb: Verb, arn: str) -> Fault:
    """The caller is not authorized: no access rule allows the verb."""
    return Fault(
        "AuthorizationErrorException",
        f"User: {who or 'anonymous'} is not authorized to perform: SNS:{action} "
        f"on resource: {arn} because no rule allows {verb}",
        status=403,
        query="AuthorizationError",
    )


def unsupported(what: str) -> Fault:
    """The server does not support a feature of SNS."""
    return Fault("UnsupportedOperation", f"{what} is not supported by this server.")


def too_many_tags() -> Fault:
    """The topic has reached its limit of tags."""
    return Fault(
        "TagLimitExceededException",
        "Could not complete request: tag quota of per resource exceeded",
        query="TagLimitExceeded",
    )


def too_many_subscriptions(message: str) -> Fault:
    """The topic or queue has reached its limit of subscriptions."""
    return Fault(
        "SubscriptionLimitExceededException",
        message,
        status=403,
        query="SubscriptionLimitExceeded",
    )


def too_many_topics(message: str) -> Fault:
    """The limit of topics is reached."""
    return Fault("TopicLimitExceededException", message, status=403, query="TopicLimitExceeded")


def no_entries() -> Fault:
    """The batch has no entries."""
    return Fault(
        "EmptyBatchRequestException",
        "The batch request doesn't contain any entries.",
        query="EmptyBatchRequest",
    )


def too_many_entries() -> Fault:
    """The batch has too many entries."""
    return Fault(
        "TooManyEntriesInBatchRequestException",
        "The batch request contains more entries than permissible.",
        query="TooManyEntriesInBatchRequest",
    )


def same_ids() -> Fault:
    """Two entries of a batch have the same id."""
    return Fault(
        "BatchEntryIdsNotDistinctException",
        "Two or more batch entries in the request have the same Id.",
        query="BatchEntryIdsNotDistinct",
    )


def bad_entry_id(id: str) -> Fault:
    """The id of a batch entry is too long or has an invalid character."""
    is_long = len(id) > limits.SNS_ENTRY_ID_CHARS_MAX
    what = "is too long" if is_long else "contains an impermissible character"
    return Fault(
        "InvalidBatchEntryIdException",
        f"The Id of a batch entry in the batch request {what}: {id}",
        query="InvalidBatchEntryId",
    )


def batch_too_long() -> Fault:
    """The messages of a batch are too large together."""
    return Fault(
        "BatchRequestTooLongException",
        "The length of all the messages put together is more than the limit.",
        query="BatchRequestTooLong",
    )


def sns_fault_of(error: MillraceError) -> Fault:
    """Translate any error of Millrace to that of SNS."""
    if isinstance(error, Fault | Unauthenticated):
        return fault_of(error)
    if isinstance(error, NotFound):
        return no_topic()
    if isinstance(error, Denied):
        return Fault(
            "AuthorizationErrorException", error.message, status=403, query="AuthorizationError"
        )
    if isinstance(error, Exhausted | Full):
        return Fault("ThrottledException", error.message, status=429, query="Throttled")
    if isinstance(error, Refused) and not isinstance(error, Quarantined):
        return invalid(error.message)
    return Fault(
        "InternalErrorException", "Internal service error", status=500, query="InternalError"
    )
