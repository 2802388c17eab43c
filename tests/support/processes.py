"""Marks the tests that start processes, and fails those that do so without the mark.

`make quick` runs the tests that start no process. A test that starts one has the marker `process`;
a fixture that starts one asks for the fixture `starts_processes`, by which all tests that use it
are marked. Tests with the marker `spark` are marked, too: Spark's driver is a process.

A run that leaves marked tests out (`-m "not process"`) fails every other test that starts a
process, and says how to mark it.
"""

from __future__ import annotations

import multiprocessing.util
import sys
from collections.abc import Callable, Generator

import pytest

EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})
"""Audit events of the interpreter that precede the start of a process."""


@pytest.fixture(scope="session")
def starts_processes() -> None:
    """Mark all tests that use the fixture that asks for this one."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marker `process` before tests are selected by their markers."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if starts_processes.__name__ in fixtures or item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.process)


def pytest_configure(config: pytest.Config) -> None:
    """Guard runs that leave out the tests with the marker."""
    config.addinivalue_line("markers", "process: starts a process; `make quick` leaves it out")
    if "not process" in config.option.markexpr:
        config.pluginmanager.register(ProcessGuard())


class ProcessGuard:
    """Fails the tests that start a process.

    The process runs, as a start that is refused could leave the test waiting for ever.
    """

    def __init__(self) -> None:
        self._started: list[str] = []
        """How processes were started since the current phase of a test began."""
        # An audit hook stays until the interpreter ends.
        sys.addaudithook(self._audit)
        # `multiprocessing` starts what it does not fork by this, and raises no audit event.
        spawn: Callable[..., int] = multiprocessing.util.spawnv_passfds

        def noted_spawn(path: object, arguments: object, descriptors: object) -> int:
            self._started.append("multiprocessing")
            return spawn(path, arguments, descriptors)

        pytest.MonkeyPatch().setattr(multiprocessing.util, "spawnv_passfds", noted_spawn)

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS:
            self._started.append(event)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail the test if one of its fixtures started a process."""
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail the test if it started a process, in whatever thread."""
        return (yield from self._phase(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail the test if the end of one of its fixtures started a process."""
        return (yield from self._phase(item))

    def _phase(self, item: pytest.Item) -> Generator[None, object, object]:
        # Plugins may have started some between the tests.
        self._started.clear()
        try:
            return (yield)
        finally:
            if self._started:
                pytest.fail(
                    f"{item.nodeid} starts a process ({self._started[0]}), and `make quick` runs "
                    "only tests that start none: mark it with @pytest.mark.process, or have the "
                    "fixture that starts the process ask for the fixture starts_processes",
                    pytrace=False,
                )
