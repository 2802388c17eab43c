"""PostgreSQL, of the version that the system has."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from tests.services.packages import have_program
from tests.services.service import Service, free_port

SETTINGS = (
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    # Processes are killed here, not machines: what was written to files is there.
    "fsync=off",
    "full_page_writes=off",
    "shared_buffers=32MB",
    "max_connections=50",
    "max_prepared_transactions=10",
)


def have_postgres() -> Path:
    """The server's program, beside which the others are."""
    return have_program("postgres", "postgresql", "usr/lib/postgresql/*/bin").resolve()


class Postgres(Service):
    """A server in whose databases everybody on this machine may do everything."""

    name = "postgres"

    def __init__(self) -> None:
        self._programs = have_postgres().parent
        super().__init__()
        self.port = free_port()
        self._numbers = count(1)
        self._data = self.folder / "data"
        self._data.mkdir(mode=0o700)
        if os.getuid() == 0:
            shutil.chown(self._data, *self._as_user())

    @property
    def dsn(self) -> str:
        """How to connect to the database that is there from the start."""
        return self._dsn("postgres")

    def new_database(self) -> str:
        """Make a database that nobody has used, and say how to connect to it."""
        database = f"test{next(self._numbers)}"
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "millrace", database)
        return self._dsn(database)

    def start(self) -> None:
        """Start it; the first time its data are made before."""
        if not (self._data / "PG_VERSION").exists():
            made = ("--no-sync", "--no-locale", "-E", "UTF8", "-A", "trust", "-U", "millrace")
            self._run("initdb", "-D", str(self._data), *made)
        super().start()

    def command(self) -> Sequence[str | Path]:
        settings = [part for setting in SETTINGS for part in ("-c", setting)]
        server = self._programs / "postgres"
        return [*self._prefix(), server, "-D", self._data, "-p", str(self.port), *settings]

    def is_ready(self) -> bool:
        program = str(self._programs / "pg_isready")
        asked = [program, "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False).returncode == 0

    def _dsn(self, database: str) -> str:
        return f"postgresql://millrace@127.0.0.1:{self.port}/{database}"

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self._prefix(), self._programs / program, *arguments],
            cwd="/",
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def _prefix(self) -> list[str]:
        """It refuses to run as root: then it runs as the user that its package has made."""
        if os.getuid() != 0:
            return []
        user, group = self._as_user()
        return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--"]

    @staticmethod
    def _as_user() -> tuple[str, str]:
        return "postgres", "postgres"
