"""A server of Spark Connect, with a local Spark behind it."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.services.service import Service, free_port
from tests.services.spark_home import spark_environment, spark_home

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of HTTP/2 begins: with settings, which the server answers with its own."""

SETTINGS = 4


class Connect(Service):
    """Clients bring no Java, and see the server's files and packages."""

    name = "spark-connect"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()

    @property
    def url(self) -> str:
        """What a client is given as its remote."""
        return f"sc://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self.port,
            "spark.local.dir": self.folder / "local",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.warehouse.dir": self.folder / "warehouse",
            "spark.ui.enabled": "false",
        }
        said = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        program = spark_home() / "bin" / "spark-submit"
        return [program, "--class", SERVER, "--master", "local[2]", *said]

    def environment(self) -> Mapping[str, str]:
        # It counts as a daemon, whose memory is not a setting of the driver.
        return {**spark_environment(), "SPARK_DAEMON_MEMORY": "1g"}

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
                connection.sendall(GREETING)
                return connection.recv(9)[3:4] == bytes((SETTINGS,))
        except OSError:
            return False
