"""What a session starts with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.spark.session import defaults, greeting, settings_of
from tests.support.timeouts import scaled


def test_what_is_named_is_taken_instead() -> None:
    found = settings_of({"spark.master": "yarn", "spark.x": "y"})
    assert found == defaults() | {"spark.master": "yarn", "spark.x": "y"}


def test_a_session_that_is_elsewhere_has_no_master_here() -> None:
    found = settings_of({"spark.remote": "sc://there"})
    assert found == {"spark.remote": "sc://there", "spark.sql.session.timeZone": "UTC"}


@pytest.mark.parametrize(
    ("conf", "where"),
    [
        ({}, "at local[*] (10 s or so), shuffle.partitions="),
        ({"spark.master": "spark://" + 30 * "host,"}, "at spark://host,host"),
        (
            {"spark.remote": "sc://there:443/;token=secret", "spark.key": "secret"},
            "sc://there:443;",
        ),
    ],
)
def test_what_is_said_is_one_short_line_without_secrets(conf: dict[str, str], where: str) -> None:
    said = greeting(settings_of(conf))
    assert where in said
    assert len(said) <= 120
    assert "\n" not in said
    assert "docs/guide/spark-tuning.md" in said
    assert "secret" not in said


DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
"""A source of somebody's, in the way of a worker that looks for sources."""

LOOKS = """
from millrace.spark.session import apart, session

def finds(spark):
    try:
        spark.read.format("millrace").options(path="/nowhere", queue="q").load()
    except Exception as error:
        return "missing" if "[DATA_SOURCE_NOT_" in str(error) else error
    return "found"

conf = {"spark.master": "local[1]", "spark.driver.host": "127.0.0.1", "spark.log.level": "OFF"}
spark = session("millrace-tests", **conf)
print(finds(spark))
with apart(spark) as other:
    print(finds(other))
print(finds(spark.newSession()))
spark.stop()
"""


SHARES = """
from contextlib import ExitStack
from millrace.spark.session import borrowed

conf = {"spark.master": "local[1]", "spark.driver.host": "127.0.0.1", "spark.log.level": "OFF"}
first, second = ExitStack(), ExitStack()
spark = first.enter_context(borrowed("first", conf))
again = second.enter_context(borrowed("second", conf))
first.close()
print(again.range(3).count())
second.close()
print(spark.sparkContext._jsc)
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_worker_that_dies_while_spark_looks_for_sources_hides_none(tmp_path: Path) -> None:
    (tmp_path / "pyspark_dies.py").write_text(DIES)
    # One that is not ours shows that Spark did look, in vain.
    assert said_by(LOOKS, str(tmp_path)) == ["found", "found", "missing"]


@pytest.mark.long
@pytest.mark.spark
def test_spark_ends_with_the_last_who_has_borrowed_it() -> None:
    assert said_by(SHARES) == ["3", "None"]


def said_by(program: str, *paths: str) -> list[str]:
    """What a program prints, in a process of its own."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), *paths])},
        capture_output=True,
        text=True,
        timeout=scaled(300),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
