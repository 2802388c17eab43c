"""Move modules and rename what they define, everywhere: `python tools/codemod.py TABLE.toml`.

The table says what becomes of what, by the names of today:

    [modules]
    "millrace.wal" = "millrace.wal"                    # with all modules below it
    "millrace.shard.mover" = "millrace.engine.dead_letter_mover"

    [names]
    "millrace.shard.mover:Mover" = "DeadLetterMover"   # what a module defines at its top level

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
import tokenize
import tomllib
from collections.abc import Iterator
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
            if symbol.is_global():
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


def remade(entry: dict[str, object], clean: str, table: Table) -> dict[str, object]:
    """Return a mutant as it is after the move: the difference of the rewritten sources.

    Raises:
        Conflict: its text does not stand once in its file.
    """
    name, file = str(entry["name"]), str(entry["file"])
    old, new = str(entry["old"]), str(entry["new"])
    if clean.count(old) != 1:
        raise Conflict(f"the mutant {name} does not fit {file}")
    module = f"millrace.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
    after = rewrite_python(clean, table, module)
    mutated = rewrite_python(clean.replace(old, new), table, module)
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


def rewrite_mutants(text: str, root: Path, table: Table) -> tuple[str, list[str]]:
    """Return the list of mutants after the move, and the names of those whose text has changed."""
    out, changed = [], []
    blocks = re.split(r"(?m)^(?=\[\[mutant\]\])", text)
    for block in blocks:
        if not block.startswith("[[mutant]]"):
            out.append(block)
            continue
        [entry] = tomllib.loads(block)["mutant"]
        clean = (root / "src" / "millrace" / entry["file"]).read_text(encoding="utf-8")
        found = remade(entry, clean, table)
        if (found["old"], found["new"]) != (entry["old"], entry["new"]):
            changed.append(entry["name"])
        if found != entry:
            comments = "".join(re.findall(r"(?m)^#.*\n", block))
            lines = "".join(f"{key} = {_toml(value)}\n" for key, value in found.items())
            end = "\n" if comments else ""
            block = f"[[mutant]]\n{lines}\n{comments}{end}"
            assert tomllib.loads(block)["mutant"] == [found], entry["name"]
        out.append(block)
    return "".join(out), changed


def main() -> None:
    """Carry out a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--root", type=Path, default=ROOT)
    arguments = parser.parse_args()
    root: Path = arguments.root.resolve()
    files = list(tracked(root))
    code = [path for path in files if path.suffix == ".py"]
    code = [path for path in code if path.relative_to(root).parts[0] in CODE]
    modules = {path: module_of(path, root) for path in code}
    table = Table.read(arguments.table, frozenset(modules.values()))
    mutants = root / MUTANTS
    listed, changed = rewrite_mutants(mutants.read_text(encoding="utf-8"), root, table)
    texts: dict[Path, str] = {mutants: listed}
    for path in files:
        is_text = path.suffix in TEXTS or path.name in ("Makefile", "Dockerfile")
        if path == mutants or not (path in modules or is_text):
            continue
        text = path.read_text(encoding="utf-8")
        new = (
            rewrite_python(text, table, modules[path])
            if path in modules
            else rewrite_text(text, table)
        )
        if new != text:
            texts[path] = new
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    for path, module in modules.items():
        target = root / file_of(table.module(module), is_package=path.name == "__init__.py")
        if target != path:
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", str(path), str(target)], cwd=root, check=True)
    print(f"{len(texts)} files rewritten; mutants whose text changed, to be read: {len(changed)}")
    for name in changed:
        print(f"  {name}")


if __name__ == "__main__":
    try:
        main()
    except Conflict as error:
        sys.exit(f"codemod: {error}")
