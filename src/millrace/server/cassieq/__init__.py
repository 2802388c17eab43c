"""CassieQ's API: accounts, queues and messages, over the same engine."""
