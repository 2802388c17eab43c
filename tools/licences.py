"""`make licences`: list the licence of every package that the product may install.

The packages are those that the extras of `pyproject.toml` bring, with all that these need. The run
fails if a package has no licence that is listed in `ACCEPTED`: look at it, then add it here or do
without the package. All of them are used as libraries, unchanged.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

ACCEPTED = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "LGPL-2.1-or-later",
    "LGPL-3.0-only",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "OLDAP-2.8",
    "PSF-2.0",
    "Zlib",
}
"""Identifiers of SPDX. LGPL and MPL allow use as a library by programs of any licence."""

SPELLINGS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "gnu lesser general public license v2 or later (lgplv2+)": "LGPL-2.1-or-later",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "new bsd": "BSD-3-Clause",
    "python software foundation license": "PSF-2.0",
}
"""Names that packages use in place of the identifiers of SPDX."""

TEXT_CHARS_MAX = 60
"""A longer field `License` holds the text of the licence; its name is a classifier then."""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package and its licence, as an expression of SPDX identifiers."""

    name: str
    version: str
    licence: str

    @property
    def is_accepted(self) -> bool:
        """Whether all parts of the licence are accepted, or one of those to choose from."""
        choices = re.split(r"\s+OR\s+", self.licence.strip("()"))
        return any(
            all(part in ACCEPTED for part in re.split(r"\s+AND\s+", choice)) for choice in choices
        )


def licence_of(metadata: importlib.metadata.PackageMetadata) -> str:
    """Return the licence that a package declares, or "unknown"."""
    fields = metadata.json
    if expression := fields.get("license_expression"):
        return str(expression)
    text = str(fields.get("license", "")).strip()
    if text and len(text) <= TEXT_CHARS_MAX:
        name = SPELLINGS.get(text.lower(), text)
        if name in ACCEPTED:
            return name
    names = [
        str(entry).rpartition(" :: ")[2]
        for entry in metadata.get_all("Classifier") or []
        if str(entry).startswith("License :: ")
    ]
    known = sorted({SPELLINGS[name.lower()] for name in names if name.lower() in SPELLINGS})
    return " OR ".join(known) or "unknown"


def required(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the packages that a package needs with these extras, and the extras of each."""
    for line in importlib.metadata.requires(name) or []:
        requirement, _, marker = line.partition(";")
        parts = re.match(r"\s*([\w.-]+)\s*(?:\[([^\]]*)\])?", requirement)
        assert parts is not None, line
        wanted = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        if wanted is None or wanted[1] in extras:
            chosen = frozenset(filter(None, re.split(r"[\s,]+", parts[2] or "")))
            yield re.sub(r"[-_.]+", "-", parts[1]).lower(), chosen


def find_packages() -> list[Package]:
    """Return every package that the product may install, in the order of their names."""
    own = importlib.metadata.metadata("millrace")
    queue = [("millrace", frozenset(own.get_all("Provides-Extra") or []))]
    seen: set[tuple[str, frozenset[str]]] = set()
    packages: dict[str, Package] = {}
    while queue:
        name, extras = queue.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            metadata = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            # A marker excludes it on this machine: another system, or another Python.
            continue
        if name != "millrace":
            packages[name] = Package(name, metadata["Version"], licence_of(metadata))
        queue += required(name, extras)
    return [packages[name] for name in sorted(packages)]


def main() -> int:
    """Print the report, and fail if a licence is not accepted."""
    packages = find_packages()
    for package in packages:
        mark = "" if package.is_accepted else "  NOT ACCEPTED"
        print(f"{package.name:<40} {package.version:<14} {package.licence}{mark}")
    wrong = [package.name for package in packages if not package.is_accepted]
    print(f"\n{len(packages)} packages, {len(wrong)} without an accepted licence")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
