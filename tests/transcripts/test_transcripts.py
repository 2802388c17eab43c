"""Every transcript says what happens today; `UPDATE=1` writes it down anew, to be read as code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.transcript.runner import DIVIDER, run

HERE = Path(__file__).parent
PATHS = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    now = run(text)
    if os.environ.get("UPDATE"):
        path.write_text(now, encoding="utf-8")
    else:
        assert text == now


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_purpose_is_on_top(path: Path) -> None:
    given = path.read_text(encoding="utf-8").partition(f"\n{DIVIDER}\n")[0]
    purpose = [line for line in given.splitlines() if line.startswith("#")]
    assert given.startswith("# ")
    assert purpose[-1].endswith(".")


@pytest.mark.process
def test_r1_nothing_depends_on_the_order_of_a_set() -> None:
    """The same commands give the same bytes, whatever the seed of `hash()`."""
    program = (
        "import sys; from pathlib import Path; from tests.support.transcript.runner import run\n"
        "for path in sys.argv[1:]:\n"
        "    text = Path(path).read_text(encoding='utf-8')\n"
        "    assert run(text) == text, path\n"
    )
    paths = [str(path) for path in PATHS]
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", program, *paths], check=True, env=environment)
