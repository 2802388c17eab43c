"""Who asks, of the APIs of AWS, and how they are told errors.

Rule 1: a key is known by its id, at the head of a request; that whoever sent it has the secret is
seen when the body is there (`Caller.prove`), before anything is done.
Rule 2: where those of this machine need no token, they need no key either: a key that nobody has
is taken for none. One that somebody has must be theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import msgspec

from millrace import limits
from millrace.errors import Exhausted, MillraceError, Unauthenticated, detached
from millrace.server.access import Principal
from millrace.server.aws.digests import Digests
from millrace.server.aws.fault import (
    NO_OPERATION,
    Fault,
    fault_of,
    nobody,
    too_large,
    unknown_caller,
    unsigned_unsubscribe,
)
from millrace.server.aws.form import text_of
from millrace.server.aws.known import Directory
from millrace.server.aws.names import Home, is_account, space_of
from millrace.server.aws.sigv4 import (
    Signed,
    SigningKey,
    Stated,
    read_signed,
    see_signature,
    see_time,
    signature_of,
    signing_key,
)
from millrace.server.book import Book
from millrace.server.clock import now_ms
from millrace.server.guard import Guard
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from millrace.server.proxy_headers import TRACE_ID, is_of_sdk

if TYPE_CHECKING:
    from millrace.server.sns.deliver import Deliverer
    from millrace.server.sns.exchange import Exchange

JSON = "application/x-amz-json-1.0"
XML = "text/xml"
NAMESPACES = {
    "sqs": "http://queue.amazonaws.com/doc/2012-11-05/",
    "sns": "http://sns.amazonaws.com/doc/2010-03-31/",
    "sts": "https://sts.amazonaws.com/doc/2011-06-15/",
}


class Caller:
    """Who sent a request, as far as its head tells."""

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
        aws: AwsFace,
        principal: Principal,
        home: Home,
        signed: Signed | None = None,
        signing_key: SigningKey | None = None,
    ) -> None:
        self.aws = aws
        self.principal = principal
        self.home = home
        """The account and region that they ask in."""
        self.signed = signed
        self.signing_key = signing_key
        """With which they have signed; None: there is nothing to be proved."""
        self.is_proved = signing_key is None
        self.failure: MillraceError | None = None
        """Why they are not who they say they are: a request that is read twice is wrong once."""

    @property
    def service(self) -> str:
        """The one that they have signed for."""
        return self.signed.stated.service if self.signed is not None else ""

    @property
    def key_id(self) -> str:
        """By which their key is known."""
        return self.signed.stated.key_id if self.signed is not None else ""

    def prove(self, request: Request) -> None:
        """See that the request was signed with the secret.

        Raises:
            Fault: it was not, or too long ago.
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
    """Who has a key, asking from an address, and what they sign a day's requests with."""

    principal: Principal
    home: Home
    signing_key: SigningKey


class AwsFace:
    """The APIs of AWS."""

    proves_later = True

    def __init__(
        self,
        guard: Guard,
        book: Book,
        home: Home,
        directory: Directory,
        exchange: Exchange,
        deliverer: Deliverer,
        *,
        scheme: str = "http",
    ) -> None:
        """`home`: the account and region whose space is `default`; `scheme`: what is spoken."""
        self._guard = guard
        self._book = book
        self._holders: dict[tuple[Stated, str], _Holder] = {}
        """By what stands before signatures, and by address; as of a version of who is known."""
        self._holders_of = 0
        self.digests = Digests()
        """Of what was sent through this process."""
        self.directory = directory
        self.exchange = exchange
        self.deliverer = deliverer
        self.usual = home
        self.scheme = scheme
        message_bytes = max(directory.bounds.message_bytes, limits.SNS_MESSAGE_BYTES_MAX)
        self.body_bytes_max = limits.AWS_ESCAPES_MAX * message_bytes + limits.AWS_BESIDE_BYTES
        """Of a request: the messages that a call may have, however they are written."""

    def admit(
        self, request: Request, params: dict[str, str], peer: str
    ) -> Principal | MillraceError:
        length = request.headers.get("content-length")
        if length is not None and int(length) > self.body_bytes_max:
            return too_large(self.body_bytes_max)
        try:
            caller = self._caller(request, peer, request.standing)
        except Fault as fault:
            # Counted as others are; what is told is what clients of AWS know.
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
        return caller.principal if isinstance(caller, Caller) else None

    def _caller(self, request: Request, peer: str, version: int) -> Caller | MillraceError:
        signed = read_signed(request.headers, request.query)
        if signed is None:
            known = self._guard.admit(request.headers, peer)
            if isinstance(known, Unauthenticated) and "authorization" not in request.headers:
                return unsigned_unsubscribe() if _unsubscribes(request) else nobody()
            if isinstance(known, MillraceError):
                return known
            return Caller(self, known, self.usual)
        if version != self._holders_of or len(self._holders) >= limits.AWS_SIGNING_KEYS_MAX:
            self._holders.clear()
            self._holders_of = version
        holder = self._holders.get((signed.stated, peer)) or self._find(signed.stated, peer)
        if holder is not None:
            return Caller(self, holder.principal, holder.home, signed, holder.signing_key)
        anonymous = self._guard.who(_unsigned(request.headers), peer)
        if anonymous is None:
            raise unknown_caller()
        return Caller(self, anonymous, self._home(signed.stated), signed)

    def _find(self, stated: Stated, peer: str) -> _Holder | None:
        """Who has the key that is stated; None: nobody."""
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

    def _home(self, stated: Stated, account: str = "") -> Home:
        """Where a key asks: in the account that it is of, or else that of its id, if it is one."""
        its = stated.key_id if is_account(stated.key_id) else self.usual.account
        return Home(account or its, stated.region)

    def failed(self, peer: str) -> MillraceError:
        """Count a signature that was wrong; `Exhausted`, if there were too many of late."""
        return self._guard.fail(peer)

    def space(self, home: Home) -> str:
        """The space of an account and region."""
        return space_of(home, self.usual)

    def answer_error(self, request: Request, error: MillraceError) -> Response:
        return answer_fault(request, fault_of(error))


# --- Answers -------------------------------------------------------------------------------------


def _ids() -> Callable[[], str]:
    """Makes ids of requests: one after the other, under a beginning of this process."""
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
    """Whether it is asked, and answered, in JSON."""
    return request.headers.get("content-type", "").startswith("application/x-amz-json")


def is_plain_json(request: Request) -> bool:
    """Return whether a query is answered in JSON: a GET that accepts it.

    Not of SNS, of which it is not known how it answers.
    """
    is_accepted = "application/json" in request.headers.get("accept", "")
    return request.method == "GET" and is_accepted and service_of(request) != "sns"


def service_of(request: Request) -> str:
    """The service that a request is for, as far as its head tells."""
    target = request.headers.get("x-amz-target", "")
    if target.startswith("AmazonSQS."):
        return "sqs"
    caller = request.caller
    if caller is None and _unsubscribes(request):
        return "sns"
    service = caller.service if isinstance(caller, Caller) else ""
    return service if service in NAMESPACES else "sqs"


def _unsubscribes(request: Request) -> bool:
    """Whether it is sent to the address by which messages of SNS say that a subscription ends."""
    return "Action=Unsubscribe" in request.query.split("&")


def answer_fault(request: Request, fault: Fault) -> Response:
    """What is answered to an error, in the protocol of the request."""
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
    # SQS alone has this element, always empty.
    detail = "<Detail/>" if service == "sqs" else ""
    text = (
        f'<?xml version="1.0"?>\n<ErrorResponse xmlns="{NAMESPACES[service]}"><Error>'
        f"<Type>{whose}</Type><Code>{text_of(fault.query)}</Code>"
        f"<Message>{text_of(fault.query_message)}</Message>{detail}</Error>"
        f"<RequestId>{one}</RequestId></ErrorResponse>"
    )
    return Response(fault.status, text.encode(), type=XML, headers=headers)
