"""The jar by which Spark takes the batches of this source as columns, and makes no rows of them.

Nothing needs it: without it Spark reads the same rows, more slowly. Spark itself has no such reader
for sources in Python, so a class of ours stands before its own (`Columns.java`). Its text is
compiled by Janino, a compiler that comes with Spark, against the Spark that it is for; the jar is
kept where caches are.

`python -m millrace.spark.columnar` says where it is, for `spark.jars` of those who start Spark
themselves.

Rule: whatever goes wrong here ends no program.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from millrace import limits
from millrace.errors import MillraceError, Retry
from millrace.spark.aloud import Say
from millrace.spark.java import Java, find_java

SOURCE = Path(__file__).with_name("Columns.java")

JARS, SWITCH = "spark.jars", "spark.millrace.columnar"
"""Spark's own setting, and ours: "false" has Spark make rows."""

_CLASS = "millrace.spark.Columns"
_COMPILER = "org.codehaus.janino.SimpleCompiler"


def with_columns(settings: Mapping[str, str], java: Java, say: Say) -> dict[str, str]:
    """The settings of a session, with the jar among its own; without it where it cannot be made,
    which is said."""
    if settings.get(SWITCH, "true").lower() == "false":
        return dict(settings)
    try:
        jar = make_jar(java)
    except MillraceError as error:
        say(f"Spark makes rows one by one: {error.message}")
        return dict(settings)
    jars = [one for one in settings.get(JARS, "").split(",") if one]
    return {**settings, JARS: ",".join([*jars, str(jar)])}


def make_jar(java: Java, *, cache: Path | None = None) -> Path:
    """Where the jar is, which is made if it is not there.

    Raises:
        Retry: it cannot be made.
    """
    jars = _home() / "jars"
    version = "".join(sorted(one.name for one in jars.glob("spark-sql_*.jar")))
    digest = hashlib.sha256(SOURCE.read_bytes() + version.encode()).hexdigest()[:16]
    folder = _folder() if cache is None else cache
    jar = folder / f"columns-{digest}.jar"
    if not jar.exists():
        _compile(java, jars, jar)
    return jar


def _home() -> Path:
    """Where Spark is, as it finds itself; it is not imported, which would take half a second."""
    named = os.environ.get("SPARK_HOME")
    if named:
        return Path(named)
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise Retry("there is no Spark; pip install 'millrace[spark]'")
    return Path(found.origin).parent


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "millrace"


def _compile(java: Java, jars: Path, jar: Path) -> None:
    """Write the jar; whoever looks for it finds all of it or nothing."""
    command = [str(java.executable), "-cp", str(jars / "*"), _COMPILER, str(SOURCE), _CLASS]
    try:
        jar.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.parent) as beside:
            made = Path(beside) / jar.name
            done = subprocess.run(
                [*command, str(SOURCE), str(made)],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=limits.SPARK_COMPILE_SECONDS_MAX,
            )
            if done.returncode:
                raise Retry(f"{SOURCE.name} does not fit this Spark: {_said(done.stderr)}")
            made.replace(jar)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Retry(f"{jar} cannot be made: {error}") from error


def _said(text: str) -> str:
    """What is wrong, of all that Java prints."""
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(("at ", "..."))]
    return told[-1][:300] if told else "Java says nothing"


if __name__ == "__main__":
    sys.stdout.write(f"{make_jar(find_java())}\n")
