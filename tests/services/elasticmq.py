"""ElasticMQ: a server of SQS from its published jars, in memory, or with its own H2 database."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from millrace.spark.java import find_java
from tests.services.maven import jars
from tests.services.service import Service, free_port

VERSION = "1.7.1"

SETTINGS = """\
include classpath("application.conf")
node-address {{ host = "127.0.0.1", port = {port} }}
rest-sqs {{ bind-hostname = "127.0.0.1", bind-port = {port} }}
aws {{ region = "us-east-1" }}
"""

KEPT = """\
queues-storage {{ enabled = true, path = "{folder}/queues.conf" }}
messages-storage {{ enabled = true, uri = "jdbc:h2:{folder}/messages" }}
"""


def have_elasticmq() -> Path:
    """The folder of its jars."""
    return jars(f"elasticmq-{VERSION}", (f"org.elasticmq:elasticmq-server_2.13:{VERSION}",))


class ElasticMq(Service):
    """A server that checks no signatures; what it keeps on disk it does not sync."""

    name = "elasticmq"

    def __init__(self, *, keeps: bool = False) -> None:
        """`keeps`: it writes messages into its H2 database."""
        self._library = have_elasticmq()
        self._java = find_java().executable
        super().__init__()
        self.port = free_port()
        text = SETTINGS + (KEPT if keeps else "")
        self._settings = self.folder / "settings.conf"
        self._settings.write_text(text.format(port=self.port, folder=self.folder))

    def command(self) -> Sequence[str | Path]:
        settings = f"-Dconfig.file={self._settings}"
        return [self._java, settings, "-cp", f"{self._library}/*", "org.elasticmq.server.Main"]

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return True
        except OSError:
            return False
