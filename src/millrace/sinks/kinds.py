"""The registry of sinks, by kind and settings in declarations and by URL in commands.

Settings are validated here, with errors that name the correct value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args, get_origin
from urllib.parse import parse_qsl, urlsplit, urlunsplit
from zlib import crc32

import msgspec

from millrace.decoding import convert
from millrace.errors import Invalid
from millrace.sinks.base import Sink
from millrace.sinks.wording import masked

_HOMES = {
    "console": "Console",
    "delta": "Delta",
    "iceberg": "Iceberg",
    "parquet": "Parquet",
    "postgres": "Postgres",
    "queue": "QueueSink",
    "redis": "Redis",
    "search": "Search",
}
"""Class name by kind; the kind is the name of its module in this package."""

_SCHEMES = {"postgresql": "postgres", "rediss": "redis"}
"""Further URL schemes."""

_PATHS = ("delta", "iceberg", "parquet")
"""Kinds that are folders; their URLs have no host."""


def make_sink(kind: str, settings: Mapping[str, object], folder: str | Path = ".") -> Sink:
    """Make a sink from its settings, without connecting to it.

    A kind "package.module:Class" is a class of the program. A relative `path` is resolved against
    `folder`, so that processes elsewhere that stage rows find the same place.

    Raises:
        Invalid: the kind does not exist, or a setting is wrong; `field` names it.
    """
    if ":" in kind:
        home, _, name = kind.partition(":")
    elif kind in _HOMES:
        home, name = f"millrace.sinks.{kind}", _HOMES[kind]
    else:
        raise Invalid(
            f"there is no sink {kind!r}; there are {', '.join(_HOMES)}, or your own as "
            "package.module:Class",
            field="kind",
        )
    try:
        found = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if kind not in _HOMES and home.startswith(str(error.name)):
            raise Invalid(
                f"there is no sink {kind!r}, since there is no module {error.name}; there are "
                f"{', '.join(_HOMES)}",
                field="kind",
            ) from None
        raise Invalid(
            f"sink {kind!r} needs {error.name}; install millrace[{kind}]", field="kind"
        ) from error
    except AttributeError:
        raise Invalid(f"{home} has no {name}", field="kind") from None
    try:
        # Settings from a URL are text.
        sink: Sink = convert(_placed(settings, folder), found, strict=False)
    except msgspec.ValidationError as error:
        field, text = misfit(error, found)
        where = f"{field}: " if field and field not in text else ""
        raise Invalid(f"sink {kind!r}: {where}{text}", field=field or "settings") from None
    return sink


def kind_of(address: str) -> str:
    """Return the kind of sink in a URL.

    Raises:
        Invalid: it is not the URL of a sink.
    """
    found = urlsplit(address)
    scheme, _, _ = found.scheme.partition("+")
    if not scheme:
        raise Invalid(
            f"{masked(address)!r} is not the address of a sink, such as delta:/lake/orders or "
            "redis://localhost:6379/0",
            field="into",
        )
    if scheme not in _HOMES and found.path.isidentifier():
        return f"{scheme}:{found.path}"
    return _SCHEMES.get(scheme, scheme)


def place_of(address: str) -> str:
    """Return a short hash that identifies the place a URL refers to: it differs for each table,
    index, queue or database, and does not depend on credentials and other settings.
    """
    found = urlsplit(address)
    _, _, host = found.netloc.rpartition("@")
    path = found.path
    if kind_of(address) in _PATHS:
        path = str(Path(path).absolute())
    named = [value for name, value in parse_qsl(found.query) if name in ("table", "index", "queue")]
    return f"{crc32(repr((host, path, named)).encode()):08x}"


def _placed(settings: Mapping[str, object], folder: str | Path) -> dict[str, object]:
    placed = dict(settings)
    path = placed.get("path")
    if isinstance(path, str) and path and "://" not in path:
        placed["path"] = str(Path(folder, path).absolute())
    return placed


def parse_sink(address: str) -> Sink:
    """Make a sink from its URL: `delta:/lake/orders?mode=upsert&key=id`, `redis://host/0`.

    The query part has the settings; several columns of a key are separated by commas.

    Raises:
        Invalid: it is not the URL of a sink.
    """
    kind, found = kind_of(address), urlsplit(address)
    _, _, inner = found.scheme.partition("+")
    settings: dict[str, object] = {
        name: value.split(",") if name == "key" else value
        for name, value in parse_qsl(found.query, keep_blank_values=True)
    }
    if kind in _PATHS or (kind == "queue" and not found.netloc):
        settings["path"] = found.netloc + found.path
    elif found.netloc:
        settings["url"] = urlunsplit((inner or found.scheme, found.netloc, found.path, "", ""))
    return make_sink(kind, settings)


# --- Readable messages for validation errors of settings, with advice on the correct value -------

_UNKNOWN = "Object contains unknown field `"
_NO_CHOICE = "Invalid enum value "
_MISSING = "Object missing required field `"
_KIND = re.compile(r"Expected `(\w+)`, got `(\w+)`")

_KINDS = {
    "str": "text in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a table",
    "array": "a list",
}
"""Names of value types in messages."""


def misfit(error: msgspec.ValidationError, kind: object) -> tuple[str, str]:
    """Return the name of the wrong field of `kind`, or an empty text, and a message."""
    text, _, path = str(error).partition(" - at `$")
    field = path.strip("`.").partition(".")[0].partition("[")[0]
    known = _fields(kind)
    if not field and text.startswith(_UNKNOWN):
        field = text.removeprefix(_UNKNOWN).rstrip("`")
        if not known:
            return field, text
        near = get_close_matches(field, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        return field, f"there is no setting {field!r}; {hint}"
    if text.startswith(_NO_CHOICE) and get_origin(known.get(field)) is Literal:
        choices = ", ".join(map(str, get_args(known[field])))
        return field, f"{text.removeprefix(_NO_CHOICE)} is none of {choices}"
    if not field and text.startswith(_MISSING):
        field = text.removeprefix(_MISSING).rstrip("`")
        return field, f"the setting {field!r} is missing"
    kinds = _KIND.fullmatch(text)
    if kinds is not None and field:
        wanted, got = (_KINDS.get(kind, kind) for kind in kinds.groups())
        return field, f"it is {got}, and should be {wanted}"
    if not field and "`" in text:
        field = text.split("`")[1]
    return field, text


def _fields(kind: object) -> dict[str, object]:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        return {}
    return {found.encode_name: found.type for found in msgspec.structs.fields(kind)}
