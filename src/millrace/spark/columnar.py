"""Builds the jar with which Spark reads batches of this source as columns, without converting them
to rows.

It is optional: without it, Spark reads the same rows, more slowly. Spark has no columnar reader for
Python sources, so that a class of this package replaces its own (`Columns.java`). The source is
compiled by Janino, a compiler that is part of Spark, against the installed Spark; the jar is kept
in the cache directory.

`python -m millrace.spark.columnar` prints its path, for `spark.jars` in sessions that are started
otherwise.

Rule: no failure here ends a program.
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
from millrace.spark.java import Java, find_java
from millrace.spark.notices import Say

SOURCE = Path(__file__).with_name("Columns.java")

JARS, SWITCH = "spark.jars", "spark.millrace.columnar"
"""Spark's setting for jars, and the setting of this package: "false" makes Spark convert to
rows.
"""

_CLASS = "millrace.spark.Columns"
_COMPILER = "org.codehaus.janino.SimpleCompiler"


def with_columns(settings: Mapping[str, str], java: Java, say: Say) -> dict[str, str]:
    """Return the settings of a session with the jar added; if it cannot be built, `say` is called
    and the settings are returned unchanged.
    """
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
    """Return the path of the jar, building it if necessary.

    Raises:
        Retry: it cannot be built.
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
    """Return Spark's home by Spark's own rules; pyspark is not imported, which would take half a
    second.
    """
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
    """Build the jar and rename it into place, so that readers never see a part of it."""
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
    """Extract the error message from Java's output."""
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(("at ", "..."))]
    return told[-1][:300] if told else "Java says nothing"


if __name__ == "__main__":
    sys.stdout.write(f"{make_jar(find_java())}\n")
