"""Runs a program that ends when whoever asked for it ends, in whatever way.

Run as `python leash.py FOLDER COMMAND...`. The program's pid is told on standard output. Standard
input is held open by the asker: at its end, the program and all that it has started are killed and
the folder is removed. If the program ends by itself, so does this one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path


def parents() -> dict[int, int]:
    """The parent of each process there is."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                # The name, in parentheses, may hold anything.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] != "Z":
                    found[int(entry.name)] = int(fields[1])
    return found


def family(root: int) -> list[int]:
    """A process and all that it has started, and those have."""
    known = parents()
    found = [root]
    for pid in found:
        found += [child for child, parent in known.items() if parent == pid]
    return found


def kill_family(root: int) -> list[int]:
    """Kill a process, then what it had started, and say which those were."""
    pids = family(root)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return pids


def main() -> int:
    folder, *command = sys.argv[1:]
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    print(program.pid, flush=True)

    is_let_go = threading.Event()

    def hold() -> None:
        # A stream would be locked while this waits, and its end held up by that.
        while os.read(0, 1):
            pass
        is_let_go.set()
        kill_family(program.pid)

    threading.Thread(target=hold, daemon=True).start()
    code = program.wait()
    if is_let_go.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    # A signal's number is negative here, and an exit code is not.
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
