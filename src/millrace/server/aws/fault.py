"""Errors as AWS tells them: a code, a text, a status, and whose fault it is."""

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
    """An error with the code that clients of AWS look at."""

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
        """`kind` is the name that the service's model gives it; `query` and `query_message` are
        the name and the text of the older protocol, where they differ."""
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.query = query or kind
        self.query_message = query_message or message

    @property
    def is_sender(self) -> bool:
        """Whether it is the fault of whoever asks."""
        return self.status < 500


def invalid_parameter(message: str) -> Fault:
    """A parameter that the action does not take."""
    return Fault("InvalidParameterValueException", message, query="InvalidParameterValue")


def bad_value(value: object, name: str, why: str) -> Fault:
    """A parameter of a value that it cannot have, in the words of SQS."""
    return invalid_parameter(f"Value {value} for parameter {name} is invalid. Reason: {why}")


def missing_parameter(name: str) -> Fault:
    """A parameter that the action needs."""
    return Fault(
        "MissingRequiredParameterException",
        f"The request must contain the parameter {name}.",
        query="MissingParameter",
    )


def unsupported(message: str, service: str = "sqs") -> Fault:
    """Something that this server does not do; SQS alone puts its name before the code."""
    before = "AWS.SimpleQueueService." if service == "sqs" else ""
    return Fault("UnsupportedOperation", message, query=f"{before}UnsupportedOperation")


def invalid_action(name: str) -> Fault:
    """An action that cannot be asked at the address of a queue."""
    return Fault("InvalidAction", f"The action {name[:100]} is not valid for this endpoint.")


NO_OPERATION = "UnknownOperationException"


def no_operation() -> Fault:
    """A GET of a queue's address that names no action."""
    return Fault(NO_OPERATION, "The request names no action.", status=404)


def denied(message: str) -> Fault:
    """Who asks may not do this."""
    return Fault("AccessDeniedException", message, status=403, query="AccessDenied")


def nobody() -> Fault:
    """Nothing that was sent says who asks."""
    return Fault(
        "MissingAuthenticationToken",
        "The request is neither signed with an access key (`millrace key new` makes one) "
        "nor has it a token.",
        status=403,
    )


def too_large(limit: int) -> Fault:
    """A body that no call needs, whatever it is coded as."""
    fault = Fault(
        "RequestEntityTooLarge",
        f"The body of the request has more than {limit} bytes; send its messages in several calls.",
        status=413,
    )
    fault.field, fault.limit = "body", limit
    return fault


def unsigned_unsubscribe() -> Fault:
    """Somebody visits the address by which SNS ends a subscription, as no rule allows."""
    return Fault(
        "AuthorizationErrorException",
        "A subscription ends by a signed request: call Unsubscribe with its ARN and an access key "
        "of a user who may manage the topic.",
        status=403,
        query="AuthorizationError",
    )


def unknown_caller() -> Fault:
    """Nobody is known by what was sent."""
    return Fault(
        "InvalidClientTokenId",
        "The security token included in the request is invalid.",
        status=403,
    )


def fault_of(error: MillraceError) -> Fault:
    """Any error, as AWS would tell it."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, Denied):
        return denied(error.message)
    if isinstance(error, Unauthenticated):
        return unknown_caller()
    if isinstance(error, Exhausted):
        return Fault("ThrottlingException", error.message, status=400, query="Throttling")
    if isinstance(error, Quarantined):
        # Nothing is wrong with the request: clients of AWS try again, as they do after a 500.
        return Fault("InternalFailure", error.message, status=500)
    if isinstance(error, NotFound | Invalid | TooLarge | Refused):
        return invalid_parameter(error.message)
    if isinstance(error, Retry):
        return Fault("ServiceUnavailable", error.message, status=503)
    return Fault("InternalFailure", error.message, status=500)
