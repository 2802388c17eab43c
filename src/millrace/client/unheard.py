"""What becomes of an answer whose caller was interrupted before it had it in its hands."""

from __future__ import annotations

from millrace.client.cursor import Snapshot, put_back
from millrace.client.lease import Lease
from millrace.client.work import give_back


def take_back(answer: object) -> None:
    """Give back what was handed out: leases, and the pin of a snapshot; on the engine's thread."""
    if isinstance(answer, Lease):
        give_back([answer])
    elif isinstance(answer, list):
        give_back([item for item in answer if isinstance(item, Lease)])
    elif isinstance(answer, Snapshot):
        put_back(answer)
