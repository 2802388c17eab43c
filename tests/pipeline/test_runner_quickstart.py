"""The quick start can be followed, and says what is printed.

Its commands run one after another in one process beside the tests, so that Java starts once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guide" / "quickstart.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {"text": "carts.txt", "toml": "carts.toml", "python": "look.py"}

PROGRAM = """
import runpy, shlex, sys
from millrace.cli.program import program

for line in sys.stdin.read().splitlines():
    command, _, given = line.partition(" < ")
    name, *arguments = shlex.split(command)
    sys.stdin = open(given) if given else sys.__stdin__
    if name == "python":
        runpy.run_path(*arguments)
        continue
    try:
        program(arguments, prog_name=name)
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{line}: {ended.code}")
"""


@pytest.mark.spark
def test_the_quick_start_can_be_followed(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    for kind, name in FILES.items():
        [text] = [text for found, text in blocks if found == kind]
        (tmp_path / name).write_text(text, encoding="utf-8")
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MILLRACE")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="".join(text for kind, text in blocks if kind == "sh"),
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(280),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    at = 0
    for part in re.split("…|\n", "".join(text for kind, text in blocks if kind == "output")):
        assert part in done.stdout[at:], done.stdout
        at = done.stdout.index(part, at) + len(part)
    assert "Error" not in done.stderr
    assert "log level" not in done.stderr
