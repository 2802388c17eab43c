"""Move modules and rename what they define, everywhere: `python tools/codemod.py TABLE.toml`.

The table says what becomes of what, by the names of today:

    [modules]
    "millrace.wal" = "millrace.wal"                    # with all modules below it
    "millrace.shard.mover" = "millrace.engine.dead_letter_mover"

    [names]
    "millrace.shard.mover:Mover" = "DeadLetterMover"   # what a module defines at its top level

A module that becomes one that exists, or that another one becomes, is merged into it: its imports
join, its body goes behind (before, if the other needs it while it is imported), its docstring
becomes a comment to be edited. Names that both define have to be renamed in the same table.

`python tools/codemod.py --refit REVISION` moves nothing: mutants that no longer fit, because their
source was edited by hand since that revision, are made anew by a three-way merge.

Files are moved by git. Imports, uses of what was imported, dotted names and paths in strings,
comments, documents and settings follow. The mutants of `tests/mutants/mutants.toml` are made anew:
each is applied to the old source, the clean and the mutated source are both rewritten, and the new
mutant is their difference. Names of loggers and other persisted texts that only look like modules
stay (`KEPT`).

What a codemod cannot see is printed at the end: attributes of objects, keyword arguments, texts
that are put together at run time. `tests/frozen` shows what it changed and should not have.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import io
import re
import subprocess
import symtable
import sys
import tempfile
import textwrap
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = "tests/mutants/mutants.toml"

CODE = ("src", "tests", "tools", "bench", "examples")
"""Folders with Python."""

TEXTS = (".md", ".toml", ".sh", ".txt", ".yaml", ".yml", ".cfg", ".in")
"""Files in which modules are named."""

FIXED = (
    "CHANGELOG.md",
    "newsfragments/",
    "tests/frozen/golden/",
    "tests/tools/test_codemod.py",
    "tools/codemod.py",
    "tools/moves/",
    "uv.lock",
    "requirements.lock",
)
"""Files that say how things were, or what must not change."""

KEPT = re.compile(r"getLogger\(\s*\"[\w.]+\"|\"millrace\.(?:server|client|worker|access)\"")
"""Texts that look like modules and are names of loggers."""

DOTTED = re.compile(r"(?<![\w./-])(?:millrace|tests|bench)(?:\.\w+)+")
PATH = re.compile(r"(?<![\w.-])(?:\.\./|\./)*(?:\w+/)+\w+\.py\b")
FOLDER = re.compile(r"(?<![\w/-])((?:\.\./|\./)*)(src/millrace|tests)((?:/\w+)+)(?=/?[`)\s\"'])")


class Conflict(Exception):
    """The table cannot be carried out."""


@dataclass(frozen=True, slots=True)
class Table:
    """What becomes of what."""

    modules: dict[str, str]
    """By the longest name that fits; with what is below."""
    names: dict[tuple[str, str], str]
    """New names, by module and name of today."""
    known: frozenset[str]
    """All modules of today."""

    @classmethod
    def read(cls, path: Path, known: frozenset[str]) -> Table:
        """Read a table.

        Raises:
            Conflict: it names what is not there.
        """
        with path.open("rb") as file:
            raw = tomllib.load(file)
        names: dict[tuple[str, str], str] = {}
        for place, new in raw.get("names", {}).items():
            module, _, name = place.partition(":")
            if module not in known or not name:
                raise Conflict(f"{place}: there is no such module, or no name behind a colon")
            names[module, name] = new
        modules = raw.get("modules", {})
        for old in modules:
            if old not in known:
                raise Conflict(f"{old}: there is no such module")
        return cls(modules, names, known)

    def module(self, name: str) -> str:
        """Return the new name of a module, or of something within one."""
        parts = name.split(".")
        for size in range(len(parts), 0, -1):
            new = self.modules.get(".".join(parts[:size]))
            if new is not None:
                return ".".join([new, *parts[size:]])
        return name

    def name(self, module: str, name: str) -> str:
        """Return the new name of what a module defines."""
        return self.names.get((module, name), name)

    def dotted(self, text: str) -> str:
        """Return a dotted text with its module, and a name behind that, as they are called now."""
        parts = text.split(".")
        for size in range(len(parts), 1, -1):
            module = ".".join(parts[:size])
            if module in self.known:
                rest = parts[size:]
                if rest:
                    rest[0] = self.name(module, rest[0])
                return ".".join([self.module(module), *rest])
        return text


@dataclass(order=True, frozen=True, slots=True)
class Edit:
    """A piece of text that is replaced."""

    begin: int
    end: int
    text: str = field(compare=False)


def apply(text: str, edits: list[Edit]) -> str:
    """Return the text with all edits made; the same edit may be there twice."""
    at, parts = 0, []
    for edit in sorted(set(edits)):
        if edit.begin < at:
            raise Conflict(f"two edits meet at {text[edit.begin : edit.end]!r}")
        parts += [text[at : edit.begin], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


class Source:
    """One Python file, and where its lines begin."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """Return the place of a position of `ast`, whose columns count bytes."""
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)

    def span(self, node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        """Return where a node begins and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.at(node.lineno, node.col_offset),
            self.at(node.end_lineno, node.end_col_offset),
        )


class Rewriter(ast.NodeVisitor):
    """Gathers the edits of one file."""

    def __init__(self, text: str, table: Table, module: str) -> None:
        self._source = Source(text)
        self._table = table
        self._module = module
        self.edits: list[Edit] = []
        self._renames: dict[str, str] = {}
        """Names at the top level of this file, as they are called now."""
        self._modules: dict[str, str] = {}
        """Modules that names at the top level stand for."""
        self._tree = ast.parse(text)
        self._scopes = [symtable.symtable(text, "<file>", "exec")]

    def run(self) -> list[Edit]:
        """Return all edits."""
        for (module, old), new in self._table.names.items():
            if module == self._module:
                self._renames[old] = new
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._import_from(node)
            elif isinstance(node, ast.Import):
                self._import(node)
        self.visit(self._tree)
        self._strings()
        return self.edits

    def _import_from(self, node: ast.ImportFrom) -> None:
        assert node.module is not None
        table, groups = self._table, dict[str, list[str]]()
        has_changed = False
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if whole in table.known:
                parent, _, name = table.module(whole).rpartition(".")
                if alias.asname is None or alias.asname:
                    self._modules[alias.asname or alias.name] = whole
            else:
                parent, name = table.module(node.module), table.name(node.module, alias.name)
            has_changed = has_changed or (parent, name) != (node.module, alias.name)
            if alias.asname is None and name != alias.name:
                self._renames[alias.name] = name
            shown = name if alias.asname in (None, name) else f"{name} as {alias.asname}"
            groups.setdefault(parent, []).append(shown)
        if not has_changed:
            return
        begin, end = self._source.span(node)
        indent = " " * node.col_offset
        lines = [
            f"from {parent} import {', '.join(names)}"
            if len(names) < 4
            else f"from {parent} import (\n{indent}    "
            + f",\n{indent}    ".join(names)
            + f",\n{indent})"
            for parent, names in groups.items()
        ]
        self.edits.append(Edit(begin, end, f"\n{indent}".join(lines)))

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            new = self._table.module(alias.name)
            if alias.asname:
                self._modules[alias.asname] = alias.name
            if new != alias.name:
                begin, _ = self._source.span(alias)
                self.edits.append(Edit(begin, begin + len(alias.name), new))

    # --- Uses ---------------------------------------------------------------------------------

    def _scope(self, node: ast.AST, name: str) -> None:
        """Visit the parts of a node that has a scope of its own."""
        line = getattr(node, "lineno", 0)
        # The line of a decorated function is that of its first decorator.
        lines = {line, *(one.lineno for one in getattr(node, "decorator_list", ()))}
        for inner in self._scopes[-1].get_children():
            if inner.get_name() == name and inner.get_lineno() in lines:
                self._scopes.append(inner)
                self.generic_visit(node)
                self._scopes.pop()
                return
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._defined(node, node.name)
        self._scope(node, node.name)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._defined(node, node.name)
        self._scope(node, node.name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._defined(node, node.name)
        self._scope(node, node.name)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._scope(node, "lambda")

    def _defined(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, old: str
    ) -> None:
        if len(self._scopes) > 1 or old not in self._renames:
            return
        begin, _ = self._source.span(node)
        found = re.compile(rf"\b{old}\b").search(self._source.text, begin)
        assert found is not None
        self.edits.append(Edit(found.start(), found.end(), self._renames[old]))

    def _is_global(self, name: str) -> bool:
        """Return whether a name means what the top level of the file says."""
        for scope in self._scopes[:0:-1]:
            try:
                symbol = scope.lookup(name)
            except KeyError:
                continue
            if isinstance(scope, symtable.Class):
                if scope is self._scopes[-1] and symbol.is_assigned():
                    return False
                continue
            if symbol.is_global() or symbol.is_imported():
                # What a function imports is renamed as its import is.
                return True
            if symbol.is_parameter() or symbol.is_local():
                return False
        return True

    def visit_Name(self, node: ast.Name) -> None:
        new = self._renames.get(node.id)
        if new is not None and self._is_global(node.id):
            self.edits.append(Edit(*self._source.span(node), new))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = _chain(node)
        if dotted is None:
            self.generic_visit(node)
            return
        first = dotted.partition(".")[0]
        if first in ("millrace", "tests", "bench") and first not in self._modules:
            new = self._table.dotted(dotted)
            if new != dotted:
                self.edits.append(Edit(*self._source.span(node), new))
            return
        self._attribute_of(node)
        self.generic_visit(node)

    def _attribute_of(self, node: ast.Attribute) -> None:
        """Rename what is taken from a module that was imported by name."""
        value = node.value
        if not isinstance(value, ast.Name) or not self._is_global(value.id):
            return
        module = self._modules.get(value.id)
        new = self._table.names.get((module, node.attr)) if module else None
        if new is not None:
            _, end = self._source.span(node)
            self.edits.append(Edit(end - len(node.attr), end, new))

    # --- Texts --------------------------------------------------------------------------------

    def _strings(self) -> None:
        """Rewrite strings and comments; in code, names in strings that are annotations as well."""
        for token in tokenize.generate_tokens(io.StringIO(self._source.text).readline):
            if token.type not in (tokenize.STRING, tokenize.COMMENT):
                continue
            begin = self._begin(token.start)
            text = token.string
            new = rewrite_text(text, self._table) if not self._is_kept(begin, text) else text
            new = self._names_in(token, new)
            if new != text:
                self.edits.append(Edit(begin, begin + len(text), new))

    def _begin(self, start: tuple[int, int]) -> int:
        return self._source._starts[start[0] - 1] + start[1]

    def _is_kept(self, begin: int, text: str) -> bool:
        around = self._source.text[max(0, begin - 24) : begin + len(text)]
        return any(match.end() > min(24, begin) for match in KEPT.finditer(around))

    def _names_in(self, token: tokenize.TokenInfo, text: str) -> str:
        """Rename what annotations in quotes, and prose in backquotes, name."""
        if not self._renames:
            return text
        words = "|".join(map(re.escape, self._renames))
        if token.type == tokenize.STRING and "\n" not in text and '"""' not in text:
            before = self._source.text[: self._begin(token.start)].rstrip()
            if not before.endswith(("cast(", ":", "->", "[", "|")):
                return text
            return re.sub(rf"\b({words})\b", lambda m: self._renames[m[1]], text)
        return re.sub(rf"(?<=`)({words})(?=[`.(\[])", lambda m: self._renames[m[1]], text)


def _chain(node: ast.expr) -> str | None:
    """Return a chain of attributes as text; None: it begins with something else than a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def rewrite_python(text: str, table: Table, module: str) -> str:
    """Return a Python file of today as it is from now on."""
    return apply(text, Rewriter(text, table, module).run())


def rewrite_text(text: str, table: Table) -> str:
    """Return prose or settings with the modules that they name as they are called from now on."""
    text = DOTTED.sub(lambda match: table.dotted(match[0]), text)
    text = FOLDER.sub(lambda match: _folder(match, table), text)
    return PATH.sub(lambda match: _path(match[0], table), text)


def _folder(match: re.Match[str], table: Table) -> str:
    """Return the path of a package after the move."""
    top, below = match[2].removeprefix("src/"), match[3].replace("/", ".")
    if top + below not in table.known:
        return match[0]
    new = table.module(top + below).replace(".", "/")
    return f"{match[1]}{'src/' if top == 'millrace' else ''}{new}"


def _path(path: str, table: Table) -> str:
    """Return the path of a Python file after the move; prose leaves out the first folders."""
    dots, bare = re.match(r"((?:\.\.?/)*)(.*)", path).groups()  # type: ignore[union-attr]
    for folder, above in (
        ("", ""),
        ("src/", ""),
        ("src/millrace/", "millrace."),
        ("tests/", "tests."),
    ):
        inner = bare.removeprefix("src/") if folder == "src/" else bare
        if folder == "src/" and inner == bare:
            continue
        module = above + inner.removesuffix(".py").replace("/", ".")
        if module in table.known:
            new = table.module(module)
            if folder == "src/":
                return dots + file_of(new, is_package=path.endswith("__init__.py"))
            kept = new.removeprefix(above) if new.startswith(above) else new
            return f"{dots}{kept.replace('.', '/')}.py"
    return path


# --- Merging modules ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parts:
    """A module, cut into what a merge treats apart."""

    doc: str
    imports: list[ast.stmt]
    body: str
    """Everything behind the imports at the top, comments included."""
    tree: ast.Module

    @classmethod
    def of(cls, text: str) -> Parts:
        """Cut a module."""
        tree = ast.parse(text)
        doc = ast.get_docstring(tree) or ""
        header: list[ast.stmt] = []
        for node in tree.body[1 if doc else 0 :]:
            if not isinstance(node, ast.Import | ast.ImportFrom) and not _is_typing_block(node):
                break
            header.append(node)
        last = header[-1] if header else tree.body[0] if doc else None
        end = last.end_lineno if last is not None else 0
        body = "".join(text.splitlines(keepends=True)[end:])
        return cls(doc, header, body, tree)

    def defined(self) -> set[str]:
        """Return the names that the body defines at the top level."""
        names: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {
                    one.id
                    for target in targets
                    for one in ast.walk(target)
                    if isinstance(one, ast.Name)
                }
        return names

    def needed(self) -> set[str]:
        """Return the names that are looked up while the module is imported."""
        names: set[str] = set()
        for node in self.tree.body:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                names |= _evaluated(node)
        return names


def _is_typing_block(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        and not node.orelse
    )


def _evaluated(node: ast.AST) -> set[str]:
    """Return the names that a statement looks up when it is executed, not when it is called."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        inner: list[ast.AST] = [*node.decorator_list, *node.args.defaults]
        inner += [one for one in node.args.kw_defaults if one is not None]
    elif isinstance(node, ast.Lambda):
        return set()
    elif isinstance(node, ast.AnnAssign):
        # Annotations are not evaluated; a class may have its fields read later by its decorator.
        inner = [node.value] if node.value is not None else []
    else:
        inner = list(ast.iter_child_nodes(node))
    names = {node.id} if isinstance(node, ast.Name) else set()
    return names.union(*map(_evaluated, inner))


def merge(into: str, text: str, module: str) -> str:
    """Return two modules as one; both already call themselves `module`.

    Raises:
        Conflict: both define a name, or each needs the other while it is imported.
    """
    first, second = Parts.of(into), Parts.of(text)
    shared = first.defined() & second.defined()
    if shared:
        raise Conflict(f"{module}: both define {', '.join(sorted(shared))}; rename one of each")
    lines: list[str] = []
    own: set[str] = set()
    imported: dict[str, str] = {}
    typing: list[str] = []
    for parts in (first, second):
        for node in parts.imports:
            if isinstance(node, ast.If):
                for one in node.body:
                    typing += _import_lines(one, module, own, imported)
            else:
                lines += _import_lines(node, module, own, imported)
    for name in sorted((first.defined() | second.defined()) & imported.keys()):
        raise Conflict(f"{module}: {name} is defined here and imported from {imported[name]}")
    if typing:
        lines += ["if TYPE_CHECKING:", *(f"    {line}" for line in typing)]
    head = [f'"""{first.doc}\n"""' if "\n" in first.doc else f'"""{first.doc}"""', ""]
    head += [*dict.fromkeys(lines), ""]
    title, _, rest = second.doc.partition("\n")
    section = [f"# --- {title.rstrip('.')} ---"]
    section += [f"# {line}".rstrip() for line in textwrap.dedent(rest).strip().splitlines()]
    moved = "\n".join(["", *section, second.body])
    is_before = bool(first.needed() & second.defined())
    if is_before and second.needed() & first.defined():
        raise Conflict(f"{module}: each needs the other while it is imported")
    bodies = [moved, first.body] if is_before else [first.body, moved]
    return _without_own_name("\n".join([*head, *bodies]), own)


def _import_lines(
    node: ast.stmt, module: str, own: set[str], imported: dict[str, str]
) -> list[str]:
    """Return an import, name by name, without what comes from the module itself."""
    lines = []
    if isinstance(node, ast.Import):
        for alias in node.names:
            imported[alias.asname or alias.name] = alias.name
            lines.append(f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else ""))
        return lines
    assert isinstance(node, ast.ImportFrom), "only imports stand at the top"
    parent, _, name = module.rpartition(".")
    for alias in node.names:
        here = alias.asname or alias.name
        if node.module == module:
            if alias.asname is not None and alias.asname != alias.name:
                raise Conflict(f"{module}: imports its own {alias.name} as {alias.asname}")
        elif (node.module, alias.name) == (parent, name):
            own.add(here)
        else:
            imported[here] = f"{node.module}.{alias.name}"
            lines.append(f"from {node.module} import {alias.name}")
            if alias.asname:
                lines[-1] += f" as {alias.asname}"
    return lines


def _without_own_name(text: str, own: set[str]) -> str:
    """Return a module that calls what it defines directly, not through its own name."""
    if not own:
        return text
    source = Source(text)
    edits = []
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in own
        ):
            begin, end = source.span(node)
            edits.append(Edit(begin, end, node.attr))
    return apply(text, edits)


# --- The repository ------------------------------------------------------------------------------


def module_of(path: Path, root: Path = ROOT) -> str:
    """Return the dotted name of a file of the repository."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    if parts[0] == "src":
        del parts[0]
    if parts[-1] == "__init__":
        del parts[-1]
    return ".".join(parts)


def file_of(module: str, *, is_package: bool) -> str:
    """Return the path of a module in the repository."""
    base = "src/" if module.split(".")[0] == "millrace" else ""
    return f"{base}{module.replace('.', '/')}{'/__init__' if is_package else ''}.py"


def tracked(root: Path) -> Iterator[Path]:
    """Yield the files that git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, check=True, stdout=subprocess.PIPE, text=True
    )
    for name in listed.stdout.split("\0"):
        if name and (root / name).is_file() and not name.startswith(FIXED):
            yield root / name


Final = Callable[[str, str], str]
"""The final text of the file that a module becomes or joins, given another text of the module."""


def remade(entry: dict[str, object], clean: str, table: Table, final: Final) -> dict[str, object]:
    """Return a mutant as it is after the move: the difference of the rewritten sources.

    Raises:
        Conflict: its text does not stand once in its file.
    """
    name, file = str(entry["name"]), str(entry["file"])
    old, new = str(entry["old"]), str(entry["new"])
    if clean.count(old) != 1:
        raise Conflict(f"the mutant {name} does not fit {file}")
    module = f"millrace.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
    after = final(module, clean)
    mutated = final(module, clean.replace(old, new))
    is_package = file.endswith("__init__.py")
    place = file_of(table.module(module), is_package=is_package).removeprefix("src/millrace/")
    tests = [rewrite_text(one, table) for one in cast("list[str]", entry["tests"])]
    found = {**entry, "file": place, "tests": tests}
    if after.count(old) == 1 and after.replace(old, new) == mutated:
        return found
    found["old"], found["new"] = difference(after, mutated)
    return found


def difference(clean: str, mutated: str) -> tuple[str, str]:
    """Return a text that stands once in `clean`, and what makes `mutated` of it.

    Whole lines, as few as are unique.
    """
    before, behind = clean.splitlines(keepends=True), mutated.splitlines(keepends=True)
    codes = difflib.SequenceMatcher(None, before, behind, autojunk=False).get_opcodes()
    changed = [code for code in codes if code[0] != "equal"]
    if not changed:
        raise Conflict("the mutant changes nothing any more")
    begin, end = changed[0][1], changed[-1][2]
    other_begin, other_end = changed[0][3], changed[-1][4]
    while begin == end or clean.count("".join(before[begin:end])) != 1:
        if begin > 0:
            begin, other_begin = begin - 1, other_begin - 1
        elif end < len(before):
            end, other_end = end + 1, other_end + 1
        else:
            raise Conflict("no text of the mutant stands once in its file")
    return "".join(before[begin:end]), "".join(behind[other_begin:other_end])


def _toml(value: object) -> str:
    """Return a value as the list of mutants has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        short = f"[{', '.join(map(_toml, value))}]"
        return (
            short if len(short) < 93 else f"[\n    {f',{chr(10)}    '.join(map(_toml, value))},\n]"
        )
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    text = text.replace("\n", "\\n").replace("\t", "\\t")
    return f'"{text}"'


def blocks_of(text: str) -> Iterator[tuple[str, dict[str, object] | None]]:
    """Yield the list of mutants in pieces, with the mutant of each piece that has one."""
    for block in re.split(r"(?m)^(?=\[\[mutant\]\])", text):
        is_mutant = block.startswith("[[mutant]]")
        yield block, tomllib.loads(block)["mutant"][0] if is_mutant else None


def block_of(entry: dict[str, object], before: str) -> str:
    """Return a mutant as the list has it, with the comments of its piece of today."""
    comments = "".join(re.findall(r"(?m)^#.*\n", before))
    lines = "".join(f"{key} = {_toml(value)}\n" for key, value in entry.items())
    block = f"[[mutant]]\n{lines}\n{comments}{chr(10) if comments else ''}"
    assert tomllib.loads(block)["mutant"] == [entry], entry["name"]
    return block


def rewrite_mutants(text: str, root: Path, table: Table, final: Final) -> tuple[str, list[str]]:
    """Return the list of mutants after the move, and the names of those whose text has changed."""
    out, changed = [], []
    for block, entry in blocks_of(text):
        if entry is None:
            out.append(block)
            continue
        clean = (root / "src" / "millrace" / str(entry["file"])).read_text(encoding="utf-8")
        found = remade(entry, clean, table, final)
        if (found["old"], found["new"]) != (entry["old"], entry["new"]):
            changed.append(str(entry["name"]))
        out.append(block if found == entry else block_of(found, block))
    return "".join(out), changed


def refit(root: Path, revision: str) -> tuple[list[str], list[str]]:
    """Make the mutants anew that no longer fit; return those that were, and those that were not."""
    mutants = root / MUTANTS
    out, mended, lost = [], [], []
    for block, entry in blocks_of(mutants.read_text(encoding="utf-8")):
        if entry is not None:
            file, old, new = (str(entry[key]) for key in ("file", "old", "new"))
            clean = (root / "src" / "millrace" / file).read_text(encoding="utf-8")
            if clean.count(old) != 1:
                try:
                    mutated = _mutated_since(root, revision, file, old, new, clean)
                    entry["old"], entry["new"] = difference(clean, mutated)
                    block = block_of(entry, block)
                    mended.append(str(entry["name"]))
                except Conflict as error:
                    lost.append(f"{entry['name']}: {error}")
        out.append(block)
    mutants.write_text("".join(out), encoding="utf-8")
    return mended, lost


def _mutated_since(root: Path, revision: str, file: str, old: str, new: str, clean: str) -> str:
    """Return the source of today with the bug that a mutant put into the source of `revision`."""
    shown = subprocess.run(
        ["git", "show", f"{revision}:src/millrace/{file}"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode or shown.stdout.count(old) != 1:
        raise Conflict(f"does not fit {file} of {revision} either")
    with tempfile.TemporaryDirectory() as folder:
        texts = {"now": clean, "then": shown.stdout, "bug": shown.stdout.replace(old, new)}
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        merged = subprocess.run(
            ["git", "merge-file", "-p", "now", "then", "bug"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if merged.returncode:
        raise Conflict(f"the lines of the bug in {file} were edited: write it anew by hand")
    ast.parse(merged.stdout)
    return merged.stdout


class Repository:
    """The sources of today, and what a table makes of them."""

    def __init__(self, root: Path, table_path: Path) -> None:
        self.root = root
        self.files = list(tracked(root))
        code = [path for path in self.files if path.suffix == ".py"]
        code = [path for path in code if path.relative_to(root).parts[0] in CODE]
        self.modules = {path: module_of(path, root) for path in code}
        self.table = Table.read(table_path, frozenset(self.modules.values()))
        self._texts = {
            module: path.read_text(encoding="utf-8") for path, module in self.modules.items()
        }
        self._joined: dict[str, list[str]] = {}
        """Modules that become one, by its name: the one that keeps its place is first."""
        for module in self._texts:
            self._joined.setdefault(self.table.module(module), []).append(module)
        listed = list(self.table.modules)
        for target, modules in self._joined.items():
            modules.sort(
                key=lambda module: (
                    module != target,
                    module.rpartition(".")[2] != target.rpartition(".")[2],
                    listed.index(module) if module in listed else 0,
                )
            )

    def final(self, module: str, text: str | None = None) -> str:
        """Return the file that a module becomes or joins; `text` stands for its own of today."""
        target = self.table.module(module)
        joined = self._joined[target]
        given = {module: text} if text is not None else {}
        first, *others = (
            rewrite_python(given.get(one, self._texts[one]), self.table, one) for one in joined
        )
        for other in others:
            first = merge(first, other, target)
        return first

    def leader(self, module: str) -> str:
        """Return the module whose file becomes the one that this module is in."""
        return self._joined[self.table.module(module)][0]


def move(root: Path, table_path: Path) -> None:
    """Carry out a table."""
    repository = Repository(root, table_path)
    table, modules = repository.table, repository.modules
    mutants = root / MUTANTS
    listed, changed = rewrite_mutants(
        mutants.read_text(encoding="utf-8"), root, table, repository.final
    )
    texts: dict[Path, str] = {mutants: listed}
    for path in repository.files:
        is_text = path.suffix in TEXTS or path.name in ("Makefile", "Dockerfile")
        if path == mutants or not (path in modules or is_text):
            continue
        if path in modules and repository.leader(modules[path]) != modules[path]:
            continue
        text = path.read_text(encoding="utf-8")
        new = repository.final(modules[path]) if path in modules else rewrite_text(text, table)
        if new != text:
            texts[path] = new
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    for path, module in modules.items():
        if repository.leader(module) != module:
            subprocess.run(["git", "rm", "-qf", str(path)], cwd=root, check=True)
    for path, module in modules.items():
        target = root / file_of(table.module(module), is_package=path.name == "__init__.py")
        if repository.leader(module) == module and target != path:
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", str(path), str(target)], cwd=root, check=True)
    print(f"{len(texts)} files rewritten; mutants whose text changed, to be read: {len(changed)}")
    for name in changed:
        print(f"  {name}")


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path, nargs="?", help="what becomes of what")
    parser.add_argument("--refit", metavar="REVISION", help="make mutants fit that did there")
    parser.add_argument("--root", type=Path, default=ROOT)
    arguments = parser.parse_args()
    root: Path = arguments.root.resolve()
    if arguments.refit:
        mended, lost = refit(root, arguments.refit)
        print(f"{len(mended)} mutants made anew, to be read: {', '.join(mended)}")
        if lost:
            raise Conflict("not made anew:\n  " + "\n  ".join(lost))
    elif arguments.table:
        move(root, arguments.table)
    else:
        parser.error("name a table, or --refit REVISION")


if __name__ == "__main__":
    try:
        main()
    except Conflict as error:
        sys.exit(f"codemod: {error}")
