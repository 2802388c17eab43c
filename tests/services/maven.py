"""Jars and all that they need, fetched once by Maven, which knows the machine's mirrors."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from tests.services.cache import cached
from tests.services.missing import Missing
from tests.services.packages import have_program

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millrace</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""

DEPENDENCY = """\
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>"""


def pom(wanted: Sequence[str]) -> str:
    """The project file that asks for `group:artifact:version` each."""
    parts = [DEPENDENCY.format(*map(escape, one.split(":"))) for one in wanted]
    return POM.format(dependencies="\n".join(parts))


def jars(name: str, wanted: Sequence[str]) -> Path:
    """A folder with the jars and those that they need to run.

    The name has to change with what is wanted. Checksums are Maven's to verify.

    Raises:
        Missing: Maven is not there, or could not fetch them.
    """

    def fetch(folder: Path) -> None:
        maven = have_program("mvn", "maven")
        project = folder / "pom.xml"
        project.write_text(pom(wanted), encoding="utf-8")
        command = [str(maven), "-q", "-B", "-C", "-f", str(project), COPY, "-DincludeScope=runtime"]
        ended = subprocess.run(
            [*command, f"-DoutputDirectory={folder}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise Missing(f"Maven could not fetch {name}:\n{ended.stdout[-2000:]}")

    return cached(name, fetch)
