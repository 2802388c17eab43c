"""Lists, a page at a time."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Sequence

from millrace import limits
from millrace.server.sns.faults import invalid


def page_of(names: Sequence[str], token: str) -> tuple[list[str], str | None]:
    """The names after the one that a token stands for, in order, and the token of what comes then.

    Raises:
        Fault: it is no token.
    """
    ordered = sorted(names)
    begin = bisect_right(ordered, _last(token)) if token else 0
    some = ordered[begin : begin + limits.SNS_LIST_MAX]
    if begin + len(some) >= len(ordered):
        return some, None
    return some, urlsafe_b64encode(some[-1].encode()).decode()


def _last(token: str) -> str:
    try:
        return b64decode(token.encode("ascii"), b"-_", validate=True).decode()
    except ValueError as error:
        raise invalid("NextToken") from error
