"""Crashes of the real engine on the real disk, judged by a ledger outside it."""
