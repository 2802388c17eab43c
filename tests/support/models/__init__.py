"""Naive models of queues, in lists and dictionaries."""
