"""Workers that say nothing of a reader who has had enough."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import IO

import pytest

from millrace.spark.session import DAEMON, settings_of
from millrace.spark.worker_logging import hush

MODULE = "millrace.spark.daemon"
SECONDS = 60.0


def read_int(file: IO[bytes]) -> int:
    [found] = struct.unpack("!i", file.read(4))
    return int(found)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose path is short enough for a socket."""
    with TemporaryDirectory(prefix="millrace-") as found:
        yield Path(found)


@pytest.mark.process
def test_a_worker_on_which_java_hangs_up_ends_without_a_word(folder: Path) -> None:
    environ = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "true",
        "SPARK_REUSE_WORKER": "1",
    }
    words = [sys.executable, "-m", MODULE, "pyspark.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=environ) as daemon:
        assert daemon.stdout is not None
        path = daemon.stdout.read(read_int(daemon.stdout)).decode()
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(SECONDS)
            asking.connect(path)
            with asking.makefile("rb") as answers:
                worker = os.pidfd_open(read_int(answers))
        try:
            assert select.select([worker], [], [], SECONDS)[0], "the worker has not ended"
        finally:
            os.close(worker)
        _, said = daemon.communicate(timeout=SECONDS)
    assert said.decode() == ""
    assert os.listdir(folder) == []


def test_only_workers_of_sparks_own_daemon_are_changed() -> None:
    def work(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001
        return 7

    found: dict[str, object] = {}
    for name in ("pyspark.daemon", MODULE, ""):
        main = ModuleType("__main__")
        main.__spec__ = ModuleSpec(name, None) if name else None
        vars(main)["worker"] = work
        hush(main)
        found[name] = vars(main)["worker"]
    assert found[MODULE] is found[""] is work
    assert found["pyspark.daemon"] is not work


def test_the_daemon_is_set_where_it_is_surely_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert settings_of({})[DAEMON] == MODULE
    assert settings_of({"spark.master": "local[2]"})[DAEMON] == MODULE
    assert settings_of({DAEMON: "mine"})[DAEMON] == "mine"
    for conf in ({"spark.master": "spark://there:7077"}, {"spark.remote": "sc://there"}):
        assert DAEMON not in settings_of(conf)
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")
    assert DAEMON not in settings_of({})
