"""A plugin for the tests of a mutant: they must run on the copy, and must be able to say something.

Where another source is found first, every mutant survives; where the copy cannot be imported, every
mutant counts as caught. Both look like a result and are none.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

UNFIT = 77
"""What the run ends with where it proves nothing; pytest itself does not use it."""


# Whoever made the bug knows where it is: the smallest example is not worth a minute each.
settings.register_profile(
    "mutants", phases=[Phase.explicit, Phase.generate], deadline=None, derandomize=True
)
settings.load_profile("mutants")


def pytest_sessionstart() -> None:
    import millrace

    source = Path(os.environ["MUTANT_SOURCE"]).resolve()
    found = Path(millrace.__file__).resolve()
    if source not in found.parents:
        pytest.exit(f"these tests would run on {found}, not on the copy", returncode=UNFIT)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        pytest.exit(f"{report.nodeid} cannot be collected: {report.longrepr}", returncode=UNFIT)
