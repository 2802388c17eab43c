"""The programs of the page on Spark run, one after another, in one session."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "spark.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_programs_of_the_page_print_what_it_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    # Spark's processes stand elsewhere.
    text = text.replace('load("tea")', f'load("{tmp_path}/tea")')
    text = text.replace('"path", "tea"', f'"path", "{tmp_path}/tea"')
    text = text.replace('"checkpoint")', f'"{tmp_path}/checkpoint")')
    programs = PROGRAM.findall(text)
    assert len(programs) == text.count("```python") == 3
    names: dict[str, object] = {"spark": spark}
    for program, printed in programs:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(program, str(PAGE), "exec"), names)
        assert out.getvalue() == printed
