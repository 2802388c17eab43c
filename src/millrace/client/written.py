"""Receipts that were written here lately: whoever comes with one of these texts is known by it."""

from __future__ import annotations

from collections.abc import Sequence

from millrace import limits
from millrace.core.model import History, LeaseId, Seq, ShardId
from millrace.core.receipt import Proved, Receipt, write_all


class Written:
    """Receipts that were written and did not come back; of too many, none is remembered."""

    def __init__(self) -> None:
        self._receipts: dict[str, Receipt] = {}

    def write(
        self, shard: ShardId, lease: LeaseId, proved: Proved, seqs: Sequence[int]
    ) -> list[str]:
        """The receipts of messages of a lease call as texts, which are remembered."""
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
        """The receipt that is this text, once; None: it has to be read."""
        return self._receipts.pop(text, None) if type(text) is str else None
