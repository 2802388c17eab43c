"""Ordering: message groups, partitions, priorities, delays and rate limits."""
