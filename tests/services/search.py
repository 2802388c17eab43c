"""OpenSearch: one node from its published jars, which have no main class, and our launcher."""

from __future__ import annotations

import hashlib
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from millrace.spark.java import find_java
from tests.services.cache import cached
from tests.services.maven import jars
from tests.services.missing import Missing
from tests.services.packages import have_program
from tests.services.service import Service, free_port

VERSION = "2.19.6"

JARS = (
    f"org.opensearch:opensearch:{VERSION}",
    f"org.opensearch.plugin:transport-netty4-client:{VERSION}",
    # As new as the log4j-api that the others ask for.
    "org.apache.logging.log4j:log4j-core:2.25.4",
)

LAUNCHER = Path(__file__).with_name("java") / "SearchNode.java"


def have_search() -> str:
    """The class path of the node and its launcher."""
    library = jars(f"opensearch-{VERSION}", JARS)
    mark = hashlib.sha256(LAUNCHER.read_bytes()).hexdigest()[:12]

    def compile_launcher(folder: Path) -> None:
        compiler = find_java().home / "bin" / "javac"
        if not compiler.is_file():
            compiler = have_program("javac", "openjdk-17-jdk-headless")
        command = [str(compiler), "-cp", f"{library}/*", "-d", str(folder), str(LAUNCHER)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise Missing(f"{LAUNCHER.name} was not compiled:\n{ended.stderr}")

    return f"{cached(f'opensearch-{VERSION}-launcher-{mark}', compile_launcher)}:{library}/*"


class Search(Service):
    """A node with no user and no password."""

    name = "search"

    def __init__(self) -> None:
        self._class_path = have_search()
        self._java = find_java().executable
        super().__init__()
        self.port = free_port()
        self._transport_port = free_port()

    @property
    def url(self) -> str:
        """Where its API is."""
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        options = ("-Xms256m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        place = (self.folder, str(self.port), str(self._transport_port))
        return [self._java, *options, "-cp", self._class_path, "SearchNode", *place]

    def is_ready(self) -> bool:
        # After a kill the shards of what was written have to be read again first.
        path = "/_cluster/health?wait_for_no_initializing_shards=true&timeout=30s"
        try:
            with urllib.request.urlopen(self.url + path, timeout=40) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
