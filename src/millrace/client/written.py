"""Receipts that were written here lately: whoever comes with one of these texts is known by it."""

from __future__ import annotations

from millrace import limits
from millrace.core.receipt import Proved, Receipt, write


class Written:
    """Receipts that were written and did not come back; of too many, none is remembered."""

    def __init__(self) -> None:
        self._receipts: dict[str, Receipt] = {}

    def write(self, receipt: Receipt, proved: Proved) -> str:
        """The receipt as text, which is remembered."""
        text = write(receipt, proved.proof)
        if len(self._receipts) >= limits.RECEIPTS_WRITTEN_MAX:
            self._receipts.clear()
        self._receipts[text] = receipt
        return text

    def take(self, text: str) -> Receipt | None:
        """The receipt that is this text, once; None: it has to be read."""
        return self._receipts.pop(text, None) if type(text) is str else None
