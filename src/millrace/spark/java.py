"""Finds the Java that Spark runs on, or says what to install.

`JAVA_HOME` comes first, then the path, then the usual installation folders of systems and tools.
Each candidate is run to print its home and its version; the first that is new enough is used. The
program itself is run, because the file on the path may be a link or, on macOS, a stub.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from millrace import limits
from millrace.errors import NotFound

USUAL_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt" + "/java*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt" + "/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
"""Patterns of homes: of Debian, Fedora, images, macOS, Homebrew, SDKMAN and IDEs."""

ADVICE = (
    "install one: apt-get install openjdk-17-jre-headless (Debian, Ubuntu; or 21), "
    "dnf install java-21-openjdk-headless (Fedora), brew install openjdk@21 (macOS); "
    "or set JAVA_HOME to one that is there"
)

_PROPERTY = re.compile(r"^\s*java\.(home|specification\.version) = (.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    """An installation of Java."""

    home: Path
    """The value of `JAVA_HOME` with which Spark uses it."""
    version: int
    """The major version, such as 17."""

    @property
    def executable(self) -> Path:
        """The program that starts it."""
        return self.home / "bin" / "java"


def find_java(
    environment: Mapping[str, str] | None = None, folders: Sequence[str] = USUAL_FOLDERS
) -> Java:
    """Return the first Java that Spark can run on.

    Spark looks at `JAVA_HOME` first and then at the path: the caller sets `JAVA_HOME` to `home`.

    Raises:
        NotFound: no Java was found, or none is new enough. The message lists the candidates, and
            the package to install.
    """
    environment = os.environ if environment is None else environment
    passed_over: list[str] = []
    for program in islice(_candidates(environment, folders), limits.JAVA_TRIED_MAX):
        java = ask_java(program)
        if java is None:
            passed_over.append(f"{program} does not say its version")
        elif java.version < limits.JAVA_VERSION_MIN:
            passed_over.append(f"{program} is Java {java.version}")
        else:
            return java
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise NotFound(
        f"no Java of version {limits.JAVA_VERSION_MIN} or later was found, and Spark runs on it"
        f"{found}; {ADVICE}",
        field="JAVA_HOME",
        limit=limits.JAVA_VERSION_MIN,
    )


def ask_java(program: Path) -> Java | None:
    """Run a program to get its home and version; return None if it is not a working Java."""
    try:
        answer = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limits.JAVA_ANSWER_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_settings(answer.stdout.decode(errors="replace"))


def read_settings(text: str) -> Java | None:
    """Parse the output of `java -XshowSettings:properties`."""
    found = dict(_PROPERTY.findall(text))
    version = found.get("specification.version", "")
    # The version is 1.8 for Java 8; since then 9, 17, 25.
    major = version.removeprefix("1.")
    if "home" not in found or not major.isdecimal():
        return None
    return Java(Path(found["home"]), int(major))


def _candidates(environment: Mapping[str, str], folders: Sequence[str]) -> Iterator[Path]:
    """Yield programs that may be Java, each once, best first."""
    seen: set[Path] = set()
    for program in _places(environment, folders):
        if program.is_file() and os.access(program, os.X_OK):
            real = program.resolve()
            if real not in seen:
                seen.add(real)
                yield program


def _places(environment: Mapping[str, str], folders: Sequence[str]) -> Iterator[Path]:
    home = environment.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path)
    for pattern in folders:
        whole = Path(pattern).expanduser()
        root = Path(whole.anchor)
        for folder in sorted(root.glob(str(whole.relative_to(root))), reverse=True):
            yield folder / "bin" / "java"
