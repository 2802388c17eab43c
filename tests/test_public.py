"""The public names: all there, and imported when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millrace


@pytest.mark.parametrize("name", millrace.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(millrace, name) is getattr(millrace, name)
    assert name in dir(millrace)


def test_nothing_else_is_shown() -> None:
    assert dir(millrace) == sorted(millrace.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        getattr(millrace, "unknown")  # noqa: B009


def test_importing_the_package_does_not_wait_for_arrow() -> None:
    code = "import sys, millrace; sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
