"""Starts an owner process for a folder, so that Spark's processes can read it.

A folder has one owner. If a process has it open and shares it, its connections are used; otherwise
an owner is started here, which ends after a while without connections. It outlives the process that
started it: Spark's drivers start and end with each query.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from millrace.errors import InUse, Invalid
from millrace.rpc.socket_transport import socket_path

READY, TAKEN = "shared", "taken: "


def start_owner(path: Path) -> None:
    """Start a process that opens and shares a folder that is not shared.

    Raises:
        InUse: another process has it open and does not share it.
        Invalid: it is not a folder that can be opened.
    """
    if not path.is_dir():
        raise Invalid(
            f"path is {path}, and there is no such folder; millrace.open makes one", field="path"
        )
    said = _start(path)
    if said.startswith(TAKEN):
        # Another process has the folder, and may be sharing it by now.
        if socket_path(path) is None:
            raise InUse(
                f"{said.removeprefix(TAKEN)}; have its owner share it (millrace.share), or serve "
                "it and use its url",
                pid=None,
            )
    elif said != READY:
        raise Invalid(f"{path} cannot be opened: {said}", field="path")


def _start(path: Path) -> str:
    """Start an owner process; return its status line: started, or the reason of its failure."""
    command = [sys.executable, "-m", "millrace.spark.folder_host", str(path)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.readline().strip()
    if said == READY:
        # It runs detached; its starter does not wait for it.
        process.returncode = 0
    else:
        process.wait()
    return said or "it ended without a word"
