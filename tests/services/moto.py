"""moto's server, in an environment of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.services.cache import cached
from tests.services.missing import Missing
from tests.services.service import Service, free_port

VERSION = "5.2.5"


def have_moto() -> Path:
    """The program of the server."""

    def install(folder: Path) -> None:
        wanted = f"moto[server,sqs]=={VERSION}"
        venv.create(folder, with_pip=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", wanted]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise Missing(f"{wanted} could not be installed:\n{ended.stderr[-2000:]}")

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cached(f"moto-{VERSION}-python{version}", install) / "bin" / "python"


class Moto(Service):
    """A server of many services, SQS among them, in memory."""

    name = "moto"

    def __init__(self) -> None:
        self._python = have_moto()
        super().__init__()
        self.port = free_port()

    def command(self) -> Sequence[str | Path]:
        place = ("-H", "127.0.0.1", "-p", str(self.port))
        # Its own program names the folder where it was installed, which has another name by now.
        return [self._python, "-m", "moto.server", *place]

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return True
        except OSError:
            return False
