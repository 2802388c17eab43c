"""`millrace job redrive` with small lots and short leases, so that a kill hits any of its steps."""

from __future__ import annotations

from millrace import limits
from millrace.cli import main

LOT = 40

if __name__ == "__main__":
    limits.REDRIVE_JOB_MESSAGES_MAX = LOT
    limits.REDRIVE_JOB_LEASE_SECONDS = 10.0
    main()
