"""Batch jobs over whole queues on Spark: load, export, audit, report, redrive."""
