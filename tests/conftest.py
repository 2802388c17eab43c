"""Property tests try the same examples at every run: a run that fails is one that was changed.

`make properties` looks for others. They are judged by what they find, not by how busy the machine
is.

Where tests run on several cores (`make test`), those of one file stay together, as what they share
is made once; and so do all that need Spark, which is slow to start and large: they go first.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

pytest_plugins = ["tests.services.fixtures"]

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
if settings.get_current_profile_name() in ("default", "ci"):
    settings.load_profile("same")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say what stays together."""
    for item in items:
        group = "spark" if item.get_closest_marker("spark") else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
