"""Crashes of the real server beside clients that live on, judged by the same ledger."""
