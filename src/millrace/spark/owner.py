"""Having a folder shared, so that Spark's processes can read it.

A folder has one owner. If somebody has it open and shares it, that is who answers; else one is
started here, which ends by itself when nobody was connected for a while. It outlives the process
that started it: Spark's drivers come and go with each query.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from millrace.client.sockets import socket_of
from millrace.errors import InUse, Invalid

READY, TAKEN = "shared", "taken: "


def start_owner(path: Path) -> None:
    """Have somebody open and share a folder that nobody shares.

    Raises:
        InUse: somebody has it open and does not share it.
        Invalid: it is no folder that can be opened.
    """
    if not path.is_dir():
        raise Invalid(
            f"path is {path}, and there is no such folder; millrace.open makes one", field="path"
        )
    said = _start(path)
    if said.startswith(TAKEN):
        # Somebody has it: to share it, perhaps, by now.
        if socket_of(path) is None:
            raise InUse(
                f"{said.removeprefix(TAKEN)}; have its owner share it (millrace.share), or serve "
                "it and use its url",
                pid=None,
            )
    elif said != READY:
        raise Invalid(f"{path} cannot be opened: {said}", field="path")


def _start(path: Path) -> str:
    """Start an owner; returns the line that it says: that it is there, or why not."""
    command = [sys.executable, "-m", "millrace.spark.owning", str(path)]
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
        # It goes on alone; whoever started it does not wait for it.
        process.returncode = 0
    else:
        process.wait()
    return said or "it ended without a word"
