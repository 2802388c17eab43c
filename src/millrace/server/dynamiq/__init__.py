"""Dynamiq's routes, over queues with partitions and topics of the space `default`."""
