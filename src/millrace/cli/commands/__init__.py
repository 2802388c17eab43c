"""The verbs that work on queues through the public API, one module each."""
