"""Millrace: a durable message queue for teams that work in Python and Spark."""
