"""The public names: all there, and imported when they are used."""

from __future__ import annotations

import re
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


@pytest.mark.process
def test_importing_the_package_does_not_wait_for_arrow() -> None:
    code = "import sys, millrace; sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _returned(found: object) -> list[str]:
    """The names of our own classes that a method or property is said to return."""
    body = found.fget if isinstance(found, property) else found
    said = str(getattr(body, "__annotations__", {}).get("return", ""))
    home = vars(sys.modules[getattr(body, "__module__", "builtins")])
    types = [home.get(name) for name in re.findall(r"[A-Z]\w+", said)]
    return [
        each.__name__
        for each in types
        if isinstance(each, type) and each.__module__.startswith("millrace.")
    ]


INTERNAL = {"CursorPosition"}
"""Classes of the core that public methods have always returned: `Cursor.positions` does."""


@pytest.mark.parametrize("name", millrace.__all__)
def test_what_public_methods_return_is_public(name: str) -> None:
    found = getattr(millrace, name)
    members = vars(found).items() if isinstance(found, type) else ()
    returned = {
        each for member, value in members if not member.startswith("_") for each in _returned(value)
    }
    assert returned <= {*millrace.__all__, *INTERNAL}
