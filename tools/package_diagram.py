"""Draw the packages of the source with their imports: `python tools/package_diagram.py`.

Prints the Mermaid diagrams that `docs/ARCHITECTURE.md` contains; `--write` puts them there. An
arrow is drawn if no other path leads to the same package (transitive reduction), so that the
diagrams stay readable. Imports for type checking count, as they do for the import contracts.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ARCHITECTURE.md"

DIAGRAMS = {
    "packages": "millrace",
    "core": "millrace.core",
    "server": "millrace.server",
}
"""The package whose direct members each diagram shows, by the diagram's name in the page."""

EVERYWHERE = {
    "millrace": {
        "decoding",
        "errors",
        "event_loop",
        "instruments",
        "lazy_pandas",
        "limits",
        "settings",
        "telemetry",
        "version",
    },
    "millrace.core": set[str](),
    "millrace.server": {"access", "clock", "config", "counters"},
}
"""Modules that everything may import, or that only stand for others: left out."""


def modules(source: Path) -> Iterator[tuple[str, Path]]:
    """Yield the dotted name and the path of each module below `source`."""
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported_modules(path: Path, known: set[str]) -> set[str]:
    """Return the modules of the project that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known


def edges(package: str, source: Path) -> set[tuple[str, str]]:
    """Return which direct members of a package import which others."""
    known = dict(modules(source))
    depth = package.count(".") + 1
    found: set[tuple[str, str]] = set()
    for module, path in known.items():
        if not module.startswith(f"{package}."):
            continue
        member = module.split(".")[depth]
        for other in imported_modules(path, set(known)):
            if other.startswith(f"{package}.") and other.split(".")[depth] != member:
                found.add((member, other.split(".")[depth]))
    left_out = EVERYWHERE[package]
    return {(one, other) for one, other in found if not {one, other} & left_out}


def reduce(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the edges without those that a longer path replaces."""

    def reaches(begin: str, end: str, without: tuple[str, str]) -> bool:
        seen, waiting = {begin}, [begin]
        while waiting:
            at = waiting.pop()
            for edge in found - {without}:
                if edge[0] == at and edge[1] not in seen:
                    seen.add(edge[1])
                    waiting.append(edge[1])
        return end in seen

    return {edge for edge in found if not reaches(*edge, edge)}


def diagram(package: str, source: Path) -> str:
    """Return the Mermaid text of a package."""
    lines = [f"    {one} --> {other}" for one, other in sorted(reduce(edges(package, source)))]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def with_diagrams(page: str, source: Path) -> str:
    """Return the page with its diagrams drawn anew.

    Raises:
        ValueError: the page has no place for one of them.
    """
    for name, package in DIAGRAMS.items():
        place = re.compile(rf"(?<=<!-- diagram: {name} -->\n).*?(?=\n<!-- end -->)", re.DOTALL)
        places = list(place.finditer(page))
        if len(places) != 1:
            raise ValueError(f"{PAGE.name} has {len(places)} places for the diagram {name}")
        begin, end = places[0].span()
        page = page[:begin] + diagram(package, source) + page[end:]
    return page


def main(arguments: list[str]) -> None:
    """Print the diagrams, or write them into the page."""
    source = ROOT / "src"
    if arguments == ["--write"]:
        PAGE.write_text(with_diagrams(PAGE.read_text(encoding="utf-8"), source), encoding="utf-8")
        return
    for package in DIAGRAMS.values():
        print(diagram(package, source))


if __name__ == "__main__":
    main(sys.argv[1:])
