"""What pages say of names and bounds is what the program has."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from millrace import limits
from millrace.cli.commands.serve import serve
from millrace.pipeline import read_pipeline
from millrace.server.auth.access import VERBS
from millrace.spark.columnar import JARS
from millrace.spark.session import DAEMON, settings_of

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs" / "guide"
MIB = 1024 * 1024


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_every_flag_of_the_servers_page_is_one_of_serve() -> None:
    assert isinstance(serve, click.Command)
    known = {name for one in serve.params for name in one.opts}
    told = set(re.findall(r"`(--[a-z-]+)", read(GUIDE / "server.md")))
    assert "--set" in told
    assert told <= known


def test_every_verb_is_told_of() -> None:
    [names] = re.findall(r"verbs \((.*?), or `\*`\)", read(GUIDE / "cli.md"))
    assert names == ", ".join(f"`{verb}`" for verb in VERBS)
    rows = re.findall(r"^\| `([a-z]+)` \|", read(GUIDE / "access-control.md"), re.M)
    assert rows[: len(VERBS)] == list(VERBS)


def test_bounds_of_bad_clients_are_those_of_the_server() -> None:
    [body] = re.findall(r"^\| a body \|.*$", read(GUIDE / "access-control.md"), re.M)
    assert f"together {limits.HTTP_BODIES_BYTES_MAX // MIB} MiB" in body
    assert limits.HTTP_SHARE == 2
    assert "one user half of what the others leave" in body


def test_settings_of_spark_are_those_that_a_session_starts_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    rows = re.findall(r"^\| (`spark\..*?) \| (.*?) \|", read(GUIDE / "spark-tuning.md"), re.M)
    told = {name: value for names, value in rows for name in re.findall(r"`(.*?)`", names)}
    found = settings_of({})
    # The jar is made when Spark starts.
    assert set(told) == {*found, JARS}
    same = ("spark.master", "spark.ui.enabled", "spark.sql.session.timeZone", DAEMON)
    assert [told[name] for name in same] == [f"`{found[name]}`" for name in same]


def test_bounds_of_spans_are_those_of_pipelines() -> None:
    text = read(GUIDE / "spark-tuning.md")
    mib = limits.PIPELINE_SMALL_BYTES // MIB
    assert f"up to {limits.PIPELINE_SMALL_ROWS:,} rows and {mib} MiB" in text
    assert f"parts of {limits.SPARK_PARTITION_BYTES // MIB} MiB" in text
    assert f"of {limits.SPARK_BATCH_ROWS:,} at most" in text


def test_settings_of_spark_are_named_as_the_page_says(tmp_path: Path) -> None:
    [named] = re.findall(r"^```toml\n(.*?)^```$", read(GUIDE / "spark-tuning.md"), re.M | re.S)
    file = tmp_path / "orders.toml"
    rest = 'name = "o"\n[source]\nqueue = "q"\n[sinks.s]\nparquet = "lake"\n'
    file.write_text(rest + named, encoding="utf-8")
    assert read_pipeline(file, {}).spark["spark.driver.memory"] == "2g"


def test_every_sink_is_told_of() -> None:
    told = re.findall(r"\(sinks/([a-z]+)\.md\)", read(GUIDE / "exactly-once.md"))
    assert sorted(told) == sorted(page.stem for page in (GUIDE / "sinks").glob("*.md"))


def test_every_proof_that_can_be_made_is_told_of() -> None:
    made = set(re.findall(r"^([a-z-]+):.*## ", read(ROOT / "Makefile"), re.M))
    told = set(re.findall(r"`make ([a-z-]+)", read(ROOT / "CONTRIBUTING.md")))
    everyday = {"help", "setup", "run", "serve", "test", "fmt", "docs", "clean"}
    everyday |= {"check", "lint", "types", "imports", "spelling"}
    assert told - everyday == made - everyday
