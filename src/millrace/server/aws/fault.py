"""Errors in the form of AWS: code, message, status, and the responsible side."""

from __future__ import annotations

from millrace.errors import (
    Denied,
    Exhausted,
    Invalid,
    MillraceError,
    NotFound,
    Quarantined,
    Refused,
    Retry,
    TooLarge,
    Unauthenticated,
)


class Fault(Refused):
    """An error with the code that AWS clients evaluate."""

    code = "aws"

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        status: int = 400,
        query: str = "",
        query_message: str = "",
    ) -> None:
        """`kind` is the name in the service model; `query` and `query_message` are code and message
        in the query protocol, where they differ.
        """
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.query = query or kind
        self.query_message = query_message or message

    @property
    def is_sender(self) -> bool:
        """True if the client caused the error."""
        return self.status < 500


def invalid_parameter(message: str) -> Fault:
    """The value of a parameter is invalid."""
    return Fault("InvalidParameterValueException", message, query="InvalidParameterValue")


def bad_value(value: object, name: str, why: str) -> Fault:
    """The value of a parameter is invalid, in the wording of SQS."""
    return invalid_parameter(f"Value {value} for parameter {name} is invalid. Reason: {why}")


def missing_parameter(name: str) -> Fault:
    """A required parameter is missing."""
    return Fault(
        "MissingRequiredParameterException",
        f"The request must contain the parameter {name}.",
        query="MissingParameter",
    )


def unsupported(message: str, service: str = "sqs") -> Fault:
    """The server does not support a feature; only SQS has a prefix in the code."""
    before = "AWS.SimpleQueueService." if service == "sqs" else ""
    return Fault("UnsupportedOperation", message, query=f"{before}UnsupportedOperation")


def invalid_action(name: str) -> Fault:
    """The action is not available at the URL of a queue."""
    return Fault("InvalidAction", f"The action {name[:100]} is not valid for this endpoint.")


NO_OPERATION = "UnknownOperationException"


def no_operation() -> Fault:
    """A GET of a queue's URL names no action."""
    return Fault(NO_OPERATION, "The request names no action.", status=404)


def denied(message: str) -> Fault:
    """The caller is not authorized."""
    return Fault("AccessDeniedException", message, status=403, query="AccessDenied")


def nobody() -> Fault:
    """The request has no credentials."""
    return Fault(
        "MissingAuthenticationToken",
        "The request is neither signed with an access key (`millrace key new` makes one) "
        "nor has it a token.",
        status=403,
    )


def too_large(limit: int) -> Fault:
    """The body is larger than any valid call."""
    fault = Fault(
        "RequestEntityTooLarge",
        f"The body of the request has more than {limit} bytes; send its messages in several calls.",
        status=413,
    )
    fault.field, fault.limit = "body", limit
    return fault


def unsigned_unsubscribe() -> Fault:
    """An unsubscribe link was visited without a signature, which the server does not allow."""
    return Fault(
        "AuthorizationErrorException",
        "A subscription ends by a signed request: call Unsubscribe with its ARN and an access key "
        "of a user who may manage the topic.",
        status=403,
        query="AuthorizationError",
    )


def unknown_caller() -> Fault:
    """The credentials are unknown."""
    return Fault(
        "InvalidClientTokenId",
        "The security token included in the request is invalid.",
        status=403,
    )


def fault_of(error: MillraceError) -> Fault:
    """Translate any error of Millrace to that of AWS."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, Denied):
        return denied(error.message)
    if isinstance(error, Unauthenticated):
        return unknown_caller()
    if isinstance(error, Exhausted):
        return Fault("ThrottlingException", error.message, status=400, query="Throttling")
    if isinstance(error, Quarantined):
        # The request is valid: clients of AWS retry, as after any 500.
        return Fault("InternalFailure", error.message, status=500)
    if isinstance(error, NotFound | Invalid | TooLarge | Refused):
        return invalid_parameter(error.message)
    if isinstance(error, Retry):
        return Fault("ServiceUnavailable", error.message, status=503)
    return Fault("InternalFailure", error.message, status=500)


CHARACTERS = "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"


def bad_contents() -> Fault:
    """A text has characters that XML cannot represent."""
    return Fault(
        "InvalidMessageContents",
        "Invalid binary character was found in the message body, the set of allowed characters is "
        f"{CHARACTERS}",
    )
