"""A process that runs pipelines until it is killed: `python -m tests.pipeline.crash.driver`.

It says a line for every span, so that whoever kills it knows how far it is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread

from millrace import sync
from millrace.pipeline import Setting, Where, read_pipeline, run_pipeline


def main() -> None:
    """The folder, and the declarations."""
    data, *files = sys.argv[1:]
    m = sync.open(data)
    setting = Setting(millrace=m, where=Where(path=data), environ=dict(os.environ))
    threads = [Thread(target=_run, args=(Path(file), setting)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run(file: Path, setting: Setting) -> None:
    run_pipeline(
        read_pipeline(file, os.environ), setting, tell=lambda _: print(file.stem, flush=True)
    )


if __name__ == "__main__":
    main()
