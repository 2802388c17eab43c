"""The repository keeps its own rules: those of docs/STYLE.md that no linter knows.

Every test gathers all offences before it fails, so that one run shows them all.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace import errors

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "millrace"

MODULE_LINES_MAX = 700
"""A longer module has more than one subject."""

EMPTY_NAMES = {"manager", "handler", "helper", "util", "utility", "common", "impl", "misc"}
"""Words that say nothing about what a class or a module is for."""

CROSS_CUTTING = {
    "bench",
    "contracts",
    "crash",
    "formats",
    "frozen",
    "fuzz",
    "hostile",
    "integration",
    "load",
    "mutants",
    "properties",
    "services",
    "simulation",
    "support",
    "tools",
    "transcripts",
}
"""Folders of tests whose subject is no single module; so are the tests in `tests/` itself."""

MIRRORED_SHARE_MIN = 0.9
"""Share of the other test modules that are named for the module that they test."""

NOT_OURS = {"build", "dist", "data", "node_modules", "__pycache__"}
"""Folders that tools make; so are all that begin with a dot, but for `.ci`."""

TEXT_SUFFIXES = {".cfg", ".ini", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}

MACHINE_PATH = re.compile(r"(?<![\w.~/*-])/(?:home|root|Users|work|opt|mnt)/[\w.]")

NEWSFRAGMENT = re.compile(r"(?:[1-9]\d*|\+[a-z0-9]+(?:-[a-z0-9]+)*)\.(\w+)(?:\.[1-9]\d*)?\.md")
"""`<issue>.<type>.md`, with a number before `.md` where an issue has two of a type."""

ADR_NAME = re.compile(r"(\d{4})-[a-z0-9]+(?:-[a-z0-9]+)*\.md")

ADR_NUMBERS_GIVEN_OUT: set[int] = set()
"""Numbers of pages that are being written beside others. A release has none."""

ADR_SECTIONS = ("## Context", "## Decision", "## Alternatives")

CLASS = re.compile(r"\bclass\s+(\w+)")
"""The name of each class, and some that only look like one."""

LINK = re.compile(r"\[[^\]\n]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")

CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def tree(folder: Path = ROOT) -> Iterator[Path]:
    """Yield the files that are ours, in a fixed order, without asking git."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            hidden = path.name.startswith(".") and path.name != ".ci"
            if not hidden and path.name not in NOT_OURS and not path.name.endswith(".egg-info"):
                yield from tree(path)
        elif path.is_file():
            yield path


def is_text(path: Path) -> bool:
    return path.suffix in TEXT_SUFFIXES or path.name in {"Makefile", "run"}


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_files() -> Iterator[Path]:
    return (path for path in tree() if path.suffix == ".py")


def words(name: str) -> set[str]:
    """The lower-case words of a CamelCase or snake_case name, plurals made singular."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {word for part in parts for word in (part.lower(), part.lower().removesuffix("s"))}


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a Markdown text."""
    found: set[str] = set()
    without_fences = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", without_fences, re.MULTILINE):
        base = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        slug, count = base, 0
        while slug in found:
            count += 1
            slug = f"{base}-{count}"
        found.add(slug)
    return found


def test_modules_are_short() -> None:
    long = [
        f"{shown(path)}: {count} lines"
        for path in sorted(SOURCE.rglob("*.py"))
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MODULE_LINES_MAX
    ]
    assert not long, f"above {MODULE_LINES_MAX} lines; split by subject: {long}"


def mirrors_a_module(path: Path) -> bool:
    """Return True for `tests/<package>/test_<module>[_<aspect>].py` if `src` has the module."""
    folder = SOURCE / path.parent.relative_to(ROOT / "tests")
    parts = path.stem.removeprefix("test_").split("_")
    names = ["_".join(parts[:size]) for size in range(1, len(parts) + 1)]
    return any((folder / f"{name}.py").exists() or (folder / name).is_dir() for name in names)


def test_tests_lie_at_the_mirrored_place() -> None:
    counted = [
        path
        for path in sorted((ROOT / "tests").glob("*/**/test_*.py"))
        if not CROSS_CUTTING & set(path.relative_to(ROOT / "tests").parts)
    ]
    elsewhere = [shown(path) for path in counted if not mirrors_a_module(path)]
    share = 1 - len(elsewhere) / len(counted)
    assert share >= MIRRORED_SHARE_MIN, (
        f"{share:.3f}; call a test of src/millrace/<package>/<module>.py "
        f"tests/<package>/test_<module>[_<aspect>].py: {elsewhere}"
    )


def test_names_say_something() -> None:
    empty: list[str] = []
    for path in python_files():
        if words(path.stem) & EMPTY_NAMES:
            empty.append(shown(path))
        text = path.read_text(encoding="utf-8")
        # To parse the files that cannot have such a class would take most of the time.
        if not any(words(name) & EMPTY_NAMES for name in CLASS.findall(text)):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and words(node.name) & EMPTY_NAMES:
                empty.append(f"{shown(path)}:{node.lineno}: class {node.name}")
    assert not empty, f"name it for what it does: {empty}"


TWO_MEANINGS = {"Place", "Row"}
"""Names of public classes that programs import from two modules; a third meaning is refused."""


def test_a_public_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if "sync" in path.relative_to(SOURCE).parts:
            # Generated twins of the asynchronous classes.
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(shown(path))
    shared = {name: found for name, found in places.items() if len(set(found)) > 1}
    for name in TWO_MEANINGS:
        assert len(shared.pop(name)) == 2
    assert not shared, f"name each for its role: {shared}"


def test_every_limit_has_its_reason() -> None:
    bare: list[str] = []
    for path in sorted((SOURCE / "limits").glob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                documented = (
                    isinstance(after, ast.Expr)
                    and isinstance(after.value, ast.Constant)
                    and isinstance(after.value.value, str)
                    and after.value.value.strip()
                )
                if not documented:
                    bare.append(f"{shown(path)}:{node.lineno}: {ast.unparse(node)}")
    assert not bare, f"say beside it why it has this value: {bare}"


def test_no_limit_has_two_values() -> None:
    names = [
        target.id
        for path in sorted((SOURCE / "limits").glob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    assert len(names) == len(set(names)), "the chapters of limits are one list"
    assert len(names) > 100


def test_refusals_name_their_field() -> None:
    refusals = {
        found.__name__
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, errors.Refused)
    } - {"Refused", "OutOfOrder"}
    # The one is not used for what a program asks, the other sets its own.
    offences = [
        f"{shown(path)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", None) or getattr(node.func, "attr", None)) in refusals
        and not any(keyword.arg == "field" for keyword in node.keywords)
    ]
    assert not offences, offences


def test_no_path_of_one_machine() -> None:
    found = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in tree()
        if is_text(path)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, f"paths that exist on one machine only: {found}"


def test_links_lead_somewhere() -> None:
    dead: list[str] = []
    for path in tree():
        if path.suffix != ".md":
            continue
        for link in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.exists() or not target.is_relative_to(ROOT):
                dead.append(f"{shown(path)}: {link}")
            elif (
                anchor
                and target.suffix == ".md"
                and anchor not in anchors(target.read_text(encoding="utf-8"))
            ):
                dead.append(f"{shown(path)}: {link} (no such heading)")
    assert not dead, f"dead links: {dead}"


def test_newsfragments_have_their_shape() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    types = {entry["directory"] for entry in configuration["tool"]["towncrier"]["type"]}
    wrong: list[str] = []
    for path in tree(ROOT / "newsfragments"):
        if path.name == "README.md":
            continue
        match = NEWSFRAGMENT.fullmatch(path.name)
        if match is None or match[1] not in types:
            wrong.append(f"{path.name}: not <issue or +words>.<type>.md; types: {sorted(types)}")
        elif not path.read_text(encoding="utf-8").strip().endswith((".", "!", "`")):
            wrong.append(f"{path.name}: not a full sentence")
    assert not wrong, wrong


def test_changelog_can_be_continued() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    marker = configuration["tool"]["towncrier"]["start_string"].strip()
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert lines.count(marker) == 1


def test_decisions_are_numbered_without_gaps() -> None:
    paths = sorted((ROOT / "docs" / "adr").iterdir())
    misnamed = [path.name for path in paths if ADR_NAME.fullmatch(path.name) is None]
    assert not misnamed, f"not NNNN-title.md: {misnamed}"
    numbers = [int(path.name[:4]) for path in paths]
    assert len(numbers) == len(set(numbers)), f"double: {numbers}"
    known = sorted({*numbers, *ADR_NUMBERS_GIVEN_OUT})
    assert known == list(range(1, len(known) + 1)), f"gap: {numbers}"


def test_decisions_have_their_sections() -> None:
    wrong: list[str] = []
    for path in sorted((ROOT / "docs" / "adr").glob("*.md")):
        lines = path.read_text(encoding="utf-8").splitlines()
        if not lines or not lines[0].startswith(f"# {path.name[:4]}. "):
            wrong.append(f"{path.name}: the first line is not '# {path.name[:4]}. Title'")
        wrong += [f"{path.name}: no '{part}'" for part in ADR_SECTIONS if part not in lines]
    assert not wrong, wrong


def test_every_dependency_has_its_decision() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    titles = " ".join(
        path.read_text(encoding="utf-8").partition("\n")[0].lower()
        for path in sorted((ROOT / "docs" / "adr").glob("*.md"))
    )
    names = {re.split(r"[^\w-]", requirement, maxsplit=1)[0] for requirement in wanted}
    missing = sorted(name for name in names if re.search(rf"\b{name}\b", titles) is None)
    assert not missing, f"no page in docs/adr names these in its title: {missing}"


def test_both_locks_agree() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    expected: dict[str, set[str]] = {}
    for package in lock["package"]:
        if package["source"] == {"editable": "."}:
            continue
        assert package["source"] == {"registry": "https://pypi.org/simple"}, package["name"]
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        expected[f"{package['name']}=={package['version']}"] = {file["hash"] for file in files}
    assert locked("requirements.lock") == expected, "run `make lock`"


def locked(path: str) -> dict[str, set[str]]:
    """What a lock for pip names, `name==version`, with the hashes of each."""
    found: dict[str, set[str]] = {}
    current = ""
    for line in (ROOT / path).read_text(encoding="utf-8").splitlines():
        if line.startswith("    --hash="):
            found[current].add(line.strip(" \\").removeprefix("--hash="))
        elif not line.startswith("#"):
            current = line.split(" ")[0]
            found[current] = set()
    return found


def test_the_older_spark_is_locked_among_the_same_packages() -> None:
    newer, older = locked("requirements.lock"), locked("tests/spark/spark42.lock")
    apart = [name for name in older if name not in newer]
    assert [name.rpartition(".")[0] for name in apart] == ["pyspark==4.2"], "run `make lock`"
    # It also names what was built for Pythons that we do not run on.
    lacking = [name for name in older if not older[name] >= newer.get(name, set())]
    assert not lacking, "run `make lock`"
    assert all(older.values())


def test_the_lock_covers_what_is_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    own = next(package for package in lock["package"] if package["name"] == "millrace")
    metadata = own["metadata"]

    def names(requirements: list[str]) -> list[str]:
        return sorted(
            re.split(r"[^\w-]", requirement, maxsplit=1)[0] for requirement in requirements
        )

    project = declared["project"]
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    required = sorted(entry["name"] for entry in metadata["requires-dist"])
    assert required == names([*project["dependencies"], *extras]), "run `make lock`"
    required = sorted(entry["name"] for entry in metadata["requires-dev"]["dev"])
    assert required == names(declared["dependency-groups"]["dev"]), "run `make lock`"
    assert own["version"] == project["version"], "run `make lock`"


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ('open("/' + 'home/someone/data")', True),
        ("see /" + "root/x", True),
        ("https://example.org/home/x", False),
        ("src/work/x", False),
        ("./opt/x", False),
    ],
)
def test_machine_paths_are_recognised(line: str, *, is_found: bool) -> None:
    assert (MACHINE_PATH.search(line) is not None) is is_found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SegmentManager", {"segment", "manager"}),
        ("LMDBStore", {"lmdb", "store"}),
        ("test_helpers", {"test", "helpers", "helper"}),
    ],
)
def test_names_are_cut_into_words(name: str, expected: set[str]) -> None:
    assert words(name) == expected


def test_headings_become_anchors() -> None:
    text = "# One, two\n\n```\n# Not a heading\n```\n\n## The `log`\n## The `log`\n"
    assert anchors(text) == {"one-two", "the-log", "the-log-1"}
