"""A run without processes fails a test that starts one and is not marked so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[2]

pytest_plugins = ["pytester"]

pytestmark = pytest.mark.process

TESTS = """
import multiprocessing, os, subprocess, sys
import pytest

def start():
    subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.fixture
def undeclared():
    start()

@pytest.fixture
def undeclared_end():
    yield
    start()

@pytest.fixture
def declared(starts_processes):
    start()

@pytest.fixture
def indirect(declared):
    pass

def test_popen():
    start()

def test_fork():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)

def test_shell():
    os.system("true")

def test_spawn():
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()

def test_undeclared(undeclared):
    pass

def test_undeclared_end(undeclared_end):
    pass

def test_none():
    pass

@pytest.mark.process
def test_marked():
    start()

@pytest.mark.spark
def test_spark():
    start()

def test_declared(indirect):
    start()
"""


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A pytest in a process of its own, with the plugin and no other one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    options = "addopts = -p tests.support.processes --strict-markers"
    pytester.makeini(f"[pytest]\n{options}\nmarkers = spark\n")
    pytester.makepyfile(TESTS)
    return pytester


def test_a_test_that_starts_a_process_is_told_to_mark_it(inner: pytest.Pytester) -> None:
    result = inner.runpytest_subprocess("-m", "not process", timeout=scaled(100))
    # What failed in a fixture's beginning or end is an error.
    result.assert_outcomes(failed=4, errors=2, passed=2, deselected=3)
    result.stdout.fnmatch_lines(["*mark it with @pytest.mark.process*starts_processes*"] * 6)


def test_other_runs_are_not_guarded(inner: pytest.Pytester) -> None:
    inner.runpytest_subprocess(timeout=scaled(100)).assert_outcomes(passed=10)
    chosen = inner.runpytest_subprocess("-m", "process", timeout=scaled(100))
    chosen.assert_outcomes(passed=3, deselected=7)
