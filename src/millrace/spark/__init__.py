"""The Spark side: sources, sinks and what they need to run."""

from millrace.spark.quiet import hush

# Spark runs us in processes that it has made for other modules.
hush()
