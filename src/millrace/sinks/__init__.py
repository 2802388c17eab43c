"""Places that the rows of queues are carried to, exactly once."""
