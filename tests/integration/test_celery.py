"""Celery with a real worker, kombu alone, over `sqs://`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from kombu.connection import Connection

from tests.server.aws.site import AwsSite
from tests.services.service import wait_until
from tests.support.timeouts import scaled

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "celery"


def broker(site: AwsSite) -> str:
    """The address that Celery is told."""
    secret = quote(site.root.secret, safe="")
    return f"sqs://{site.root.id}:{secret}@127.0.0.1:{site.process.port}"


def environment(site: AwsSite, folder: Path, **more: str) -> dict[str, str]:
    """What workers and programs find."""
    return {**os.environ, "BROKER": broker(site), "RESULTS": str(folder / "results"), **more}


@contextmanager
def worker(site: AwsSite, folder: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of two processes."""
    words = ["--app", "tasks", "worker", "--concurrency", "2", "--loglevel", "info"]
    with (folder / f"worker-{time.monotonic_ns()}").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", *words, "--without-gossip", "--without-mingle"],
            cwd=EXAMPLE,
            env=environment(site, folder, PYTHONDONTWRITEBYTECODE="1", **more),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(scaled(30))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def send(site: AwsSite, folder: Path, *calls: str, **more: str) -> None:
    """Send tasks, as a program of its own does."""
    code = "; ".join(["import tasks", *calls])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=EXAMPLE,
        env=environment(site, folder, **more),
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(60),
    )
    assert ended.returncode == 0, ended.stderr


def said(folder: Path) -> str:
    """All that workers have logged."""
    return "".join(file.read_text() for file in sorted(folder.glob("worker-*")))


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def counts(sqs: SQSClient, name: str) -> tuple[int, int]:
    """How many wait, and how many are with workers."""
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return (
        int(found["ApproximateNumberOfMessages"]),
        int(found["ApproximateNumberOfMessagesNotVisible"]),
    )


def within(seconds: float, holds: Callable[[], bool], folder: Path) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    wait_until(lambda: holds() or time.monotonic() > deadline)
    assert holds(), said(folder)


def test_the_example_runs(site: AwsSite, tmp_path: Path) -> None:
    with worker(site, tmp_path):
        done = subprocess.run(
            [sys.executable, "run.py"],
            cwd=EXAMPLE,
            env=environment(site, tmp_path, PYTHONDONTWRITEBYTECODE="1"),
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(200),
        )
        assert done.returncode == 0, done.stderr + said(tmp_path)
    assert done.stdout.splitlines() == [
        "sums: [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]",
        "tried 3 times",
        "in time",
        "later",
    ]
    within(30, lambda: counts(site.aws().sqs, "celery") == (0, 0), tmp_path)


def test_a_worker_takes_no_more_than_its_prefetch(site: AwsSite, tmp_path: Path) -> None:
    results, sqs = tmp_path / "results", site.aws().sqs
    calls = ["[tasks.wait_for.delay('gate') for _ in range(6)]"]
    with worker(site, tmp_path, QUEUE="prefetch"):
        send(site, tmp_path, *calls, QUEUE="prefetch")
        within(60, lambda: len(lines_of(results / "gate-begun")) == 2, tmp_path)
        assert counts(sqs, "prefetch") == (4, 2)
        (results / "gate").touch()
        within(60, lambda: counts(sqs, "prefetch") == (0, 0), tmp_path)
    assert len(lines_of(results / "gate-begun")) == 6


def test_a_task_that_takes_longer_than_the_visibility_is_run_again(
    site: AwsSite, tmp_path: Path
) -> None:
    more = {"QUEUE": "short", "VISIBILITY": "2"}
    results, sqs = tmp_path / "results", site.aws().sqs
    with worker(site, tmp_path, **more):
        send(site, tmp_path, "tasks.dawdle.delay('long')", **more)
        within(60, lambda: len(lines_of(results / "long")) == 2, tmp_path)
        within(60, lambda: counts(sqs, "short") == (0, 0), tmp_path)
        # The first is late: what it acknowledges is done already.
        within(60, lambda: said(tmp_path).count("succeeded") == 2, tmp_path)
    assert "Traceback" not in said(tmp_path)
    assert len(lines_of(results / "long")) == 2


@pytest.mark.long
def test_what_a_killed_worker_had_is_done_by_another(site: AwsSite, tmp_path: Path) -> None:
    more = {"QUEUE": "killed", "VISIBILITY": "5"}
    results, sqs = tmp_path / "results", site.aws().sqs
    with worker(site, tmp_path, **more) as process:
        send(site, tmp_path, "tasks.wait_for.delay('door')", **more)
        within(60, lambda: len(lines_of(results / "door-begun")) == 1, tmp_path)
        process.kill()
        process.wait()
    (results / "door").touch()
    with worker(site, tmp_path, **more):
        within(60, lambda: len(lines_of(results / "door-begun")) == 2, tmp_path)
        within(60, lambda: counts(sqs, "killed") == (0, 0), tmp_path)


@pytest.mark.parametrize("name", ["plain", "order.fifo"])
def test_kombu_alone(site: AwsSite, name: str) -> None:
    options = {"is_secure": False, "region": "us-east-1", "wait_time_seconds": 1}
    made = Connection(broker(site), transport_options=options)  # type: ignore[no-untyped-call]
    with made as connection:
        queue = connection.SimpleQueue(f"kombu-{name}")
        sent = [{"number": number, "text": "é<&>"} for number in range(5)]
        for one in sent:
            queue.put(one)
        found = []
        for _ in sent:
            message = queue.get(timeout=scaled(30))
            found.append(message.payload)
            message.ack()
        assert sorted(found, key=lambda one: int(one["number"])) == sent
        # What is put back comes again.
        queue.put("again")
        queue.get(timeout=scaled(30)).requeue()
        message = queue.get(timeout=scaled(30))
        assert message.payload == "again"
        message.ack()
        queue.put("thrown away")
        assert queue.qsize() == 1
        queue.clear()
        assert queue.qsize() == 0
        queue.close()
