"""Spark's daemon of Python workers, which are quiet: `spark.python.daemon.module` names it."""

from __future__ import annotations

from pyspark import daemon

from millrace.spark.quiet import quietly


def main() -> None:
    """Serve workers until Java hangs up."""
    vars(daemon)["worker"] = quietly(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
