"""Spark's daemon of Python workers, without harmless tracebacks; set by
`spark.python.daemon.module`.
"""

from __future__ import annotations

from pyspark import daemon

from millrace.spark.worker_logging import quietly


def main() -> None:
    """Serve workers until Java closes the connection."""
    vars(daemon)["worker"] = quietly(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
