"""The program itself: help, version, and names that were mistyped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millrace import __version__
from tests.cli.program import call


@pytest.mark.process
def test_version() -> None:
    program = Path(sys.executable).parent / "millrace"
    result = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"millrace {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(["dumb", "data"], "dump"), (["checkup", "data"], "check"), (["dump", ".", "rwos"], "rows")],
)
def test_mistyped_verbs(arguments: list[str], meant: str, folder: Path) -> None:
    arguments = [str(folder) if word == "." else word for word in arguments]
    result = call(*arguments)
    assert result.exit_code == 2
    assert f"did you mean {meant!r}?" in result.stderr
    assert "--help" in result.stderr


def test_unknown_verbs() -> None:
    result = call("frobnicate")
    assert result.exit_code == 2
    assert "there is no 'frobnicate'; there are demo, serve, queue, topic, publish" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["dump", "--help"], ["check", "-h"], ["dump", "x", "log", "-h"]]
)
def test_help(arguments: list[str], folder: Path) -> None:
    result = call(*(str(folder) if word == "x" else word for word in arguments))
    assert result.exit_code == 0
    assert "Usage: " in result.stdout
    if "log" not in arguments:
        assert "Examples:" in result.stdout
