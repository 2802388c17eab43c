"""Calls of AWS's APIs: which action of which service, what it is asked, and how it is answered.

Rule 1: an action is a function from a Struct to a Struct; in which protocol it was asked it does
not know.
Rule 2: whoever asks is proved before anything of the body is believed, and counted after.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from millrace.client.submitting import Submits
from millrace.decoding import json_decoder
from millrace.errors import Exhausted, Invalid, MillraceError
from millrace.server.access import Verb
from millrace.server.aws.face import (
    JSON,
    NAMESPACES,
    XML,
    Caller,
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
from millrace.server.aws.form import (
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
from millrace.server.rest.route import Ask, Route, denied
from millrace.server.rest.under import Under

Takes = TypeVar("Takes", bound=msgspec.Struct)
Gives = TypeVar("Gives", bound=msgspec.Struct)

_encode = msgspec.json.Encoder().encode
FORM = "application/x-www-form-urlencoded"


class Call(Generic[Takes]):
    """A call on its way through an action."""

    __slots__ = ("action", "ask", "aws", "caller", "is_json", "is_plain", "told")

    def __init__(
        self,
        ask: Ask,
        caller: Caller,
        action: Action,
        told: Takes,
        *,
        is_json: bool,
        is_plain: bool = False,
    ) -> None:
        """`is_plain`: a query that is answered in JSON."""
        self.ask = ask
        self.aws = caller.aws
        self.caller = caller
        self.action = action
        self.told = told
        self.is_json = is_json
        self.is_plain = is_plain

    @property
    def base(self) -> str:
        """Where the server is, by the host that the caller has asked at."""
        headers = self.ask.request.headers
        forwarded = headers.get("x-forwarded-proto", "")
        scheme = forwarded if forwarded in ("http", "https") else self.aws.scheme
        return f"{scheme}://{headers.get('host', 'localhost')}"

    def may(self, verb: Verb, space: str, name: str) -> bool:
        """Whether whoever asks may do this."""
        return self.caller.principal.may(verb, space, name)

    def check(self, verb: Verb, space: str, name: str) -> None:
        """See that whoever asks may do this.

        Raises:
            Denied: they may not.
        """
        if not self.caller.principal.may(verb, space, name) and not self.may_act(verb, space, name):
            raise denied(self.caller.principal, verb, space, name)

    def may_act(self, verb: Verb, space: str, name: str) -> bool:
        """As `may`, of what is about to be done: an act that is denied is noted."""
        if self.may(verb, space, name):
            return True
        if verb in ("manage", "admin"):
            action = self.action
            act = action.name if action.service.name == "sns" else _snake(action.name)
            self.ask.server.denied(self.caller.principal, act, f"{space}/{name}")
        return False

    def sees(self, space: str, name: str) -> bool:
        """Whether whoever asks may do anything at all with what has this name."""
        principal = self.caller.principal
        return any(principal.may(verb, space, name) for verb in _SEEN)

    def answer(self, gives: msgspec.Struct | None) -> Response:
        """What is answered."""
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
    """The name of an action as those of the server's own acts are written."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


_SEEN: tuple[Verb, ...] = ("publish", "work", "read", "watch", "manage")

Does = Callable[[Call[Any]], Awaitable[msgspec.Struct | Response | None]]
"""Does an action; a large answer makes its response itself."""
Begins = Callable[[Call[Any], Submits], Under | None]
"""Begins an action without a task; None: it goes the way of all others."""


@dataclass(slots=True)
class Action:
    """One action of a service."""

    service: Service
    name: str
    takes: type[msgspec.Struct]
    gives: type[msgspec.Struct] | None
    does: Does
    begins: Begins | None
    decoder: msgspec.json.Decoder[Any]
    route: Route
    """As which its requests are counted."""


@dataclass(slots=True)
class Service:
    """A service: its actions, and how its lists and maps are called in forms."""

    name: str
    target: str = ""
    """What stands before the dot of `x-amz-target`; empty: it is not spoken in JSON."""
    named: Named = field(default_factory=dict)
    fault: Callable[[MillraceError], Fault] = fault_of
    """How it tells errors that it did not foresee."""
    actions: dict[str, Action] = field(default_factory=dict)

    def action(
        self,
        name: str,
        takes: type[Takes],
        gives: type[Gives] | None = None,
        *,
        begins: Callable[[Call[Takes], Submits], Under | None] | None = None,
    ) -> Callable[
        [Callable[[Call[Takes]], Awaitable[Gives | Response | None]]],
        Callable[[Call[Takes]], Awaitable[Gives | Response | None]],
    ]:
        """Have a function answer an action."""

        def add(
            function: Callable[[Call[Takes]], Awaitable[Gives | Response | None]],
        ) -> Callable[[Call[Takes]], Awaitable[Gives | Response | None]]:
            route = Route(
                "POST", f"{self.name}:{name}", "known", answer_call, name, name, face="aws"
            )
            assert name not in self.actions, name
            self.actions[name] = Action(
                self, name, takes, gives, function, begins, json_decoder(takes), route
            )
            return function

        return add


async def answer_call(ask: Ask) -> Response:
    """Do what a request asks for whose call was read.

    Raises:
        Fault: it was refused; in the words of AWS, which tell nothing of queues of similar names.
    """
    call = ask.request.call
    assert isinstance(call, Call)
    try:
        done = await call.action.does(call)
        return done if isinstance(done, Response) else call.answer(done)
    except MillraceError as error:
        raise call.action.service.fault(error) from error


def prove(ask: Ask, caller: Caller) -> None:
    """See that whoever asks is who they say they are, and count the request against their quota.

    Raises:
        Fault: they are not.
        Exhausted: they have had what they may have, or their address has failed too often.
    """
    if caller.failure is not None:
        raise caller.failure
    if len(ask.request.body) > caller.aws.body_bytes_max:
        # Its head did not tell: it came in chunks. It is neither hashed nor decoded.
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


class Services:
    """All services that are spoken, and the call that a request makes."""

    def __init__(self, *services: Service) -> None:
        self._services = {service.name: service for service in services}
        self._targets = {
            f"{service.target}.{name}": action
            for service in services
            if service.target
            for name, action in service.actions.items()
        }

    def read(self, ask: Ask) -> Call[Any]:
        """The call that a request makes; whoever sent it is proved, and counted.

        Raises:
            Fault: it is no call, or whoever sent it is not who they say they are.
            Exhausted: they have had what they may have.
        """
        request = ask.request
        if isinstance(request.call, Call):
            return request.call
        caller = request.caller
        assert isinstance(caller, Caller)
        prove(ask, caller)
        call = self._json(ask, caller) if is_json(request) else self._form(ask, caller)
        request.call = call
        ask.route = call.action.route
        return call

    def _json(self, ask: Ask, caller: Caller) -> Call[Any]:
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
        return Call(ask, caller, action, told, is_json=True)

    def _form(self, ask: Ask, caller: Caller) -> Call[Any]:
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
        return Call(ask, caller, action, told, is_json=False, is_plain=is_plain_json(request))

    def _named(self, caller: Caller, fields: Mapping[str, str], *, is_at_queue: bool) -> Action:
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
    """The address says which queue; a path without a host is one as well."""
    region = params.get("region", "")
    before = f"/queue/{region}" if region else ""
    tree["QueueUrl"] = f"{before}/{params['account']}/{params['queue']}"


def _unfit(error: msgspec.ValidationError, service: Service) -> Fault:
    """What a call says that its action cannot take."""
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
