"""`millrace check`: verifies a folder in a child process, which damage may crash."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_never

import click

from millrace.cli.check.report import (
    CheckPhase,
    Finding,
    PhaseCounts,
    PhaseProgress,
    PhaseSkipped,
    PhaseStarted,
    decode,
)
from millrace.cli.exit_errors import FATAL
from millrace.cli.folder import Folder, FolderError, FolderUse

CHILD = (sys.executable, "-m", "millrace.cli.check.worker")
"""Command line of the child process; the folder and the phases are appended."""

_FILES = {
    CheckPhase.INDEX: "index/data.mdb",
    CheckPhase.LOG: "log",
    CheckPhase.SEALED: "sealed",
    CheckPhase.SHARDS: "index/data.mdb",
}
"""The file that a phase reads, reported as damaged if its process is killed."""

_WORDS = {
    CheckPhase.INDEX: "index",
    CheckPhase.LOG: "log",
    CheckPhase.SEALED: "sealed files",
    CheckPhase.SHARDS: "shards",
}


@click.command(
    epilog="""\b
Examples:
  millrace check data
  millrace check data --json | jq 'select(.type == "finding")'

\b
Exit codes: 0 no damage, 1 damage was found, 2 the folder could not be checked, 4 rows of queues or
topics are damaged: they are listed, and quarantined; see `millrace repair`.
""",
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per line.")
def check(path: Path, is_json: bool) -> None:  # noqa: FBT001
    """Verify that the folder PATH is complete and undamaged.

    Reads the log, the index, the sealed files and every row; compares checksums, and recounts
    rows, death marks and keys. Nothing is changed. The folder must not be in use.
    """
    folder = Folder(path)
    use = folder.use()
    if use.is_in_use:
        raise _in_use(folder, use)
    checking = Checking(folder, is_json=is_json)
    checking.run()
    now = folder.use()
    if now.is_in_use or now.opened_ns != use.opened_ns:
        raise FolderError(
            f"{path} was opened by {now.owner} during the check: the result is invalid",
            "close it there, and check again",
        )
    checking.close()
    sys.exit(FATAL if checking.queues else 1 if checking.findings else 0)


def _in_use(folder: Folder, use: FolderUse) -> FolderError:
    return FolderError(
        f"{folder.path} is in use by {use.owner}",
        "close it there first; `millrace dump` also shows a folder in use",
    )


class Checking:
    """Runs a check in child processes, and prints what they report."""

    def __init__(self, folder: Folder, *, is_json: bool, child: Sequence[str] = CHILD) -> None:
        self._folder = folder
        self._child = child
        self._is_json = is_json
        self._is_watched = sys.stderr.isatty()
        self._part = CheckPhase.INDEX
        self._counts = {"records": 0, "cells": 0, "files": 0, "rows": 0}
        self.findings = 0
        self.queues: set[str] = set()
        """Queues and topics that are quarantined, or will be at the next open."""

    def run(self) -> None:
        """Run all phases; if a child is killed, start another one after the fatal phase."""
        parts = list(CheckPhase)
        while parts:
            self._part = parts[0]
            code = self._run_child(parts)
            self._show_progress("")
            if code == 0:
                return
            if code > 0:
                raise FolderError(
                    f"the check itself failed while it read the {_WORDS[self._part]}",
                    "this is a bug: please report it with the output above",
                )
            what = f"the process that read it was killed by {_signal_name(-code)}: it is damaged"
            self._handle(Finding(_FILES[self._part], None, what))
            parts = parts[parts.index(self._part) + 1 :]

    def _run_child(self, parts: list[CheckPhase]) -> int:
        """Run a child to its end; return its exit code, or minus the number of a signal."""
        command = [*self._child, str(self._folder.path), *(part.value for part in parts)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for line in child.stdout:
                # The last line of a killed child may be incomplete.
                if line.endswith(b"\n"):
                    self._handle(decode(line))
        return child.returncode

    def _handle(
        self, message: PhaseStarted | PhaseProgress | Finding | PhaseSkipped | PhaseCounts
    ) -> None:
        match message:
            case PhaseStarted():
                self._part = message.part
                self._show_progress(f"checking the {_WORDS[message.part]}")
            case PhaseProgress():
                share = 100 * message.done // max(message.total, 1)
                self._show_progress(f"checking the {_WORDS[self._part]}: {share} %")
            case Finding():
                self.findings += 1
                fields: dict[str, object] = {
                    "file": message.file,
                    "offset": message.offset,
                    "what": message.what,
                }
                if message.queue:
                    self.queues.add(message.queue)
                    fields["queue"] = message.queue
                self._say("finding", fields, message.text())
            case PhaseSkipped():
                self._say("skipped", {"what": message.what}, f"note: {message.what}")
            case PhaseCounts():
                self._counts["records"] += message.records
                self._counts["cells"] += message.cells
                self._counts["files"] += message.files
                self._counts["rows"] += message.rows
            case _:
                assert_never(message)

    def _say(self, kind: str, fields: Mapping[str, object], text: str) -> None:
        self._show_progress("")
        click.echo(json.dumps({"type": kind, **fields}) if self._is_json else text)

    def _show_progress(self, text: str) -> None:
        if self._is_watched:
            click.echo(f"\r\033[K{text}", nl=False, err=True)

    def close(self) -> None:
        """Print the summary and a hint."""
        counts = ", ".join(f"{count} {name}" for name, count in self._counts.items())
        result = f"{self.findings} findings" if self.findings else "no damage"
        fields = {**self._counts, "findings": self.findings}
        if self.queues and not self._is_json:
            names = ", ".join(sorted(self.queues))
            click.echo(
                f"Hint: rows of {names} cannot be read. Nothing was changed. `millrace repair` "
                "exports or drops them; restoring a damaged sealed file from a backup keeps them."
            )
        elif self.findings and not self._is_json:
            click.echo(
                "Hint: nothing was changed. Restore the folder from a backup, or resync it from a "
                "replica; `millrace dump` shows what can still be read."
            )
        self._say("end", fields, f"checked {counts}: {result}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
