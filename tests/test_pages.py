"""The programs in the README and in the guide run, and print what stands below them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.test_states import MEMORY
from tests.support.timeouts import scaled

ROOT = Path(__file__).resolve().parents[1]

GUIDE = ROOT / "docs" / "guide"

OTHERS = (
    "cli",
    "dynamiq",
    "exactly-once",
    "batch-jobs",
    "quickstart",
    "rest",
    "sns",
    "spark",
    "spark-tuning",
    "sqs",
    "testing",
)
"""Pages whose commands and tests are run elsewhere."""

PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(GUIDE.glob("*.md")) if page.stem not in OTHERS),
    *(GUIDE / "sinks" / f"{name}.md" for name in ("delta", "iceberg", "parquet", "writing")),
]

PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A program, and what it prints."""

PROGRAMS = [
    pytest.param(*found.groups(), id=f"{page.stem}-{at}")
    for page in PAGES
    for at, found in enumerate(PROGRAM.finditer(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_a_program(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(PROGRAM.findall(text)) == text.count("```python") > 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """In memory: each program fills a large log with zeros, and ends."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as found:
        yield Path(found)


@pytest.mark.process
@pytest.mark.parametrize(("program", "said"), PROGRAMS)
def test_a_program_runs(program: str, said: str, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(120),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == said
