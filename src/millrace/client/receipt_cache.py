"""A cache of recently written receipts, so that they need not be parsed and verified."""

from __future__ import annotations

from collections.abc import Sequence

from millrace import limits
from millrace.core.format.receipt import Proved, Receipt, write_all
from millrace.core.model import History, LeaseId, Seq, ShardId


class ReceiptCache:
    """Receipts that were written and not used yet; cleared when there are too many."""

    def __init__(self) -> None:
        self._receipts: dict[str, Receipt] = {}

    def write(
        self, shard: ShardId, lease: LeaseId, proved: Proved, seqs: Sequence[int]
    ) -> list[str]:
        """Write the receipts of messages of a lease call as texts, and remember them."""
        history = History(proved.history)
        texts = write_all(shard, history, lease, seqs, proved.proof)
        receipts = self._receipts
        if len(receipts) + len(texts) > limits.RECEIPTS_WRITTEN_MAX:
            receipts.clear()
        if len(texts) <= limits.RECEIPTS_WRITTEN_MAX:
            for text, seq in zip(texts, seqs, strict=True):
                receipts[text] = Receipt(shard, history, Seq(seq), lease)
        return texts

    def take(self, text: str) -> Receipt | None:
        """Return and forget the receipt of a text; None if it has to be parsed."""
        return self._receipts.pop(text, None) if type(text) is str else None
