"""In-memory state of a shard: the view, the draft of the next batch, and the fold of past ones."""
