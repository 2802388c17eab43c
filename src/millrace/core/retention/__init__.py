"""TTL, log retention and maximum lengths."""
