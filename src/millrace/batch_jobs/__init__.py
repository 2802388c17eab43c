"""Ready jobs on Spark: load, export, audit, report, redrive."""
