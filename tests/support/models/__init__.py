"""Naive models: what a queue means, in lists and dictionaries."""
