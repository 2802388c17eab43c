"""AWS account numbers that identify users to clients of SQS and SNS."""

from __future__ import annotations

import re

_ACCOUNT = re.compile(r"[0-9]{12}")


def is_account(text: str) -> bool:
    """Return whether a text is the number of an account: twelve digits."""
    return _ACCOUNT.fullmatch(text) is not None
