"""Lists the public surface as lines of text, one function for each golden file.

No list holds names of internals (modules, private classes): a refactoring must leave every line as
it is. Help texts, descriptions and messages are left out: they may be reworded.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec

import millrace
from millrace import errors, sync
from millrace.cli import exit_errors
from millrace.cli.program import program
from millrace.client.settings import QueueSettings
from millrace.core.model import ShardId
from millrace.rpc.answers import ANSWERS as ANSWER_CODEC
from millrace.rpc.calls import CALLS, Submit
from millrace.rpc.codec import FrameWriter
from millrace.rpc.error_codec import ERROR
from millrace.rpc.frames import BlobWriter
from millrace.server.process.server_settings import ServerSettings
from millrace.server.rest.routes import ROUTES
from millrace.server.web.openapi import describe
from millrace.server.web.problem import answer_error
from millrace.settings import Settings
from tests.rpc.samples import ANSWERS, COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "millrace"


def rest() -> Iterator[str]:
    """Paths with their methods, parameters and bodies, and components with their fields."""
    described = json.loads(msgspec.json.encode(describe(ROUTES, "1")))
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}: {operation['operationId']}"
            for one in operation["parameters"]:
                needed = " required" if one["required"] else ""
                yield f"    {one['in']} {one['name']}{needed}: {_shape(one['schema'])}"
            for media, body in operation.get("requestBody", {}).get("content", {}).items():
                yield f"    takes {media}: {_shape(body['schema'])}"
            for status, answer in operation["responses"].items():
                for media, body in answer.get("content", {}).items():
                    yield f"    {status} {media}: {_shape(body['schema'])}"
    for name, schema in sorted(described["components"]["schemas"].items()):
        yield f"component {name}: {schema.get('type', '')}".rstrip()
        for field, what in schema.get("properties", {}).items():
            needed = " required" if field in schema.get("required", ()) else ""
            yield f"    {field}{needed}: {_shape(what)}"
    for name in described["components"]["securitySchemes"]:
        yield f"security {name}"


def _shape(schema: object) -> str:
    """Return a schema without its texts, in one line."""

    def plain(node: object) -> object:
        if isinstance(node, dict):
            return {
                key: plain(value)
                for key, value in node.items()
                if not (key in ("description", "title") and isinstance(value, str))
            }
        return [plain(one) for one in node] if isinstance(node, list) else node

    return json.dumps(plain(schema), sort_keys=True)


def commands() -> Iterator[str]:
    """Verbs of the command line with their arguments and options."""
    yield from _command(program, "millrace")


def _command(command: click.Command, path: str) -> Iterator[str]:
    yield path
    for one in command.params:
        names = " ".join((*one.opts, *one.secondary_opts))
        traits = [one.param_type_name, one.type.name]
        if isinstance(one.type, click.Choice):
            traits.append("|".join(map(str, one.type.choices)))
        traits += [name for name in ("required", "multiple") if getattr(one, name, False)]
        if getattr(one, "is_flag", False):
            traits.append("flag")
        if one.envvar:
            traits.append(f"[{one.envvar}]")
        default = one.default
        if isinstance(default, str | int | float | bool | tuple):
            traits.append(f"= {default!r}")
        yield f"    {names}: {' '.join(traits)}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from _command(below, f"{path} {name}")


def exit_codes() -> Iterator[str]:
    """Exit codes by name, and of each error."""
    for name in ("REFUSED", "USAGE", "RETRY", "FATAL", "INTERRUPTED", "BROKEN_PIPE"):
        yield f"{name.lower()} {getattr(exit_errors, name)}"
    for kind in all_errors():
        yield f"{kind.__name__} {exit_errors.exit_error(sample_error(kind), 'peek').exit_code}"


def settings() -> Iterator[str]:
    """Settings of a node and of a server with their defaults."""
    for title, kind in (("node", Settings), ("server", ServerSettings)):
        for one in dataclasses.fields(kind):
            default = one.default_factory() if callable(one.default_factory) else one.default
            yield f"{title} {one.name} = {_plain(default)}"


def _plain(value: object) -> str:
    """Return a default without names of our own classes and without addresses in memory."""
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, msgspec.Struct):
        return ", ".join(
            f"{name}: {_plain(part)}" for name, part in msgspec.structs.asdict(value).items()
        )
    if value == {}:
        return "{}"
    return str(value) if type(value).__str__ is not object.__str__ else "..."


def queue_settings() -> Iterator[str]:
    """Settings of queues as programs give them, and what makes queues and topics."""
    for name, kind in get_type_hints(QueueSettings).items():
        yield f"{name}: {_type_of(kind)}"
    for name in ("queue", "topic", "open", "connect"):
        found = getattr(millrace.Millrace, name, None) or getattr(millrace, name)
        yield from _signature(f"millrace.{name}", found)


def _type_of(kind: object) -> str:
    """Return a type as text without the paths of modules."""
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)


def _signature(title: str, function: Callable[..., Any]) -> Iterator[str]:
    yield title
    for one in inspect.signature(function).parameters.values():
        default = "" if one.default is one.empty else f" = {one.default!r}"
        yield f"    {one.kind.description} {one.name}{default}"


def all_errors() -> list[type[errors.MillraceError]]:
    """Return every error class of ours, by name."""
    kinds = (kind for kind in vars(errors).values() if isinstance(kind, type))
    ours = (kind for kind in kinds if issubclass(kind, errors.MillraceError))
    return sorted(set(ours), key=lambda kind: kind.__name__)


def sample_error(kind: type[errors.MillraceError]) -> errors.MillraceError:
    """Return an error of a class, with its field and limit where it takes them."""
    if kind is errors.OutOfOrder:
        return errors.OutOfOrder("out", expected=7)
    if kind is errors.InUse:
        return errors.InUse("used", pid=9)
    return kind("what", field="f", limit=3)


def error_classes() -> Iterator[str]:
    """Errors with their bases, codes, HTTP statuses and what they carry."""
    for kind in all_errors():
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        error = sample_error(kind)
        fields = ", ".join(sorted(name for name in vars(error) if not name.startswith("_")))
        status = answer_error(error).status
        yield f"{kind.__name__}({bases}) code={kind.code} status={status}: {fields}"


def public_names() -> Iterator[str]:
    """`__all__` of the package and of its blocking twin, with methods and their parameters."""
    for module in (millrace, sync):
        for name in sorted(module.__all__):
            yield f"{module.__name__}.{name}"
            yield from _members(getattr(module, name))


def _members(value: object) -> Iterator[str]:
    if not inspect.isclass(value):
        if callable(value):
            yield f"    {_parameters(value)}"
        return
    if issubclass(value, BaseException):
        return
    if dataclasses.is_dataclass(value) or issubclass(value, msgspec.Struct | tuple):
        yield f"    {_parameters(value)}"
    for name, member in sorted(inspect.getmembers(value)):
        if name.startswith("_") or (issubclass(value, tuple) and hasattr(tuple, name)):
            continue
        if issubclass(value, int | str) and (hasattr(int, name) or hasattr(str, name)):
            continue
        if inspect.isfunction(member) or inspect.ismethod(member):
            yield f"    {name}{_parameters(member)}"
        else:
            yield f"    {name}"


def _parameters(function: Callable[..., Any]) -> str:
    """Return names, kinds and plain defaults of parameters."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parts: list[str] = []
    for one in found.parameters.values():
        mark = {"variadic positional": "*", "variadic keyword": "**"}.get(one.kind.description, "")
        only = "kw " if one.kind is one.KEYWORD_ONLY else ""
        default = ""
        if one.default is not one.empty:
            is_plain = one.default is None or isinstance(one.default, str | int | float | bytes)
            default = f"={one.default!r}" if is_plain else "=..."
        parts.append(f"{only}{mark}{one.name}{default}")
    return f"({', '.join(parts)})"


IMPORTED = re.compile(
    r"^\s*(?:from (millrace[\w.]*) import (\(.*?\)|[^\n]*)|import (millrace[\w.]*))",
    re.MULTILINE | re.DOTALL,
)
"""Imports of our modules in guides and examples."""

PROMISED = (
    "millrace.errors",
    "millrace.sync",
    "millrace.telemetry",
    "millrace.pipeline",
    "millrace.spark.session",
    "millrace.spark.daemon",
    "millrace.spark.columnar",
    "millrace.sinks.kinds",
    "millrace.sinks.boundary",
    "millrace.sinks.base",
    "millrace.sinks.lane",
    "millrace.sinks.null_key",
    "millrace.sinks.parquet",
    "millrace.testing.check_sink",
    "millrace.server.config",
    "millrace.server.access",
    "millrace.pytest_plugin",
)
"""Modules that programs import by their paths."""


def imports() -> Iterator[str]:
    """Names that the guides, the README and the examples import."""
    found = {*PROMISED}
    guides = [ROOT / "README.md", *(ROOT / "docs" / "guide").rglob("*.md")]
    for path in sorted([*guides, *(ROOT / "examples").rglob("*.py")]):
        for match in IMPORTED.finditer(path.read_text(encoding="utf-8")):
            module, names, plain = match.groups()
            if plain:
                found.add(plain)
                continue
            for name in names.strip("()").replace("\n", " ").split(","):
                word = name.split("#")[0].split(" as ")[0].strip()
                if re.fullmatch(r"\w+", word):
                    found.add(f"{module}:{word}")
    yield from sorted(found)


def is_importable(line: str) -> bool:
    """Return whether a line of `imports` can be imported."""
    module, _, name = line.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError:
        return False
    if not name or hasattr(found, name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True


METRIC = re.compile(r"(?:millrace_|messaging\.|millrace\.|http\.server\.)[a-z0-9_.]+")


def telemetry() -> Iterator[str]:
    """Names of metrics, span attributes and loggers, as the source has them."""
    metrics: set[str] = set()
    loggers: set[str] = set()
    for path in sorted(SOURCE.rglob("*.py")):
        has_metrics = path.parent.name not in ("testing", "cli")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                named = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
                if named == "getLogger":
                    loggers |= {text for text in texts if isinstance(text, str)}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and has_metrics:
                text = node.value
                if METRIC.fullmatch(text) and not _is_module(text):
                    metrics.add(text)
    yield from (f"logger {name}" for name in sorted(loggers))
    yield from (f"name {name}" for name in sorted(metrics))


def _is_module(text: str) -> bool:
    """Return whether a text is the path of one of our modules, and no name of telemetry."""
    parts = text.rstrip(".").split(".")[1:]
    folder = SOURCE.joinpath(*parts)
    above = SOURCE.joinpath(*parts[:-1]).with_suffix(".py")
    return text.startswith("millrace.") and (
        folder.is_dir() or folder.with_suffix(".py").is_file() or above.is_file()
    )


def wire() -> Iterator[str]:
    """Bytes of sample commands, answers and errors between processes, and the numbers of calls."""
    for command in COMMANDS:
        sheet = FrameWriter()
        sheet.call(3, Submit(ShardId(5), 100, command))  # type: ignore[arg-type]
        yield f"command {_bytes(sheet)}"
    for answer in ANSWERS:
        sheet = FrameWriter()
        sheet.answer(3, ANSWER_CODEC, answer)
        yield f"answer {_bytes(sheet)}"
    for kind in all_errors():
        packed = msgspec.msgpack.encode(ERROR.pack(sample_error(kind), BlobWriter()))
        yield f"error {kind.__name__} {packed.hex()}"
    for number, shape in sorted(_numbers()):
        yield f"call {number} {shape}"


def _bytes(sheet: FrameWriter) -> str:
    """Return a frame in hex; of a long one, its length, its head and its digest."""
    data = b"".join(map(bytes, sheet.take()))
    if len(data) <= 400:
        return data.hex()
    return f"{len(data)} bytes {data[:64].hex()} {hashlib.sha256(data).hexdigest()}"


def _numbers() -> Iterator[tuple[int, str]]:
    for kind, known in CALLS.items():
        yield known.number, f"{len(kind.__struct_fields__)} fields"


def json_keys(verbs: list[tuple[str, list[dict[str, object]]]]) -> Iterator[str]:
    """Keys of the objects that verbs print with `--json`."""
    for verb, lines in verbs:
        keys: dict[str, set[str]] = {}
        for line in lines:
            named = keys.setdefault(str(line.get("type")), set())
            named.update(_paths(line))
        for name, paths in sorted(keys.items()):
            yield f"{verb}: {name}"
            yield from (f"    {path}" for path in sorted(paths))


def _paths(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _paths(below, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        yield f"{path}[]"
        for below in value:
            yield from _paths(below, f"{path}[]")
    else:
        yield path


LISTS: dict[str, Callable[[], Iterator[str]]] = {
    "rest": rest,
    "commands": commands,
    "exit-codes": exit_codes,
    "settings": settings,
    "queue-settings": queue_settings,
    "errors": error_classes,
    "public-names": public_names,
    "imports": imports,
    "telemetry": telemetry,
    "wire": wire,
}
