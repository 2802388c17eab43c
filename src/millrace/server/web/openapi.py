"""The OpenAPI 3.1 document of the API, generated from the table of routes.

The description of a field is written once, in the source: the docstring below the field.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cache
from textwrap import dedent
from typing import cast

import msgspec
import msgspec.inspect

from millrace import limits
from millrace.server.web.problem import TYPE as PROBLEM
from millrace.server.web.problem import Problem
from millrace.server.web.route import (
    JSON,
    Media,
    Route,
    Routes,
)

Json = dict[str, object]

_TEMPLATE = "#/components/schemas/{name}"
_NAMES = ("space", "queue", "cursor", "stage", "producer", "subscription")
"""Path parameters that are names, except for topics."""

_NAME: Json = {
    "type": "string",
    "pattern": "^[A-Za-z0-9_.-]+$",
    "minLength": 1,
    "maxLength": limits.NAME_CHARS_MAX,
}
_TOPIC: Json = {**_NAME, "maxLength": limits.TOPIC_NAME_CHARS_MAX}
_PARAM = re.compile(r"\{(\w+)\}")

COMPONENT_NAMES: dict[str, str] = {
    "DeleteResult": "Deleted",
    "Readiness": "Ready",
    "RowPage": "Rows",
    "SessionConfirmation": "Done",
    "SettingsBody": "Settings",
    "SettleResult": "Ended",
    "StageResult": "Staged",
    "WaitResult": "Reached",
}
"""Published names of components, by the name of their class where that differs.

Generated clients are built from these names: a class may be renamed, its component may not.
"""


def describe(routes: Routes, version: str) -> Json:
    """Return the whole document."""
    kinds = _kinds(routes)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    for kind in _structs_of(kinds):
        _annotate(components[kind.__name__], kind)
    of = {kind: _renamed(schema) for kind, schema in zip(kinds, schemas, strict=True)}
    components = {
        _published(name): {**_renamed(schema), "title": _published(name)}
        for name, schema in components.items()
    }
    paths: dict[str, Json] = {}
    for route in routes.all:
        operation = _operation(route, of, components)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Millrace",
            "version": version,
            "description": "A durable message queue. Errors are problem details (RFC 9457); their "
            "`outcome` says whether the same request may be sent again.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "The user's name, and a token as the password.",
                },
            },
        },
        "security": [{"token": []}, {"password": []}],
    }


def _kinds(routes: Routes) -> list[object]:
    """Return every type of a JSON body or query, once."""
    found: list[object] = [Problem]
    for route in routes.all:
        for kind in (route.takes, route.gives, route.query):
            if kind is not None and kind not in found:
                found.append(kind)
    return found


def _published(class_name: str) -> str:
    """Return the name of a component, which stays when its class is renamed."""
    return COMPONENT_NAMES.get(class_name, class_name)


def _renamed(schema: Json) -> Json:
    """Return a schema whose references use the published names."""

    def rename(node: object) -> object:
        if isinstance(node, dict):
            return {
                key: _TEMPLATE.format(name=_published(value.rpartition("/")[2]))
                if key == "$ref" and isinstance(value, str)
                else rename(value)
                for key, value in node.items()
            }
        return [rename(one) for one in node] if isinstance(node, list) else node

    return cast("Json", rename(schema))


def _operation(route: Route, of: dict[object, Json], components: dict[str, Json]) -> Json:
    summary, _, more = route.summary.partition("\n")
    operation: Json = {
        "operationId": route.name,
        "summary": summary.rstrip("."),
        "tags": [route.tag or "other"],
        "x-millrace-verb": route.verb,
        "parameters": _parameters(route, components),
        "responses": _responses(route, of),
    }
    if more.strip():
        operation["description"] = dedent(more).strip()
    if route.verb == "public":
        operation["security"] = []
    if not route.takes_query and (route.takes is not None or route.also_takes):
        content: dict[str, object] = {}
        if route.takes is not None:
            content[JSON] = {"schema": of[route.takes]}
        content.update(_media(route.also_takes))
        operation["requestBody"] = {"content": content, "required": _needs_body(route)}
    return operation


def _needs_body(route: Route) -> bool:
    takes = route.takes
    return takes is None or any(one.required for one in msgspec.structs.fields(takes))


def _media(media: tuple[Media, ...]) -> dict[str, object]:
    """Return the content of bodies that are not JSON."""
    return {one.type: {"schema": {"description": one.text}} for one in media}


def _schema_of(part: str) -> Json:
    """Return the schema of a path parameter."""
    if part == "topic":
        return _TOPIC
    return _NAME if part in _NAMES else {"type": "string", "minLength": 1}


def _parameters(route: Route, components: dict[str, Json]) -> list[Json]:
    found: list[Json] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _schema_of(name),
        }
        for name in _PARAM.findall(route.path)
    ]
    taken = route.takes if route.takes_query else route.query
    if taken is None:
        return found
    properties = components[_published(taken.__name__)]["properties"]
    assert isinstance(properties, dict)
    for one in msgspec.structs.fields(taken):
        schema = _without_null(properties[one.encode_name])
        parameter: Json = {"name": one.encode_name, "in": "query", "required": one.required}
        text = schema.pop("description", None)
        if text is not None:
            parameter["description"] = text
        found.append({**parameter, "schema": schema})
    return found


def _without_null(schema: Json) -> Json:
    """Return a schema for a query parameter, where omission takes the place of null."""
    found = dict(schema)
    if found.get("default", 0) is None:
        del found["default"]
    options = found.get("anyOf")
    if isinstance(options, list):
        left = [one for one in options if one != {"type": "null"}]
        del found["anyOf"]
        found = {**left[0], **found} if len(left) == 1 else {**found, "anyOf": left}
    return found


def _responses(route: Route, of: dict[object, Json]) -> Json:
    content: dict[str, object] = {}
    if route.gives is not None:
        content[JSON] = {"schema": of[route.gives]}
    content.update(_media(route.gives_media))
    done: Json = {"description": "As asked."}
    if content:
        done["content"] = content
    refused: Json = {
        "description": "Not as asked; the problem says why, and what to do next.",
        "content": {PROBLEM: {"schema": of[Problem]}},
    }
    statuses = {str(status): done for status in (route.status, *route.also_status)}
    return {**statuses, "4XX": refused, "5XX": refused}


# --- What fields mean ----------------------------------------------------------------------------


def _structs_of(kinds: list[object]) -> list[type[msgspec.Struct]]:
    """Return every struct that the bodies of this API consist of."""
    structs: list[type[msgspec.Struct]] = []
    seen: set[int] = set()
    waiting: list[object] = list(msgspec.inspect.multi_type_info(kinds))
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple | list):
            waiting.extend(node)
        elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, msgspec.inspect.StructType) and node.cls not in structs:
                structs.append(node.cls)
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)
    return structs


def _annotate(schema: Json, kind: type[msgspec.Struct]) -> None:
    """Describe each field by the text below it in the source."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        texts |= _texts(base)
    for one in msgspec.structs.fields(kind):
        text = texts.get(one.name)
        if text is not None:
            properties[one.encode_name]["description"] = text


@cache
def _texts(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class; empty if the source is not available."""
    if not kind.__module__.startswith("millrace.") or kind.__module__ not in sys.modules:
        return {}
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return {}
    [found] = ast.parse(dedent(source)).body
    assert isinstance(found, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(found.body, found.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            texts[field.target.id] = " ".join(below.value.value.split())
    return texts
