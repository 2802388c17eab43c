"""CassieQ's routes, over the same queues."""
