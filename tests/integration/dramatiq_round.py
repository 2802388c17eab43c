"""A worker of dramatiq: `python dramatiq_round.py URL KEY SECRET`; prints what was done."""

from __future__ import annotations

import json
import sys
import threading

import dramatiq  # type: ignore[import-not-found]
from dramatiq_sqs import SQSBroker  # type: ignore[import-not-found]


def main(url: str, key: str, secret: str) -> None:
    """Send, fail once, send later; end when all is done."""
    broker = SQSBroker(
        namespace="dramatiq",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        middleware=[dramatiq.middleware.Retries(min_backoff=100, max_backoff=200)],
    )
    dramatiq.set_broker(broker)
    done: list[int] = []
    tries: list[int] = []
    is_over = threading.Event()

    @dramatiq.actor(queue_name="default", max_retries=3)  # type: ignore[untyped-decorator]
    def work(number: int) -> None:
        if number == 3 and not tries:
            tries.append(number)
            raise ValueError("once")
        done.append(number)
        if len(done) == 10:
            is_over.set()

    for number in range(9):
        work.send(number)
    work.send_with_options(args=(9,), delay=1000)
    worker = dramatiq.Worker(broker, worker_threads=2)
    worker.start()
    assert is_over.wait(120), done
    worker.stop()
    print(json.dumps({"done": sorted(done), "tries": tries}))


if __name__ == "__main__":
    main(*sys.argv[1:])
