"""A standalone cluster of Spark: a real master and its workers, each a process."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.services.leash import family
from tests.services.service import Service, free_port
from tests.services.spark_home import spark_environment, spark_home

EXECUTOR = b"CoarseGrainedExecutorBackend"


class Master(Service):
    """Who gives out what workers have."""

    name = "spark-master"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self._page_port = free_port()

    @property
    def url(self) -> str:
        """What a driver is given as its master."""
        return f"spark://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        place = ("--host", "127.0.0.1", "--port", str(self.port))
        program = (spark_home() / "bin" / "spark-class", "org.apache.spark.deploy.master.Master")
        return [*program, *place, "--webui-port", str(self._page_port)]

    def environment(self) -> Mapping[str, str]:
        return spark_environment()

    def is_ready(self) -> bool:
        return self._state() is not None

    def ports_of_workers(self) -> set[int]:
        """Where workers are that it believes to be alive."""
        workers = (self._state() or {}).get("workers", [])
        assert isinstance(workers, list)
        return {worker["port"] for worker in workers if worker["state"] == "ALIVE"}

    def _state(self) -> dict[str, object] | None:
        try:
            page = f"http://127.0.0.1:{self._page_port}/json/"
            with urllib.request.urlopen(page, timeout=10) as answer:
                found: dict[str, object] = json.load(answer)
                return found
        except OSError:
            return None


class Worker(Service):
    """Some cores and a gigabyte, for executors."""

    name = "spark-worker"

    def __init__(self, master: Master, cores: int) -> None:
        super().__init__()
        self.port = free_port()
        self._master = master
        self._cores = cores

    def command(self) -> Sequence[str | Path]:
        program = (spark_home() / "bin" / "spark-class", "org.apache.spark.deploy.worker.Worker")
        place = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        size = ("--cores", str(self._cores), "--memory", "1g", "--work-dir", self.folder / "work")
        return [*program, *place, *size, self._master.url]

    def environment(self) -> Mapping[str, str]:
        return spark_environment()

    def is_ready(self) -> bool:
        return self.port in self._master.ports_of_workers()

    def executors(self) -> list[int]:
        """The pids of the executors that it runs now."""
        found: list[int] = []
        for pid in family(self.pid):
            try:
                if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return found


class Cluster:
    """A master and two workers, each of which may be killed and started again."""

    def __init__(self, cores: int = 1) -> None:
        """Each worker has so many cores."""
        self.master = Master()
        self.workers = (Worker(self.master, cores), Worker(self.master, cores))
        self._running = ExitStack()

    @property
    def url(self) -> str:
        """What a driver is given as its master."""
        return self.master.url

    def executors(self) -> list[int]:
        """The pids of all executors."""
        return [pid for worker in self.workers for pid in worker.executors()]

    def revive(self) -> None:
        """Start what is down."""
        for service in (self.master, *self.workers):
            service.revive()

    def __enter__(self) -> Self:
        with ExitStack() as begun:
            for service in (self.master, *self.workers):
                begun.callback(service.close)
            self.master.start()
            for worker in self.workers:
                worker.begin()
            for worker in self.workers:
                worker.await_ready()
            self._running = begun.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.close()
