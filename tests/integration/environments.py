"""Environments of clients that ours has not, each from a lock of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from hashlib import sha256
from pathlib import Path

from millrace.spark.java import find_java
from tests.services.cache import cached
from tests.services.maven import jars
from tests.services.missing import Missing
from tests.services.packages import have_program

LOCKS = Path(__file__).with_name("locks")


def have_python(name: str) -> Path:
    """The Python of an environment that has what `locks/<name>.lock` lists, and nothing else.

    Raises:
        Missing: what it lists could not be fetched.
    """
    lock = LOCKS / f"{name}.lock"
    digest = sha256(lock.read_bytes()).hexdigest()[:12]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
        checked = ["install", "--quiet", "--require-hashes", "--only-binary", ":all:"]
        ended = subprocess.run(
            [*pip, *checked, "-r", str(lock)], capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            raise Missing(f"pip could not fetch {lock.name}:\n{ended.stderr[-2000:]}")

    return cached(f"python{version}-{name}-{digest}", make) / "bin" / "python"


def have_pythons() -> None:
    """Have every environment that there is a lock of.

    Raises:
        Missing: what one of them lists could not be fetched.
    """
    for lock in sorted(LOCKS.glob("*.lock")):
        have_python(lock.stem)


NODE = Path(__file__).with_name("node")


def have_node() -> Path:
    """The folder of packages that `node/package-lock.json` lists.

    Raises:
        Missing: Node is not there, or they could not be fetched.
    """
    digest = sha256((NODE / "package-lock.json").read_bytes()).hexdigest()[:12]

    def make(folder: Path) -> None:
        npm = have_program("npm", "npm")
        for name in ("package.json", "package-lock.json"):
            (folder / name).write_bytes((NODE / name).read_bytes())
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
        ended = subprocess.run(
            [str(npm), "ci", *quiet], cwd=folder, capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            raise Missing(f"npm could not fetch its packages:\n{ended.stderr[-2000:]}")

    return cached(f"node-{digest}", make) / "node_modules"


JAVA_SDK = "2.51.3"
PROGRAMS = [Path(__file__).with_name("java") / name for name in ("Client.java", "Round.java")]


def have_java() -> str:
    """The class path of the AWS SDK for Java and of the programs that use it.

    Raises:
        Missing: the SDK could not be fetched, or a program not compiled.
    """
    library = jars(
        f"aws-sdk-java-{JAVA_SDK}",
        [f"software.amazon.awssdk:{name}:{JAVA_SDK}" for name in ("sqs", "sns")],
    )
    mark = sha256(b"".join(one.read_bytes() for one in PROGRAMS)).hexdigest()[:12]

    def make(folder: Path) -> None:
        compiler = find_java().home / "bin" / "javac"
        if not compiler.is_file():
            compiler = have_program("javac", "openjdk-17-jdk-headless")
        options = ["-encoding", "UTF-8", "-cp", f"{library}/*", "-d", str(folder)]
        ended = subprocess.run(
            [str(compiler), *options, *map(str, PROGRAMS)],
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode != 0:
            raise Missing(f"the programs in Java were not compiled:\n{ended.stderr}")

    return f"{cached(f'aws-sdk-java-{JAVA_SDK}-round-{mark}', make)}:{library}/*"
