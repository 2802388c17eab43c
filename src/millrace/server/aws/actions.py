"""Dispatch of AWS calls: services and their actions, parsing of requests, rendering of responses.

Rule 1: an action is a function from a Struct to a Struct, independent of the protocol of the
request.
Rule 2: a caller is authenticated before the body is parsed, and counted against the quota after.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from millrace.client.engine import CallbackEngine
from millrace.decoding import json_decoder
from millrace.errors import Exhausted, Invalid, MillraceError
from millrace.server.auth.access import Verb
from millrace.server.aws.api_protocol import (
    JSON,
    NAMESPACES,
    XML,
    AwsCaller,
    is_json,
    is_plain_json,
    request_id,
)
from millrace.server.aws.fault import (
    Fault,
    fault_of,
    invalid_action,
    missing_parameter,
    no_operation,
    too_large,
    unsupported,
)
from millrace.server.aws.query_protocol import (
    Named,
    Tree,
    read_fields,
    read_form,
    tree_of,
    write_plain,
    write_xml,
)
from millrace.server.clock import now_ms
from millrace.server.http.response import Response
from millrace.server.web.pending_request import PendingRequest
from millrace.server.web.route import RequestContext, Route, denied

RequestT = TypeVar("RequestT", bound=msgspec.Struct)
ResponseT = TypeVar("ResponseT", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode
FORM = "application/x-www-form-urlencoded"


class AwsCall(Generic[RequestT]):
    """One call of an action: its request, caller and parsed parameters."""

    __slots__ = ("action", "ask", "aws", "caller", "is_json", "is_plain", "told")

    def __init__(
        self,
        ask: RequestContext,
        caller: AwsCaller,
        action: Action,
        told: RequestT,
        *,
        is_json: bool,
        is_plain: bool = False,
    ) -> None:
        """`is_plain`: a query request that is answered in JSON."""
        self.ask = ask
        self.aws = caller.aws
        self.caller = caller
        self.action = action
        self.told = told
        self.is_json = is_json
        self.is_plain = is_plain

    @property
    def base(self) -> str:
        """The base URL of the server, with the host of the request."""
        headers = self.ask.request.headers
        forwarded = headers.get("x-forwarded-proto", "")
        scheme = forwarded if forwarded in ("http", "https") else self.aws.scheme
        return f"{scheme}://{headers.get('host', 'localhost')}"

    def may(self, verb: Verb, space: str, name: str) -> bool:
        """Return whether the caller has this right."""
        return self.caller.principal.may(verb, space, name)

    def check(self, verb: Verb, space: str, name: str) -> None:
        """Verify that the caller has this right; a denied administrative act is audited.

        Raises:
            Denied: the caller lacks the right.
        """
        if not self.caller.principal.may(verb, space, name) and not self.may_act(verb, space, name):
            raise denied(self.caller.principal, verb, space, name)

    def may_act(self, verb: Verb, space: str, name: str) -> bool:
        """Return whether the caller has this right, as `may`, and audit a denied administrative
        act.
        """
        if self.may(verb, space, name):
            return True
        if verb in ("manage", "admin"):
            action = self.action
            act = action.name if action.service.name == "sns" else _snake(action.name)
            self.ask.server.denied(self.caller.principal, act, f"{space}/{name}")
        return False

    def sees(self, space: str, name: str) -> bool:
        """Return whether the caller has any right to the resource of this name."""
        principal = self.caller.principal
        return any(principal.may(verb, space, name) for verb in _SEEN)

    def answer(self, gives: msgspec.Struct | None) -> Response:
        """Render a response in the protocol of the request."""
        one = request_id()
        headers = {"x-amzn-requestid": one}
        if self.is_json:
            body = _encode(gives) if gives is not None else b""
            headers["content-type"] = JSON
            return Response(200, body, type=JSON, headers=headers)
        service, name = self.action.service, self.action.name
        if self.is_plain:
            told = {} if gives is None else {f"{name}Result": write_plain(gives, service.named)}
            told["ResponseMetadata"] = {"RequestId": one}
            return Response(200, _encode({f"{name}Response": told}), headers=headers)
        inner = write_xml(gives, service.named, name)
        result = f"<{name}Result>{inner}</{name}Result>" if gives is not None else ""
        text = (
            f'<?xml version="1.0"?><{name}Response xmlns="{NAMESPACES[service.name]}">{result}'
            f"<ResponseMetadata><RequestId>{one}</RequestId></ResponseMetadata></{name}Response>"
        )
        return Response(200, text.encode(), type=XML, headers=headers)


def _snake(name: str) -> str:
    """Return the name of an action in snake case, as audited acts of the server are named."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


_SEEN: tuple[Verb, ...] = ("publish", "work", "read", "watch", "manage")

Does = Callable[[AwsCall[Any]], Awaitable[msgspec.Struct | Response | None]]
"""Runs an action; for a large response it returns the response itself."""
Begins = Callable[[AwsCall[Any], CallbackEngine], PendingRequest | None]
"""Starts an action without a task; if it returns None, the action runs in a task."""


@dataclass(slots=True)
class Action:
    """One action of a service."""

    service: AwsService
    name: str
    takes: type[msgspec.Struct]
    gives: type[msgspec.Struct] | None
    does: Does
    begins: Begins | None
    decoder: msgspec.json.Decoder[Any]
    route: Route
    """The route that its requests are counted under."""


@dataclass(slots=True)
class AwsService:
    """A service: its actions, and the names of lists and maps in its query protocol."""

    name: str
    target: str = ""
    """Prefix of `x-amz-target`; empty if the service has no JSON protocol."""
    named: Named = field(default_factory=dict)
    fault: Callable[[MillraceError], Fault] = fault_of
    """Translates errors that the actions did not expect."""
    actions: dict[str, Action] = field(default_factory=dict)

    def action(
        self,
        name: str,
        takes: type[RequestT],
        gives: type[ResponseT] | None = None,
        *,
        begins: Callable[[AwsCall[RequestT], CallbackEngine], PendingRequest | None] | None = None,
    ) -> Callable[
        [Callable[[AwsCall[RequestT]], Awaitable[ResponseT | Response | None]]],
        Callable[[AwsCall[RequestT]], Awaitable[ResponseT | Response | None]],
    ]:
        """Return a decorator that registers a function as an action."""

        def add(
            function: Callable[[AwsCall[RequestT]], Awaitable[ResponseT | Response | None]],
        ) -> Callable[[AwsCall[RequestT]], Awaitable[ResponseT | Response | None]]:
            route = Route(
                "POST", f"{self.name}:{name}", "known", answer_call, name, name, face="aws"
            )
            assert name not in self.actions, name
            self.actions[name] = Action(
                self, name, takes, gives, function, begins, json_decoder(takes), route
            )
            return function

        return add


async def answer_call(ask: RequestContext) -> Response:
    """Run the action of a request that was parsed.

    Raises:
        Fault: the action was refused; errors of AWS do not suggest queues of similar names.
    """
    call = ask.request.call
    assert isinstance(call, AwsCall)
    try:
        done = await call.action.does(call)
        return done if isinstance(done, Response) else call.answer(done)
    except MillraceError as error:
        raise call.action.service.fault(error) from error


def prove(ask: RequestContext, caller: AwsCaller) -> None:
    """Authenticate the caller of a request, and count the request against the quota.

    Raises:
        Fault: the signature is wrong, or the body is too large.
        Exhausted: the quota is used up, or the address had too many failed attempts.
    """
    if caller.failure is not None:
        raise caller.failure
    if len(ask.request.body) > caller.aws.body_bytes_max:
        # The body was chunked, so that the head had no length. It is refused before hashing or
        # decoding.
        raise too_large(caller.aws.body_bytes_max)
    if not caller.is_proved:
        try:
            caller.prove(ask.request)
        except Fault as fault:
            failed = caller.aws.failed(caller.principal.where)
            caller.failure = failed if isinstance(failed, Exhausted) else fault
            raise caller.failure from None
    request = ask.request
    if request.is_stranger:
        request.is_stranger = False
        if request.on_proved is not None:
            request.on_proved()
            request.on_proved = None
    if not ask.is_charged:
        ask.server.quotas.take(caller.principal, now_ms(), size=len(ask.request.body))
        ask.is_charged = True


class AwsServices:
    """All services with their actions; resolves a request to its call."""

    def __init__(self, *services: AwsService) -> None:
        self._services = {service.name: service for service in services}
        self._targets = {
            f"{service.target}.{name}": action
            for service in services
            if service.target
            for name, action in service.actions.items()
        }

    def read(self, ask: RequestContext) -> AwsCall[Any]:
        """Authenticate a request and parse its call.

        Raises:
            Fault: the call is invalid, or the caller is not authenticated.
            Exhausted: the quota is used up.
        """
        request = ask.request
        if isinstance(request.call, AwsCall):
            return request.call
        caller = request.caller
        assert isinstance(caller, AwsCaller)
        prove(ask, caller)
        call = self._json(ask, caller) if is_json(request) else self._form(ask, caller)
        request.call = call
        ask.route = call.action.route
        return call

    def _json(self, ask: RequestContext, caller: AwsCaller) -> AwsCall[Any]:
        request = ask.request
        target = request.headers.get("x-amz-target", "")
        action = self._targets.get(target)
        if action is None:
            raise unsupported(f"The operation {target[:100]} is not supported here.")
        try:
            told = action.decoder.decode(request.body or b"{}")
        except msgspec.ValidationError as error:
            raise _unfit(error, action.service) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Fault("SerializationException", f"The body is no JSON: {error}") from error
        return AwsCall(ask, caller, action, told, is_json=True)

    def _form(self, ask: RequestContext, caller: AwsCaller) -> AwsCall[Any]:
        request = ask.request
        text = request.query
        if request.body:
            kind = ask.type
            if kind not in (FORM, ""):
                raise Fault("UnknownOperationException", f"The body is {kind[:80]!r}, not {FORM}.")
            try:
                body = bytes(request.body).decode("ascii")
            except UnicodeDecodeError as error:
                raise Fault("MalformedQueryString", "The form is not in ASCII.") from error
            text = f"{text}&{body}" if text else body
        fields = read_fields(text) if text else {}
        is_at_queue = "queue" in ask.params
        if is_at_queue and request.method == "GET" and not fields.get("Action"):
            raise no_operation()
        action = self._named(caller, fields, is_at_queue=is_at_queue)
        tree = tree_of({name: one for name, one in fields.items() if not name.startswith("X-Amz-")})
        if is_at_queue and "QueueUrl" not in tree and _takes_queue(action):
            _at_queue(tree, ask.params)
        try:
            told = read_form(tree, action.takes, action.service.named, action.name)
        except msgspec.ValidationError as error:
            raise _unfit(error, action.service) from error
        return AwsCall(ask, caller, action, told, is_json=False, is_plain=is_plain_json(request))

    def _named(self, caller: AwsCaller, fields: Mapping[str, str], *, is_at_queue: bool) -> Action:
        name = fields.get("Action", "")
        if not name:
            raise Fault("MissingAction", "The request must contain the parameter Action.")
        signed = self._services.get(caller.service)
        for service in (signed,) if signed is not None else self._services.values():
            action = service.actions.get(name)
            if action is not None:
                if is_at_queue and name != "GetQueueUrl" and not _takes_queue(action):
                    raise invalid_action(name)
                return action
        if is_at_queue:
            raise invalid_action(name)
        told = f"The operation {name[:100]} is not supported here."
        raise unsupported(told, caller.service or "sqs")


def _takes_queue(action: Action) -> bool:
    return "queue_url" in action.takes.__struct_fields__


def _at_queue(tree: Tree, params: Mapping[str, str]) -> None:
    """Take the queue from the path of the request; a path without a host is a valid queue URL."""
    region = params.get("region", "")
    before = f"/queue/{region}" if region else ""
    tree["QueueUrl"] = f"{before}/{params['account']}/{params['queue']}"


def _unfit(error: msgspec.ValidationError, service: AwsService) -> Fault:
    """Translate a validation error of the parameters."""
    text = str(error)
    if "missing required field" in text:
        missing = missing_parameter(text.split("`")[1])
        if service.name == "sqs":
            return missing
        return service.fault(Invalid(missing.message, field="parameters"))
    if "contains unknown field" in text:
        told = f"The parameter {text.split('`')[1]} is not supported here."
        return unsupported(told, service.name)
    return service.fault(Invalid(text, field="parameters"))
