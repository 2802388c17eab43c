"""One tenant sends the worst inputs; others must not notice."""
