"""Tasks are sent, tried again, run later and done: `python run.py`, with a worker at work.

See `tasks.py` for how server and worker are started.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from celery import group
from tasks import add, fetch, tell_time  # type: ignore[import-not-found]


def main() -> None:
    """Send tasks, and wait for their results."""
    sums = group(add.s(number, number) for number in range(10))()
    print("sums:", sums.get(timeout=60))
    print("tried", fetch.delay(2).get(timeout=60), "times")
    due = datetime.now(UTC) + timedelta(seconds=2)
    began = tell_time.apply_async(eta=due).get(timeout=60)
    print("in time" if due.timestamp() <= began < due.timestamp() + 20 else "late")
    before = time.time()
    began = tell_time.apply_async(countdown=1).get(timeout=60)
    print("later" if began - before >= 1 else "at once")


if __name__ == "__main__":
    main()
