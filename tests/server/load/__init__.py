"""More load than a server can bear, and load for a long time."""
