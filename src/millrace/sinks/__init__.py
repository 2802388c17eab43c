"""Sinks: stores to which rows of queues are written exactly once."""
