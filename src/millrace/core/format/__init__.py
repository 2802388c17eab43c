"""Encodings: blocks, entries, receipts, message ids, sets of seqs and the frozen hash."""
