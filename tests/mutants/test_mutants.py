"""The list follows the source, the hunt tells the truth, and a sample of it runs with every test.

`make mutants` runs the whole list.
"""

from __future__ import annotations

import builtins
import keyword
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.run import ROOT, Mutant, Unfit, load, part_of, patched, try_tests

MUTANTS = load()

MUTANTS_MIN = 25
LAYERS = {"core", "wal", "journal", "store", "engine", "client"}

TESTS = ["tests/core/format/test_receipt.py"]
"""Any quick tests."""

HARMLESS = Mutant(
    "harmless",
    "a comment changes nothing",
    "core/format/receipt.py",
    "def seal(",
    "# Nobody notices.\ndef seal(",
    TESTS,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source(mutant: Mutant) -> None:
    text = (ROOT / "src" / "millrace" / mutant.file).read_text()
    changed = patched(mutant, text)
    assert changed != text
    compile(changed, mutant.file, "exec")
    assert mutant.why
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        found = ROOT / path
        assert found.exists(), test
        assert not name or f"def {name.partition('[')[0]}(" in found.read_text(), test


WORD = re.compile(r"\b[A-Za-z_]\w*\b")

MADE_UP = {"Octets", "lease_open", "rotate"}
"""Names that mutants define, write into texts, or call on types of the standard library."""


def test_a_mutant_names_only_what_there_is() -> None:
    """One that calls what was renamed is caught by its own error, and proves nothing."""
    known = {*dir(builtins), *keyword.kwlist, *MADE_UP}
    for path in (ROOT / "src").rglob("*.py"):
        known.update(WORD.findall(path.read_text(encoding="utf-8")))
    unknown = {
        mutant.name: gone
        for mutant in MUTANTS
        if (gone := {*WORD.findall(mutant.new)} - {*WORD.findall(mutant.old)} - known)
    }
    assert not unknown


@pytest.mark.process
def test_all_tests_that_are_named_are_there() -> None:
    """`make mutants` runs them all at once, and stops where one of them is not found."""
    named = sorted({test for mutant in MUTANTS for test in mutant.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *named]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr


def test_there_are_enough_of_them_in_every_layer() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert len(names) >= MUTANTS_MIN
    layers = [mutant.file.partition("/")[0] for mutant in MUTANTS]
    assert all(layers.count(layer) >= 3 for layer in LAYERS), layers


@pytest.mark.process
def test_a_sample_is_caught() -> None:
    command = [sys.executable, "tests/mutants/run.py", "--sample", "6", "--seed", "1"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines()[-1:] == ["6 of 6 mutants caught"], run.stdout + run.stderr


def test_the_whole_list_may_be_run_in_parts() -> None:
    parts = ["1:100", "101:200", "201:"]
    assert [mutant for part in parts for mutant in part_of(MUTANTS, part)] == MUTANTS
    with pytest.raises(Unfit, match="1:100"):
        part_of(MUTANTS, "some")


# --- The hunt itself ------------------------------------------------------------------------------


@pytest.mark.process
def test_what_nobody_notices_survives() -> None:
    assert not try_tests(ROOT, HARMLESS, TESTS).failed


@pytest.mark.process
def test_what_cannot_be_imported_is_not_caught() -> None:
    broken = Mutant("broken", "", HARMLESS.file, "import hmac\n", "import no_such_module\n", TESTS)
    with pytest.raises(Unfit, match="no_such_module"):
        try_tests(ROOT, broken, TESTS)


@pytest.mark.process
def test_what_does_not_work_is_not_caught() -> None:
    slip = Mutant(
        "slip", "", HARMLESS.file, "        proven = _BODY.pack(", "        no_such_name(", TESTS
    )
    with pytest.raises(Unfit, match="no_such_name"):
        try_tests(ROOT, slip, TESTS)


@pytest.mark.process
def test_another_source_is_noticed(tmp_path: Path) -> None:
    """Where the copy is not what is imported, everything survives: so it was, once."""
    for part in ("tests", "pyproject.toml"):
        (tmp_path / part).symlink_to(ROOT / part)
    with pytest.raises(Unfit, match="not on the copy"):
        try_tests(tmp_path, None, TESTS)


def test_a_text_that_is_not_there_is_an_error() -> None:
    gone = Mutant("gone", "", HARMLESS.file, "no such text", "", TESTS)
    with pytest.raises(Unfit, match="stands 0 times"):
        try_tests(ROOT, gone, TESTS)
