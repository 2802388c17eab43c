"""Celery over a server that speaks SQS: nothing differs from SQS but where it is.

    millrace serve &
    millrace user add shop --rule 'allow publish,work,manage default/*'
    millrace key new shop
    export BROKER=sqs://KEY:SECRET@127.0.0.1:7070 RESULTS=results
    celery --app tasks worker --concurrency 2 &
    python run.py

Quote the secret where it has characters that an address cannot have.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

RESULTS = Path(os.environ.get("RESULTS", "results")).absolute()
RESULTS.mkdir(exist_ok=True)

app = Celery("tasks", broker=os.environ.get("BROKER"), backend=f"file://{RESULTS}")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        # HTTP, not HTTPS: the server of the example is on this machine.
        "is_secure": False,
        "region": "us-east-1",
        # A message that is not acknowledged by then is handed to another worker: longer than any
        # task takes, and any countdown.
        "visibility_timeout": int(os.environ.get("VISIBILITY", "3600")),
        "wait_time_seconds": 20,
    },
    # Acknowledged when they are done, not when they begin: a worker that is killed loses nothing.
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    task_default_queue=os.environ.get("QUEUE", "celery"),
)


@app.task
def add(left: int, right: int) -> int:
    """Return the sum of two numbers."""
    return left + right


@app.task(bind=True, max_retries=3)
def fetch(self, failures: int) -> int:  # type: ignore[no-untyped-def]
    """Fail this many times, with retries after a second; return the number of retries, plus one."""
    if self.request.retries < failures:
        raise self.retry(countdown=1)
    return int(self.request.retries) + 1


@app.task
def tell_time() -> float:
    """Return the time at which the task runs."""
    return time.time()


@app.task
def dawdle(name: str) -> None:
    """Append a line to a file; the first task waits until another one has left one."""
    file = RESULTS / name
    is_first = not file.exists()
    _note(file)
    while is_first and len(file.read_text().splitlines()) < 2:
        time.sleep(0.05)


@app.task
def wait_for(name: str) -> None:
    """Append a line to a file, and wait until the file of this name exists."""
    _note(RESULTS / f"{name}-begun")
    while not (RESULTS / name).exists():
        time.sleep(0.05)


def _note(file: Path) -> None:
    with file.open("a") as found:
        found.write(f"{time.time()}\n")
