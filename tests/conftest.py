"""Property tests try the same examples at every run: a run that fails is one that was changed.

`make properties` looks for others. They are judged by what they find, not by how busy the machine
is.

Where tests run on several cores (`make test`), those of one file stay together, as what they share
is made once; and so do all that need Spark, which is slow to start and large: they go first. Beside
them go those whose programs start a Spark of their own, one after another.

`TIMEOUT_SCALE` multiplies the timeouts of all tests, see `tests/support/timeouts.py`.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.support.timeouts import TIMEOUT_SCALE, scaled

pytest_plugins = ["tests.services.fixtures", "tests.support.processes"]

SPARK = ("tests/spark/", "tests/pipeline/", "tests/batch_jobs/")
"""Where the tests are that share a session of Spark."""

ALONE = (
    "tests/pipeline/crash/",
    "tests/pipeline/test_runner_example.py",
    "tests/pipeline/test_runner_quickstart.py",
)
"""Tests among them that do not: to wait for those who share would only make the longest chain
longer."""

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
if settings.get_current_profile_name() in ("default", "ci"):
    settings.load_profile("same")


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Gives whole files to those who run them, and all that share Spark to one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(ALONE):
            return "alone"
        return "spark" if file.startswith(SPARK) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Say what stays together."""
    return ByFile(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two more than there are cores, as tests wait for half of their time; one if none starts a
    process, as those wait less."""
    return (os.cpu_count() or 1) + (1 if "not process" in config.option.markexpr else 2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have what takes longest begin first, and scale all timeouts."""
    items.sort(key=lambda item: not item.nodeid.startswith(SPARK))
    if TIMEOUT_SCALE != 1:
        _scale_timeouts(config, items)


def _scale_timeouts(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Scale what a marker, the command line or the settings say."""
    usual = config.getoption("timeout") or config.getini("timeout")
    for item in items:
        marker = item.get_closest_marker("timeout")
        given = None if marker is None else [*marker.args, *marker.kwargs.values()]
        seconds = scaled(float(given[0] if given else usual or 0))
        # The first one that is found counts.
        item.add_marker(pytest.mark.timeout(seconds), append=False)
