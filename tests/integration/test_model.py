"""Calls and answers are what the models of AWS say, by botocore's own writers and parsers.

Whatever a call may hold is written by botocore in each protocol, and read here as the same.
Whatever an action may answer is written here in each protocol, and read by botocore as the same.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import urlencode

import msgspec
import pytest
from botocore import parsers, serialize
from botocore.loaders import Loader
from botocore.model import (
    ListShape,
    MapShape,
    OperationModel,
    ServiceModel,
    Shape,
    StringShape,
    StructureShape,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.decoding import convert
from millrace.errors import Invalid, Retry
from millrace.server.aws.actions import Action, AwsCall
from millrace.server.aws.api_protocol import JSON, answer_fault
from millrace.server.aws.fault import Fault, bad_contents, fault_of
from millrace.server.aws.query_protocol import read_fields, read_form, tree_of
from millrace.server.http.parser import Request
from millrace.server.sns.actions import SNS
from millrace.server.sns.unsupported import UNSUPPORTED
from millrace.server.sqs import faults
from millrace.server.sqs.actions import SQS
from millrace.server.sqs.schemas import CreateQueueIn
from tests.integration.environments import have_python

TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])
    | st.sampled_from("\t\n\r<&>\"' "),
    max_size=12,
)
NAME = st.text("abcXYZ012-_", min_size=1, max_size=8)
SERVICE_ACTIONS = [
    action
    for service in (SQS, SNS)
    for name, action in service.actions.items()
    if name not in UNSUPPORTED
]


def model_of(service: str) -> ServiceModel:
    """The model of today."""
    description = Loader().load_service_model(service, "service-2")
    return ServiceModel(cast("Any", description), service)


def older_model() -> ServiceModel:
    """The model by which SQS was spoken in forms and XML."""
    root = have_python("boto3-query").parent.parent
    [file] = root.glob("lib/python*/site-packages/botocore/data/sqs/2012-11-05/service-2.json")
    return ServiceModel(json.loads(file.read_text(encoding="utf-8")), "sqs")


@pytest.fixture(scope="module")
def models() -> dict[str, list[ServiceModel]]:
    """By which each service is spoken, newest first."""
    return {"sqs": [model_of("sqs"), older_model()], "sns": [model_of("sns")]}


# --- Calls ---------------------------------------------------------------------------------------


def params(shape: Shape, known: frozenset[str] | None = None) -> st.SearchStrategy[Any]:
    """Whatever a shape may hold."""
    if isinstance(shape, StructureShape):
        members = {
            name: params(member)
            for name, member in shape.members.items()
            if known is None or name in known
        }
        needed = {name: one for name, one in members.items() if name in shape.required_members}
        rest = {name: one for name, one in members.items() if name not in needed}
        return st.fixed_dictionaries(needed, optional=rest)
    if isinstance(shape, ListShape):
        return st.lists(params(shape.member), min_size=1, max_size=3)
    if isinstance(shape, MapShape):
        key = NAME
        if isinstance(shape.key, StringShape) and shape.key.enum:
            key = st.sampled_from(shape.key.enum)
        return st.dictionaries(key, params(shape.value), min_size=1, max_size=3)
    if isinstance(shape, StringShape) and shape.enum:
        return st.sampled_from(shape.enum)
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "string": TEXT,
        "integer": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "boolean": st.booleans(),
        "blob": st.binary(max_size=20),
    }
    return kinds[shape.type_name]


def in_form(action: Action, model: ServiceModel, told: dict[str, Any]) -> msgspec.Struct:
    """A call as botocore writes it in a form, read."""
    writer = serialize.create_serializer("query", include_validation=False)
    request = writer.serialize_to_request(told, model.operation_model(action.name))
    fields = read_fields(urlencode(cast("dict[str, str]", request["body"])))
    return read_form(tree_of(fields), action.takes, action.service.named, action.name)


def in_json(action: Action, model: ServiceModel, told: dict[str, Any]) -> msgspec.Struct:
    """A call as botocore writes it in JSON, read."""
    writer = serialize.create_serializer("json", include_validation=False)
    request = writer.serialize_to_request(told, model.operation_model(action.name))
    found: msgspec.Struct = action.decoder.decode(cast("bytes", request["body"]))
    return found


@pytest.mark.parametrize(
    "action", SERVICE_ACTIONS, ids=lambda one: f"{one.service.name} {one.name}"
)
def test_calls_are_read_alike(action: Action, models: dict[str, list[ServiceModel]]) -> None:
    found = models[action.service.name]
    shapes = [one.operation_model(action.name).input_shape for one in found]
    known = frozenset(shapes[-1].members) if shapes[-1] is not None else frozenset()
    assert shapes[0] is not None

    @settings(max_examples=25)
    @given(params(shapes[0], known))
    def check(told: dict[str, Any]) -> None:
        read = in_form(action, found[-1], told)
        if isinstance(read, CreateQueueIn):
            # Tags have two names in JSON, and one in forms.
            read = msgspec.structs.replace(read, more_tags={})
        assert read == convert(told, action.takes)
        if len(found) > 1:
            assert in_json(action, found[0], told) == read

    check()


# --- Answers -------------------------------------------------------------------------------------


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Whatever a field of an answer may hold."""
    kind = msgspec.inspect.type_info(kind) if not isinstance(kind, msgspec.inspect.Type) else kind
    match kind:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            given_fields = {one.name: values(one.type) for one in fields}
            return st.fixed_dictionaries(given_fields).map(lambda found: cls(**found))
        case msgspec.inspect.ListType(item_type=item):
            return st.lists(values(item), max_size=3)
        case msgspec.inspect.DictType(value_type=value):
            return st.dictionaries(NAME, values(value), max_size=3)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of(*map(values, types))
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.IntType():
            return st.integers(0, 2**31 - 1)
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.BytesType():
            return st.binary(max_size=20)
        case msgspec.inspect.StrType():
            return TEXT
    raise AssertionError(kind)


def parsed(model: OperationModel, action: Action, gives: msgspec.Struct, *, is_json: bool) -> Any:
    """What botocore reads of an answer, without what says nothing."""
    call: AwsCall[Any] = AwsCall(
        cast("Any", None), cast("Any", _Nobody), action, None, is_json=is_json
    )
    answer = call.answer(gives)
    reader = parsers.create_parser("json" if is_json else "query")
    response = {"status_code": 200, "headers": {}, "body": bytes(cast("bytes", answer.body))}
    found = reader.parse(cast("Any", response), cast("Any", model.output_shape))
    found.pop("ResponseMetadata", None)
    return plain(found)


class _Nobody:
    aws = None


def plain(found: Any) -> Any:
    """Without fields that are empty; a time as its milliseconds."""
    if isinstance(found, dict):
        kept = {name: plain(value) for name, value in found.items()}
        return {name: value for name, value in kept.items() if value not in (None, [], {})}
    if isinstance(found, list):
        return [plain(one) for one in found]
    if isinstance(found, datetime):
        return round(found.astimezone(UTC).timestamp() * 1000)
    return found


@pytest.mark.parametrize(
    "action",
    [one for one in SERVICE_ACTIONS if one.gives is not None],
    ids=lambda one: f"{one.service.name} {one.name}",
)
def test_answers_are_read_alike(action: Action, models: dict[str, list[ServiceModel]]) -> None:
    found = models[action.service.name]
    assert action.gives is not None

    @settings(max_examples=25)
    @given(values(action.gives))
    def check(gives: msgspec.Struct) -> None:
        told = plain(msgspec.to_builtins(gives, builtin_types=(bytes,)))
        newest, oldest = (one.operation_model(action.name) for one in (found[0], found[-1]))
        assert parsed(oldest, action, gives, is_json=False) == told
        if len(found) > 1:
            assert parsed(newest, action, gives, is_json=True) == told

    check()


@pytest.mark.parametrize("service", ["sqs", "sns"])
def test_every_action_is_one_of_the_model(
    service: str, models: dict[str, list[ServiceModel]]
) -> None:
    actions = (SQS if service == "sqs" else SNS).actions
    model = models[service][0]
    assert set(actions) == set(model.operation_names)
    for name, action in actions.items():
        if name in UNSUPPORTED:
            continue
        operation = model.operation_model(name)
        said = set(operation.output_shape.members) if operation.output_shape is not None else set()
        given_back = msgspec.structs.fields(action.gives) if action.gives is not None else ()
        assert {one.encode_name for one in given_back} == said, name
        asked = operation.input_shape
        taken = {one.encode_name for one in msgspec.structs.fields(action.takes)}
        missing = set(asked.members if asked is not None else ()) - taken
        assert not missing, (name, missing)


# --- Errors --------------------------------------------------------------------------------------

FAULTS = [
    faults.no_queue(),
    faults.queue_exists("DelaySeconds"),
    faults.fifo_attribute("<&>"),
    faults.purged_lately("x", 60),
    faults.deleted_lately(60),
    faults.unknown_attribute("x"),
    faults.bad_attribute("x"),
    faults.bad_receipt("é"),
    faults.over_limit("x"),
    faults.no_entries("x"),
    faults.too_many_entries(11, 10),
    faults.same_ids("x"),
    faults.bad_entry_id(),
    faults.batch_too_long(1, 2),
    bad_contents(),
    faults.not_found("x"),
    fault_of(Invalid("<&> é")),
    fault_of(Retry("later")),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
@pytest.mark.parametrize("is_json", [True, False], ids=["json", "form"])
def test_errors_are_read_alike(
    models: dict[str, list[ServiceModel]], fault: Fault, *, is_json: bool
) -> None:
    request = Request()
    request.headers = {"content-type": JSON if is_json else "application/x-www-form-urlencoded"}
    answer = answer_fault(request, fault)
    model = models["sqs"][0 if is_json else -1]
    shape = model.operation_model("SendMessage").output_shape
    response = {
        "status_code": answer.status,
        "headers": dict(answer.headers),
        "body": bytes(cast("bytes", answer.body)),
    }
    reader = parsers.create_parser("json" if is_json else "query")
    found = reader.parse(cast("Any", response), cast("Any", shape))["Error"]
    assert found["Message"] == (fault.message if is_json else fault.query_message)
    # In JSON the code of old is told beside the name that the model has.
    assert found["Code"] == fault.query
    if is_json:
        assert found["QueryErrorCode"] == fault.kind
