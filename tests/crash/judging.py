"""Histories made by hand, and what the ledger finds in them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.crash.events import AnyEvent
from tests.crash.ledger import Ledger
from tests.crash.scene import QUEUES

CRASH = "crash"
"""The process ends here, and another one opens the folder."""

History = Sequence[AnyEvent | str]


def judge(history: History) -> Ledger:
    """The ledger that has heard all of it."""
    ledger = Ledger(QUEUES)
    for event in history:
        if isinstance(event, str):
            ledger.end_life(seed=0)
        else:
            ledger.hear(event)
    return ledger
