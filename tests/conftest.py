"""Property tests try the same examples at every run: a run that fails is one that was changed.

`make properties` looks for others. They are judged by what they find, not by how busy the machine
is.

Where tests run on several cores (`make test`), those of one file stay together, as what they share
is made once; and so do all that need Spark, which is slow to start and large: they go first. Beside
them go those whose programs start a Spark of their own, one after another.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

pytest_plugins = ["tests.services.fixtures"]

SPARK = ("tests/spark/", "tests/pipeline/", "tests/jobs/")
"""Where the tests are that share a session of Spark."""

ALONE = (
    "tests/pipeline/crash/",
    "tests/pipeline/test_example.py",
    "tests/pipeline/test_quickstart.py",
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
def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are cores: for half of their time tests wait."""
    return (os.cpu_count() or 1) + 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have what takes longest begin first."""
    items.sort(key=lambda item: not item.nodeid.startswith(SPARK))
