"""Timeouts of the tests, and the one factor that scales all of them.

`TIMEOUT_SCALE=5 make test` gives everything five times as long: for a machine that is slow, or busy
with something else. A timeout here ends what hangs; no test may depend on how fast something is. So
a wait is long in any case, is named by the seconds that suffice on a quiet machine, and goes
through `scaled`.

pytest's own timeout, of `pyproject.toml`, of the command line or of a test's marker, is scaled by
`tests/conftest.py`.
"""

from __future__ import annotations

import os

TIMEOUT_SCALE = float(os.environ.get("TIMEOUT_SCALE") or 1)
"""By what the seconds of all timeouts are multiplied."""


def scaled(seconds: float) -> float:
    """Return the seconds to wait on this machine for what takes up to `seconds` on a quiet one."""
    return seconds * TIMEOUT_SCALE
