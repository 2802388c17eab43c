"""Writes the blocking facade, src/millrace/sync/, from the asynchronous classes in millrace/client,
and from how a folder is shared, in millrace/server.

Each public class gets a twin that holds the asynchronous object and a portal to the thread that it
lives on. Signatures, type hints and docstrings are kept; `async for` becomes `for`, `async with`
becomes `with`, and objects of the API are wrapped on their way out and unwrapped on their way in.

    python tools/generate_sync.py            write the files
    python tools/generate_sync.py --check    fail if they are not up to date
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "millrace"
TARGET = ROOT / "src" / "millrace" / "sync"

CLASSES = {
    "lease": ["Lease"],
    "work": ["Work"],
    "cursor": ["Snapshot", "Pinned", "Cursor"],
    "transaction": ["Transaction"],
    "redrive": ["Redrive"],
    "session": ["Session"],
    "publisher": ["Confirmation", "Publisher"],
    "publishing": ["Publishing"],
    "queue": ["Queue"],
    "topic": ["Topic"],
    "millrace": ["Millrace"],
    "worker": ["Worker"],
    "sharing": ["Sharing"],
}
"""The classes that get a twin, by module; one is wrapped only by those that come after it."""

HOME = {name: module for module, names in CLASSES.items() for name in names}

BASES = {"Publishing"}
"""Parts of a class that nobody has by themselves."""

ENTRIES = {"open": "opening", "connect": "connecting"}
"""Functions that begin an engine, and their modules."""

UNNAMED = {*BASES, "Sharing"}
"""Classes that programs need not name."""

MAINTENANCE = ["restore", "verify"]
"""Functions of `maintenance` that need no engine."""

MADE_WITH = {"Worker": "queue"}
"""Classes that programs make themselves, and the argument through whose portal they go."""

HANDED_OUT = {"Lease", "Snapshot"}
"""What a call hands out, and must be given back where nobody got it."""

DUNDERS = {
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__repr__": "__repr__",
}

TYPES = {"AsyncIterator": "Iterator"}

BODIES = {
    ("Millrace", "close"): "self._portal.end(self._twin.close)",
    ("Millrace", "__aexit__"): "self.close()",
    # One step per batch instead of one per row.
    ("Snapshot", "rows"): "for batch in self.batches():\n    yield from rows_of(batch)",
    # Signals come to the main thread, not to the engine's.
    ("Worker", "run"): "with stopping_on_signals(self._twin.stop) if signals else nullcontext():\n"
    "    self._portal.run(self._twin.run)",
}
"""What the rules would do less well."""

EXTRA_IMPORTS = {
    "cursor": ["from millrace.client.message import rows_of"],
    "worker": [
        "import functools",
        "import inspect",
        "from millrace.client.lease import Lease as AsyncLease",
        "from millrace.client.transaction import Transaction as AsyncTransaction",
        "from millrace.core import validate",
        "from millrace.errors import Invalid",
    ],
}

GUARDED = "if TYPE_CHECKING:\n    from millrace.telemetry import Telemetry"
"""What is imported for its types alone: it may not be installed."""

WORDS = [
    (r"\basync (for|with)\b", r"\1"),
    (r"`(\w+ = )?await ", r"`\1"),
    (r"\bmillrace\.(open|connect|share)\(", r"millrace.sync.\1("),
    (
        r"The engine runs on the caller's event loop\.",
        "The engine runs on an event loop in a thread of its own.",
    ),
    (r" without blocking the event loop\b", ""),
    (
        r", which would block an event loop: in a coroutine use `batches`, or pull in another "
        r"thread\.",
        "; any thread may pull it.",
    ),
    (r" Pull Arrow readers in a thread, not on the event loop\.", ""),
    (r"\bcancelling the wait\b", "interrupting the wait"),
    (
        r"An asynchronous function runs on the event loop, a plain one in a thread\.",
        "The function is called in threads of the worker's own.",
    ),
    (
        r"If it is cancelled, it stops at once, and has stopped when the cancellation is raised\.",
        "If it is interrupted, it stops at once.",
    ),
    (
        r"after that, or `at_once`, they are cancelled and their messages released\. A thread "
        r"cannot be cancelled: its message is released while it still runs\.",
        "after that, or `at_once`, their messages are released while they still run.",
    ),
    (r"\b(is|was|were) cancelled\b", r"\1 interrupted"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
]
"""Replacements in docstrings for blocking code; a space matches a line break, too."""

LEASES = '''
Leases = Lease | str | Iterable[Lease | str]
"""A lease or a receipt, or several of them."""


def twins(leases: Leases) -> AsyncLeases:
    """Return the asynchronous leases behind blocking ones."""
    if isinstance(leases, Lease):
        return leases._twin
    if isinstance(leases, str) or not isinstance(leases, Iterable):
        return leases
    return [lease._twin if isinstance(lease, Lease) else lease for lease in leases]
'''

FUNCTIONS = '''
Handle = Callable[[Lease], object] | Callable[[Lease, Transaction], object]
"""Processes a message."""

OnPoison = (
    Callable[[Lease, BaseException], object] | Callable[[Lease, BaseException, Transaction], object]
)
"""Decides about a message that has failed too often: returns a `Verdict`."""


def blocking(portal: Portal, function: Callable[..., object], field: str) -> Callable[..., object]:
    """Wrap a function, so that the engine's worker calls it with blocking twins."""
    if not callable(function):
        raise Invalid(f"{field} is {validate.shown(function)}, not a function", field=field)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    ):
        raise Invalid(f"{field} is asynchronous; use millrace.Worker for it", field=field)

    @functools.wraps(function)
    def call(*arguments: object) -> object:
        return function(*(_facade(portal, each) for each in arguments))

    return call


def _facade(portal: Portal, argument: object) -> object:
    if isinstance(argument, AsyncLease):
        return Lease(portal, argument)
    return Transaction(portal, argument) if isinstance(argument, AsyncTransaction) else argument
'''

SHARE = """
if not isinstance(m, Millrace):
    raise Invalid(f"m is {validate.shown(m)}, not what millrace.sync.open gave", field="m")
return Sharing(m._portal, share_async(m._twin))
""".strip()

INIT = '''"""The blocking twin of the API: `with millrace.sync.open("./data") as m: ...`.

Everything is as in the asynchronous API, without `async` and `await`. The engine runs on an event
loop in a thread of its own, so that the objects may be used by any thread.

Generated by tools/generate_sync.py; change the classes in millrace/client instead.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
{imports}

__all__ = [
{names}
]

_HOMES = {{
{homes}
}}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'millrace.sync' has no attribute {{name!r}}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
'''


def generate() -> dict[str, str]:
    """The files of the facade, by name, formatted."""
    files = {f"{module}.py": _module(module) for module in CLASSES}
    files |= {f"{module}.py": _entry(name, module) for name, module in ENTRIES.items()}
    files["maintenance.py"] = _maintenance()
    homes = {**HOME, **dict.fromkeys(MAINTENANCE, "maintenance"), **ENTRIES, "share": "sharing"}
    names = sorted(homes.keys() - UNNAMED)
    imports = [f"    from millrace.sync.{homes[name]} import {name}" for name in names]
    files["__init__.py"] = INIT.format(
        imports="\n".join(imports),
        names="\n".join(f'    "{name}",' for name in names),
        homes="\n".join(f'    "{name}": "millrace.sync.{homes[name]}",' for name in names),
    )
    return {name: _formatted(text, name) for name, text in files.items()}


# --- Modules -------------------------------------------------------------------------------------


def _package(module: str) -> str:
    """Where a module is a twin of one."""
    return "server.rpc" if module == "sharing" else "client"


def _parsed(module: str) -> ast.Module:
    path = SOURCE / _package(module).replace(".", "/") / f"{module}.py"
    return ast.parse(path.read_text(encoding="utf-8"))


def _named(tree: ast.Module, name: str) -> ast.FunctionDef:
    return next(
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name
    )


def _module(module: str) -> str:
    tree = _parsed(module)
    nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    classes = [_class(nodes[name]) for name in CLASSES[module]]
    text = "\n\n".join(classes)
    extra = list(EXTRA_IMPORTS.get(module, []))
    if module == "lease":
        text += LEASES
        extra.append("from millrace.client.lease import Leases as AsyncLeases")
        extra.append("from collections.abc import Iterable")
    if module == "worker":
        text += FUNCTIONS
    home = f"millrace.{_package(module)}.{module}"
    if module == "sharing":
        text += "\n\n" + _function(_named(tree, "share"), "share", SHARE)
        extra.append(f"from {home} import share as share_async")
    extra += [f"from {home} import {name} as Async{name}" for name in CLASSES[module]]
    extra.append("from millrace.client.portal import Portal")
    return _assemble(module, tree, text, extra)


def _entry(name: str, module: str) -> str:
    tree = _parsed(module)
    function = _named(tree, name)
    function.returns = ast.Name("Millrace")
    body = f"""
{module} = {name}_async({_arguments(function)})
portal = Portal()
millrace = Millrace(portal, portal.begin({module}))
portal.close_at_exit(millrace.close)
return millrace
"""
    extra = [
        f"from millrace.client.{module} import {name} as {name}_async",
        "from millrace.client.portal import Portal",
    ]
    return _assemble(module, tree, _function(function, name, body.strip()), extra)


def _maintenance() -> str:
    tree = _parsed("maintenance")
    found = {node.name: node for node in tree.body if isinstance(node, ast.AsyncFunctionDef)}
    text = "\n\n\n".join(
        _function(
            found[name], name, f"return once({_later(f'{name}_async({_arguments(found[name])})')})"
        )
        for name in MAINTENANCE
    )
    extra = [
        f"from millrace.client.maintenance import {name} as {name}_async" for name in MAINTENANCE
    ]
    return _assemble("maintenance", tree, text, [*extra, "from millrace.client.portal import once"])


def _assemble(module: str, tree: ast.Module, text: str, extra: list[str]) -> str:
    """Put the imports in front that the text needs."""
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    imports = list(extra)
    if "partial" in used:
        imports.append("from functools import partial")
    for name in sorted(used):
        line = _import(module, tree, name)
        if line is not None:
            imports.append(line)
    if "Telemetry" in used:
        imports += ["from typing import TYPE_CHECKING", "", GUARDED]
    doc = ast.get_docstring(tree) or ""
    folder = _package(module).replace(".", "/")
    head = (
        f'"""{_reworded(doc.splitlines()[0])}\n\n'
        f"Generated by tools/generate_sync.py from millrace/{folder}/{module}.py; change "
        'that instead.\n"""\n\nfrom __future__ import annotations\n\n'
    )
    return head + "\n".join(imports) + "\n\n\n" + text


def _import(module: str, tree: ast.Module, name: str) -> str | None:
    """The statement that brings a name, as the source has it, or from the source."""
    if name in CLASSES.get(module, []):
        return None
    if name in HOME:
        return f"from millrace.sync.{HOME[name]} import {name}"
    if name in ("Handle", "OnPoison"):
        return None
    if name in ("Leases", "twins"):
        return None if module == "lease" else f"from millrace.sync.lease import {name}"
    for original, renamed in TYPES.items():
        if name == renamed:
            line = _import(module, tree, original)
            return line.replace(original, renamed) if line else None
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return ast.unparse(_single(node, alias))
        elif name in _defined(node):
            return f"from millrace.{_package(module)}.{module} import {name}"
    return None


def _single(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    if isinstance(node, ast.Import):
        return ast.Import([alias])
    return ast.ImportFrom(node.module, [alias], node.level)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


# --- Classes -------------------------------------------------------------------------------------


def _class(node: ast.ClassDef) -> str:
    bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in BASES]
    slots = f"()\n\n_twin: Async{node.name}" if bases else '("_portal", "_twin")'
    parts = [
        f"class {node.name}({', '.join(bases)}):" if bases else f"class {node.name}:",
        _indented(_docstring(ast.get_docstring(node, clean=True))),
        _indented(f"__slots__ = {slots}"),
        _indented(_init(node)),
    ]
    for method in node.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and _is_public(method.name):
            parts.append(_indented(_method(node.name, method)))
    return "\n\n".join(parts) + "\n"


def _init(node: ast.ClassDef) -> str:
    if node.name not in MADE_WITH:
        return (
            f"def __init__(self, portal: Portal, twin: Async{node.name}) -> None:\n"
            "    self._portal = portal\n    self._twin = twin"
        )
    own = next(
        each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    )
    way = MADE_WITH[node.name]
    body = (
        f"if not isinstance({way}, {way.capitalize()}):\n"
        f'    raise Invalid(f"{way} is {{validate.shown({way})}}, not a {way} of '
        f'millrace.sync.open", field="{way}")\n'
        f"portal = {way}._portal\nself._portal = portal\n"
        f"self._twin = Async{node.name}({_arguments(own)})"
    )
    return _function(own, "__init__", body)


def _is_public(name: str) -> bool:
    return name in DUNDERS or not name.startswith("_")


def _method(owner: str, method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    name = DUNDERS.get(method.name, method.name)
    body = BODIES.get((owner, method.name)) or _body(owner, method)
    text = _function(method, name, body)
    if any(isinstance(item, ast.Name) and item.id == "property" for item in method.decorator_list):
        text = f"@property\n{text}"
    return text


def _body(owner: str, method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if method.name == "__aiter__":
        return "return self"
    if method.name == "__repr__":
        return "return repr(self._twin)"
    call = f"self._twin.{method.name}"
    if not any(isinstance(item, ast.Name) for item in method.decorator_list):
        call += f"({_arguments(method)})"
    returns = ast.unparse(method.returns) if method.returns else "None"
    if returns.startswith("AsyncIterator["):
        _refuse_facades(returns.removeprefix("AsyncIterator"))
        return f"return self._portal.iterate({call})"
    if isinstance(method, ast.AsyncFunctionDef):
        if returns != owner and (handed := HANDED_OUT & set(re.findall(r"\w+", returns))):
            return _received(method.name, returns, handed.pop(), call)
        call = f"self._portal.run({_later(call)})"
    if method.name == "__aenter__" and returns == owner:
        return f"{call}\nreturn self"
    if method.name == "__anext__":
        return (
            f"try:\n    return {_wrapped(returns, call)}\n"
            "except StopAsyncIteration:\n    raise StopIteration from None"
        )
    if returns == "None":
        return call
    if returns.endswith(" | None") and returns.removesuffix(" | None") in HOME:
        facade = returns.removesuffix(" | None")
        return f"result = {call}\nreturn None if result is None else {facade}(self._portal, result)"
    return f"return {_wrapped(returns, call)}"


def _later(call: str) -> str:
    """The call, to be made on the engine's thread, with arguments that are looked at here."""
    function, _, arguments = call.removesuffix(")").partition("(")
    return f"partial({function}, {arguments})" if arguments else function


def _received(name: str, returns: str, facade: str, call: str) -> str:
    """The code that takes what is given back unless the caller gets it, whatever interrupts."""
    wraps = {
        facade: f"{facade}(self._portal, result)",
        f"list[{facade}]": f"[{facade}(self._portal, item) for item in result]",
        f"{facade} | None": f"None if result is None else {facade}(self._portal, result)",
    }
    if returns not in wraps:
        raise SystemExit(f"generate_sync: no rule for {returns}")
    text = f"return self._portal.receive({_later(call)}, lambda result: {wraps[returns]})"
    if name == "__anext__":
        text = f"try:\n    {text}\nexcept StopAsyncIteration:\n    raise StopIteration from None"
    return text


def _wrapped(returns: str, call: str) -> str:
    if returns in HOME:
        return f"{returns}(self._portal, {call})"
    item = returns.removeprefix("list[").removesuffix("]")
    if returns.startswith("list[") and item in HOME:
        return f"[{item}(self._portal, item) for item in {call}]"
    _refuse_facades(returns)
    return call


def _refuse_facades(annotation: str) -> None:
    """A new shape needs a new rule here; it must not leak asynchronous objects."""
    if HOME.keys() & set(re.findall(r"\w+", annotation)):
        raise SystemExit(f"generate_sync: no rule for {annotation}")


# --- Functions -----------------------------------------------------------------------------------


def _function(method: ast.FunctionDef | ast.AsyncFunctionDef, name: str, body: str) -> str:
    returns = ast.unparse(method.returns) if method.returns else "None"
    for original, renamed in TYPES.items():
        returns = returns.replace(original, renamed)
    lines = [f"def {name}({ast.unparse(method.args)}) -> {returns}:"]
    doc = ast.get_docstring(method)
    if doc is not None:
        lines.append(_indented(_docstring(doc)))
    lines.append(_indented(body))
    return "\n".join(lines)


def _arguments(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The arguments that hand the parameters on, unwrapped."""
    out: list[str] = []
    for argument in (*method.args.posonlyargs, *method.args.args):
        if argument.arg != "self":
            out.append(_unwrapped(argument))
    for argument in method.args.kwonlyargs:
        out.append(f"{argument.arg}={_unwrapped(argument)}")
    if method.args.vararg is not None:
        raise SystemExit(f"generate_sync: no rule for *{method.args.vararg.arg}")
    if method.args.kwarg is not None:
        _refuse_facades(ast.unparse(method.args.kwarg))
        out.append(f"**{method.args.kwarg.arg}")
    return ", ".join(out)


def _unwrapped(argument: ast.arg) -> str:
    annotation = ast.unparse(argument.annotation) if argument.annotation else ""
    name = argument.arg
    if annotation == "Leases":
        return f"twins({name})"
    if annotation in HOME and name in MADE_WITH.values():
        return f"{name}._twin"
    if annotation in HOME:
        # What is none of it is refused by who gets it.
        return f"{name}._twin if isinstance({name}, {annotation}) else {name}"
    if annotation in ("Handle", "OnPoison"):
        return f'blocking(portal, {name}, "{name}")'
    if annotation == "OnPoison | None":
        return f'None if {name} is None else blocking(portal, {name}, "{name}")'
    facades, _, rest = annotation.rpartition(" | ")
    if rest == "str" and facades and HOME.keys() >= set(facades.split(" | ")):
        return f"{name}._twin if isinstance({name}, {facades}) else {name}"
    _refuse_facades(annotation)
    return name


# --- Text ----------------------------------------------------------------------------------------


_ONE_LINE_MAX = 86
"""Characters of a docstring that fits into one line of a method, with its quotes."""


def _docstring(doc: str | None) -> str:
    text = _reworded(doc or "")
    lines = list(_wrapped_lines(text))
    if len(lines) == 1 and len(lines[0]) > _ONE_LINE_MAX:
        lines = textwrap.wrap(text, _ONE_LINE_MAX, break_on_hyphens=False)
    if len(lines) == 1:
        return f'"""{lines[0]}"""'
    return '"""' + "\n".join(lines) + '\n"""'


def _reworded(text: str) -> str:
    for pattern, replacement in WORDS:
        text = re.sub(pattern.replace(" ", r"\s+"), replacement, text)
    return text


def _wrapped_lines(text: str) -> Iterator[str]:
    """The text with its paragraphs filled anew, since words have changed in it."""
    for at, paragraph in enumerate(text.split("\n\n")):
        if at:
            yield ""
        if re.search(r"^\s+\S|:$", paragraph, re.MULTILINE):
            yield from paragraph.splitlines()
        else:
            yield from textwrap.wrap(paragraph, 92 if at else 89, break_on_hyphens=False)


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")


def _formatted(text: str, name: str) -> str:
    ruff = Path(sys.executable).parent / "ruff"
    at = ["--stdin-filename", str(TARGET / name), "-"]
    for command in (
        ["check", "--quiet", "--fix-only", "--select", "F401,I,UP", *at],
        ["format", "--quiet", *at],
    ):
        done = subprocess.run(
            [str(ruff), *command],
            cwd=ROOT,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode:
            raise SystemExit(f"generate_sync: ruff refused {name}:\n{done.stderr}\n{text}")
        text = done.stdout
    return text


def stale() -> list[str]:
    """The files that are missing, out of date or not generated."""
    files = generate()
    known = {path.name for path in TARGET.glob("*.py")}
    return sorted(
        name
        for name in known | files.keys()
        if name not in files
        or name not in known
        or (TARGET / name).read_text(encoding="utf-8") != files[name]
    )


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        wrong = stale()
        if wrong:
            raise SystemExit(f"generate_sync: run tools/generate_sync.py for {', '.join(wrong)}")
        return
    TARGET.mkdir(exist_ok=True)
    for name, text in generate().items():
        (TARGET / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
