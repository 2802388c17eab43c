"""Runs the program: within this process, or in one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from millrace.cli.check.report import (
    CheckMessage,
    CheckPhase,
    CheckReporter,
    Finding,
)
from millrace.cli.check.worker import run_phases
from millrace.cli.folder import Folder
from millrace.cli.program import program as main
from tests.support.timeouts import scaled


def call(*arguments: object) -> Result:
    """The verb within this process; a defect is raised, not reported."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def objects(*arguments: object) -> list[dict[str, object]]:
    """What the verb says as JSON, line by line."""
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def start(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The verb in a process of its own."""
    command = [sys.executable, "-m", "millrace.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=scaled(60), check=False)


class Kept(CheckReporter):
    """A report that is kept instead of being sent to a parent."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[CheckMessage] = []

    def tell(self, message: CheckMessage) -> None:
        self.messages.append(message)


def messages_of(folder: Path) -> list[CheckMessage]:
    """What a check of the folder says, within this process."""
    report = Kept()
    run_phases(Folder(folder), report, list(CheckPhase))
    return report.messages


def findings(folder: Path) -> list[Finding]:
    """What a check of the folder finds, within this process."""
    return [message for message in messages_of(folder) if isinstance(message, Finding)]


def flip(path: Path, offset: int, bits: int = 0x10) -> None:
    """Change a byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= bits
    path.write_bytes(data)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and its bytes."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
