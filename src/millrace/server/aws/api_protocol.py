"""Authentication of AWS requests, and rendering of their errors.

Rule 1: an access key is looked up by its id when the head of a request arrives; the signature is
verified when the body is complete (`AwsCaller.prove`), before anything is done.
Rule 2: where local clients need no token, they need no access key either: an unknown key is
ignored. A known key must have a valid signature.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import uuid4

import msgspec

from millrace import limits
from millrace.errors import Exhausted, MillraceError, Unauthenticated, detached
from millrace.server.auth.access import Principal, is_account
from millrace.server.auth.authenticator import Authenticator
from millrace.server.auth.store import UserStore
from millrace.server.aws.fault import (
    NO_OPERATION,
    Fault,
    fault_of,
    nobody,
    too_large,
    unknown_caller,
    unsigned_unsubscribe,
)
from millrace.server.aws.message_attributes import Digests
from millrace.server.aws.names import AccountRegion, space_of
from millrace.server.aws.query_protocol import text_of
from millrace.server.aws.queue_info import QueueDirectory
from millrace.server.aws.sigv4 import (
    ParsedSignature,
    SigningKey,
    StatedCredential,
    read_signed,
    see_signature,
    see_time,
    signature_of,
    signing_key,
)
from millrace.server.clock import now_ms
from millrace.server.http.parser import Request
from millrace.server.http.proxy_headers import TRACE_ID, is_of_sdk
from millrace.server.http.response import Response

if TYPE_CHECKING:
    from millrace.server.aws.topic_envelope import EnvelopeContext

JSON = "application/x-amz-json-1.0"
XML = "text/xml"
NAMESPACES = {
    "sqs": "http://queue.amazonaws.com/doc/2012-11-05/",
    "sns": "http://sns.amazonaws.com/doc/2010-03-31/",
    "sts": "https://sts.amazonaws.com/doc/2011-06-15/",
}


class AwsCaller:
    """The caller of a request, as identified by its head."""

    __slots__ = (
        "aws",
        "failure",
        "home",
        "is_proved",
        "principal",
        "signed",
        "signing_key",
    )

    def __init__(
        self,
        aws: AwsApi,
        principal: Principal,
        home: AccountRegion,
        signed: ParsedSignature | None = None,
        signing_key: SigningKey | None = None,
    ) -> None:
        self.aws = aws
        self.principal = principal
        self.home = home
        """The account and region of the request."""
        self.signed = signed
        self.signing_key = signing_key
        """The key that verifies the signature; None: there is nothing to verify."""
        self.is_proved = signing_key is None
        self.failure: MillraceError | None = None
        """The error of a failed authentication, kept so that a repeated check counts as one
        failure.
        """

    @property
    def service(self) -> str:
        """The service that the request was signed for; empty if unsigned."""
        return self.signed.stated.service if self.signed is not None else ""

    @property
    def key_id(self) -> str:
        """The id of the access key; empty if unsigned."""
        return self.signed.stated.key_id if self.signed is not None else ""

    def prove(self, request: Request) -> None:
        """Verify the signature of the request.

        Raises:
            Fault: the signature is wrong or has expired.
        """
        if self.is_proved:
            return
        signed, key = self.signed, self.signing_key
        assert signed is not None
        assert key is not None
        see_time(signed, time.time())
        expected = signature_of(
            signed, key, request.method, request.path, request.query, request.headers, request.body
        )
        see_signature(expected, signed)
        self.is_proved = True


class _Holder(NamedTuple):
    """The owner of an access key at a peer address, with the day's signing key."""

    principal: Principal
    home: AccountRegion
    signing_key: SigningKey


class EnvelopeSource(Protocol):
    """The part of the state of SNS that other AWS services need."""

    def around(self, base: str) -> EnvelopeContext:
        """Return the signer and the URLs for envelopes, for a server with this base URL."""
        ...


class AwsApi:
    """The AWS protocol of the server: authenticates requests and renders errors."""

    proves_later = True

    def __init__(
        self,
        guard: Authenticator,
        book: UserStore,
        home: AccountRegion,
        directory: QueueDirectory,
        sns: EnvelopeSource,
        *,
        scheme: str = "http",
    ) -> None:
        """`home`: the account and region whose space is `default`; `scheme`: http or https."""
        self._guard = guard
        self._book = book
        self._holders: dict[tuple[StatedCredential, str], _Holder] = {}
        """A cache by credential scope and peer address, cleared when users or keys change."""
        self._holders_of = 0
        self.digests = Digests()
        """The MD5 cache of bodies that were sent through this process."""
        self.directory = directory
        self.sns = sns
        self.usual = home
        self.scheme = scheme
        message_bytes = max(directory.bounds.message_bytes, limits.SNS_MESSAGE_BYTES_MAX)
        self.body_bytes_max = limits.AWS_ESCAPES_MAX * message_bytes + limits.AWS_BESIDE_BYTES
        """Limit of a request body in bytes: the messages of one call in their longest encoding."""

    def admit(
        self, request: Request, params: dict[str, str], peer: str
    ) -> Principal | MillraceError:
        length = request.headers.get("content-length")
        if length is not None and int(length) > self.body_bytes_max:
            return too_large(self.body_bytes_max)
        try:
            caller = self._caller(request, peer, request.standing)
        except Fault as fault:
            # Counted like any failed authentication; the client gets the error of AWS.
            failed = self._guard.fail(peer)
            return failed if isinstance(failed, Exhausted) else detached(fault)
        if isinstance(caller, MillraceError):
            return caller
        request.caller = caller
        request.is_stranger = not caller.is_proved
        request.kind = request.headers.get("x-amz-target", "")
        return caller.principal

    def who(self, request: Request, params: dict[str, str], peer: str) -> Principal | None:
        try:
            caller = self._caller(request, peer, self._guard.version())
        except Fault:
            return None
        return caller.principal if isinstance(caller, AwsCaller) else None

    def _caller(self, request: Request, peer: str, version: int) -> AwsCaller | MillraceError:
        signed = read_signed(request.headers, request.query)
        if signed is None:
            known = self._guard.admit(request.headers, peer)
            if isinstance(known, Unauthenticated) and "authorization" not in request.headers:
                return unsigned_unsubscribe() if _unsubscribes(request) else nobody()
            if isinstance(known, MillraceError):
                return known
            return AwsCaller(self, known, self.usual)
        if version != self._holders_of or len(self._holders) >= limits.AWS_SIGNING_KEYS_MAX:
            self._holders.clear()
            self._holders_of = version
        holder = self._holders.get((signed.stated, peer)) or self._find(signed.stated, peer)
        if holder is not None:
            return AwsCaller(self, holder.principal, holder.home, signed, holder.signing_key)
        anonymous = self._guard.who(_unsigned(request.headers), peer)
        if anonymous is None:
            raise unknown_caller()
        return AwsCaller(self, anonymous, self._home(signed.stated), signed)

    def _find(self, stated: StatedCredential, peer: str) -> _Holder | None:
        """Look up the owner of an access key and cache it; return None if the key is unknown."""
        found = self._book.roll.key(stated.key_id, now_ms())
        if found is None:
            return None
        key, principal = found
        holder = self._holders[stated, peer] = _Holder(
            principal.at(peer),
            self._home(stated, key.account),
            signing_key(self._book.secret_of(key.id), stated.scope),
        )
        return holder

    def _home(self, stated: StatedCredential, account: str = "") -> AccountRegion:
        """Return account and region of a key: its own account, else its id if that is an account
        number.
        """
        its = stated.key_id if is_account(stated.key_id) else self.usual.account
        return AccountRegion(account or its, stated.region)

    def failed(self, peer: str) -> MillraceError:
        """Count a wrong signature; return `Exhausted` after too many from this address."""
        return self._guard.fail(peer)

    def space(self, home: AccountRegion) -> str:
        """Return the space of an account and region."""
        return space_of(home, self.usual)

    def answer_error(self, request: Request, error: MillraceError) -> Response:
        return answer_fault(request, fault_of(error))


# --- Answers -------------------------------------------------------------------------------------


def _ids() -> Callable[[], str]:
    """Return a generator of request ids: a random prefix of the process and a counter."""
    beginning = str(uuid4())[:24]
    numbers = count(1)

    def make() -> str:
        return f"{beginning}{next(numbers) & 0xFFFFFFFFFFFF:012x}"

    return make


request_id = _ids()


def _unsigned(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers without a signature by an unknown key, and without the trace of an SDK.

    They are what `anonymous` is judged by: a trace id is evidence of a load balancer, unless an SDK
    inside Lambda sends it.
    """
    left = {name: text for name, text in headers.items() if name != "authorization"}
    if is_of_sdk(left.get(TRACE_ID, "")):
        del left[TRACE_ID]
    return left


def is_json(request: Request) -> bool:
    """Return whether a request uses the JSON protocol."""
    return request.headers.get("content-type", "").startswith("application/x-amz-json")


def is_plain_json(request: Request) -> bool:
    """Return whether a query is answered in JSON: a GET that accepts it.

    SNS is excluded: its format of such responses is unknown.
    """
    is_accepted = "application/json" in request.headers.get("accept", "")
    return request.method == "GET" and is_accepted and service_of(request) != "sns"


def service_of(request: Request) -> str:
    """Return the service that a request is for, as far as its head identifies it."""
    target = request.headers.get("x-amz-target", "")
    if target.startswith("AmazonSQS."):
        return "sqs"
    caller = request.caller
    if caller is None and _unsubscribes(request):
        return "sns"
    service = caller.service if isinstance(caller, AwsCaller) else ""
    return service if service in NAMESPACES else "sqs"


def _unsubscribes(request: Request) -> bool:
    """Return whether a request visits the unsubscribe link of an SNS message."""
    return "Action=Unsubscribe" in request.query.split("&")


def answer_fault(request: Request, fault: Fault) -> Response:
    """Render an error in the protocol of the request."""
    one = request_id()
    headers = {"x-amzn-requestid": one}
    whose = "Sender" if fault.is_sender else "Receiver"
    if is_json(request):
        headers["x-amzn-query-error"] = f"{fault.query};{whose}"
        told = {"__type": f"com.amazonaws.sqs#{fault.kind}", "message": fault.message}
        return Response(fault.status, msgspec.json.encode(told), type=JSON, headers=headers)
    if fault.kind == NO_OPERATION and fault.status == 404:
        return Response(404, f"<{NO_OPERATION}/>".encode(), type=XML, headers=headers)
    if is_plain_json(request):
        error = {"Code": fault.query, "Message": fault.query_message, "Type": whose}
        body = msgspec.json.encode({"Error": error, "RequestId": one})
        return Response(fault.status, body, headers=headers)
    service = service_of(request)
    # Only SQS has this element; it is always empty.
    detail = "<Detail/>" if service == "sqs" else ""
    text = (
        f'<?xml version="1.0"?>\n<ErrorResponse xmlns="{NAMESPACES[service]}"><Error>'
        f"<Type>{whose}</Type><Code>{text_of(fault.query)}</Code>"
        f"<Message>{text_of(fault.query_message)}</Message>{detail}</Error>"
        f"<RequestId>{one}</RequestId></ErrorResponse>"
    )
    return Response(fault.status, text.encode(), type=XML, headers=headers)
