"""`millrace check`: verify a folder, in a child process that damage may end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_never

import click

from millrace.cli.checking.report import (
    Began,
    Counted,
    Finding,
    Part,
    Progress,
    Skipped,
    decode,
)
from millrace.cli.ending import FATAL
from millrace.cli.folder import Folder, Problem, Use

CHILD = (sys.executable, "-m", "millrace.cli.checking")
"""The program that does the work; it is given the folder and the parts to check."""

_FILES = {
    Part.INDEX: "index/data.mdb",
    Part.LOG: "log",
    Part.SEALED: "sealed",
    Part.SHARDS: "index/data.mdb",
}
"""What was being read when a part ended its process."""

_WORDS = {
    Part.INDEX: "index",
    Part.LOG: "log",
    Part.SEALED: "sealed files",
    Part.SHARDS: "shards",
}


@click.command(
    epilog="""\b
Examples:
  millrace check data
  millrace check data --json | jq 'select(.type == "finding")'

\b
Exit codes: 0 no damage, 1 damage was found, 2 the folder could not be checked, 4 the damage is in
rows of queues or topics, which are named and quarantined; see `millrace repair`.
""",
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "is_json", is_flag=True, help="One JSON object per line, for programs.")
def check(path: Path, is_json: bool) -> None:  # noqa: FBT001
    """Verify the folder PATH: is everything there, and as it was written?

    Reads the log, the index, the sealed files, and every row's place; compares checksums, and
    counts rows, marks and keys anew. Nothing is changed. The folder must not be in use.
    """
    folder = Folder(path)
    use = folder.use()
    if use.is_in_use:
        raise _in_use(folder, use)
    checking = Checking(folder, is_json=is_json)
    checking.run()
    now = folder.use()
    if now.is_in_use or now.opened_ns != use.opened_ns:
        raise Problem(
            f"{path} was opened by {now.owner} while it was checked: this means nothing",
            "close it there, and check again",
        )
    checking.close()
    sys.exit(FATAL if checking.queues else 1 if checking.findings else 0)


def _in_use(folder: Folder, use: Use) -> Problem:
    return Problem(
        f"{folder.path} is in use by {use.owner}",
        "close it there first; `millrace dump` also shows a folder in use",
    )


class Checking:
    """A check, as its parent sees it."""

    def __init__(self, folder: Folder, *, is_json: bool, child: Sequence[str] = CHILD) -> None:
        self._folder = folder
        self._child = child
        self._is_json = is_json
        self._is_watched = sys.stderr.isatty()
        self._part = Part.INDEX
        self._counts = {"records": 0, "cells": 0, "files": 0, "rows": 0}
        self.findings = 0
        self.queues: set[str] = set()
        """Queues and topics that are quarantined, or will be."""

    def run(self) -> None:
        """Let children do all parts; where one dies, the next goes on behind what it died of."""
        parts = list(Part)
        while parts:
            self._part = parts[0]
            code = self._run_child(parts)
            self._show_progress("")
            if code == 0:
                return
            if code > 0:
                raise Problem(
                    f"the check itself has failed while it looked at the {_WORDS[self._part]}",
                    "this is a defect: please report it with what is printed above",
                )
            what = f"the process that read it was ended by {_signal_name(-code)}: it is damaged"
            self._handle(Finding(_FILES[self._part], None, what))
            parts = parts[parts.index(self._part) + 1 :]

    def _run_child(self, parts: list[Part]) -> int:
        """Returns the child's exit code; below zero, the signal that ended it."""
        command = [*self._child, str(self._folder.path), *(part.value for part in parts)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for line in child.stdout:
                # The last line of a child that died may be cut short.
                if line.endswith(b"\n"):
                    self._handle(decode(line))
        return child.returncode

    def _handle(self, message: Began | Progress | Finding | Skipped | Counted) -> None:
        match message:
            case Began():
                self._part = message.part
                self._show_progress(f"checking the {_WORDS[message.part]}")
            case Progress():
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
            case Skipped():
                self._say("skipped", {"what": message.what}, f"note: {message.what}")
            case Counted():
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
        """Say what it comes to."""
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
