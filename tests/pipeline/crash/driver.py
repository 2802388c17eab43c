"""A process that runs pipelines until it is killed: `python -m tests.pipeline.crash.driver`.

It says a line for every span, so that whoever kills it knows how far it is, and one for a pipeline
that another run has taken over.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from threading import Thread

from millrace import limits, sync
from millrace.errors import Stale
from millrace.pipeline import Setting, Where, read_pipeline, run_pipeline

STALE = "stale"


def main() -> None:
    """Where the queues are, and the declarations."""
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--executors", action="store_true", help="have Spark read and stage")
    told = parser.parse_args()
    if told.executors:
        limits.PIPELINE_SMALL_ROWS = 0
    if told.place.startswith("http"):
        token = os.environ["MILLRACE_TOKEN"]
        m = sync.connect(told.place, token=token)
        where = Where(url=told.place, token=token)
    else:
        m, where = sync.open(told.place), Where(path=told.place)
    setting = Setting(millrace=m, where=where, environ=dict(os.environ))
    threads = [Thread(target=_run, args=(file, setting, told.once)) for file in told.files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run(file: Path, setting: Setting, once: bool) -> None:  # noqa: FBT001
    try:
        pipeline = read_pipeline(file, os.environ)
        run_pipeline(pipeline, setting, once=once, tell=lambda _: _say(file.stem))
    except Stale:
        _say(f"{STALE} {file.stem}")
    except BaseException:
        # One that fails ends all: whoever waits for a line is not to wait for ever.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
        raise


def _say(line: str) -> None:
    # At once: several threads do it.
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
