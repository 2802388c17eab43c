"""The calls of an engine as bytes, between processes: no I/O, and nothing is believed."""
