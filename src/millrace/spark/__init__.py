"""The Spark side: sources, sinks and what they need to run."""
