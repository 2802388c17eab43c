"""Pagination of SNS lists."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Sequence

from millrace import limits
from millrace.server.sns.faults import invalid


def page_of(names: Sequence[str], token: str) -> tuple[list[str], str | None]:
    """Return a page of sorted names after the token's, and the token of the next page if there is
    one.

    Raises:
        Fault: the token is invalid.
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
