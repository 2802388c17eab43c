"""Dead letters, and their way back."""

from __future__ import annotations

BURY_MESSAGES_MAX = 500
"""Dead letters that are moved at once: some 20 ms."""

BURY_BYTES_MAX = 1024 * 1024
"""Bytes of dead letters that are moved at once; a larger one goes alone."""

REDRIVE_MESSAGES_MAX = 500
"""Dead letters that a redrive leases at a time, and moves in one transaction or a few."""

REDRIVE_LEASE_MS = 60_000
"""For how long: they are extended while it goes on, and come back so long after a crash."""

REDRIVE_RATE_MAX = 1_000_000
"""Messages per second; beyond it a rate says nothing."""
