"""Dynamiq's API, over topics and partitioned queues of the space `default`."""
