"""`millrace job`: the examples of its help, and how it ends, on the Spark that is running."""

from __future__ import annotations

import shlex
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from millrace.cli.commands.job import job
from tests.cli.desk import Desk
from tests.cli.test_program_examples import examples

MEND = Path(__file__).with_name("mend.py")

pytestmark = pytest.mark.spark


@pytest.fixture
def desk(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    found = Desk(tmp_path)
    found.text("demo")
    return found


@pytest.mark.parametrize("name", sorted(job.commands))
def test_examples(desk: Desk, name: str) -> None:
    (desk.home / "orders.csv").write_text("id,total,note\n1,2.5,a\n2,7.5,b\n")
    (desk.home / "orders.jsonl").write_text('{"id": 3, "note": "c"}\n')
    if name == "load":
        write_deltalake(desk.home / "lake", pa.table({"id": [1], "total": [2.5]}))
    if name == "redrive":
        desk.text("queue", "make", "other")
        (desk.home / "mend.py").write_text(MEND.read_text())
    lines = examples(job.commands[name])
    assert lines
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "millrace"
        result = desk.call(*words)
        assert result.exit_code == 0, (line, result.output)


def test_a_job_says_what_it_did(desk: Desk) -> None:
    (desk.home / "a.jsonl").write_text('{"id": 3, "note": "c"}\n')
    loading = ("job", "load", "orders", "a.jsonl", "--name", "a")
    assert desk.one(*loading)["rows"] == 1
    assert "nothing was added" in desk.text(*loading)
    audited = desk.lines("job", "audit")
    assert {line["queue"] for line in audited} >= {"orders", "mail"}
    assert all(line["faults"] == [] for line in audited)
    assert "balances" in desk.text("job", "audit", "orders")
    result = desk.call("job", "audit", "order")
    assert result.exit_code == 1
    assert "did you mean 'orders'" in result.stderr
