"""Spark integration: data source, data sink, and sessions."""

from millrace.spark.worker_logging import hush

# Spark imports this package in workers that it has forked for other modules.
hush()
