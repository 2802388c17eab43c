"""Publishing: validation, producers, deduplication, stages and shard routing."""
