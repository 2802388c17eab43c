"""The receipt cache recognizes recent receipts once, and is bounded."""

from __future__ import annotations

from typing import cast

from millrace import limits
from millrace.client.receipt_cache import ReceiptCache
from millrace.core.format.receipt import Proved, Receipt, read
from millrace.core.model import History, LeaseId, Seq, ShardId

PROVED = Proved.of(12, b"h" * 16, b"p" * 12)


def receipt(seq: int) -> Receipt:
    return Receipt(ShardId(7), History(PROVED.history), Seq(seq), LeaseId(PROVED))


def write(written: ReceiptCache, *seqs: int) -> list[str]:
    return written.write(ShardId(7), LeaseId(PROVED), PROVED, seqs)


def test_a_text_is_known_once() -> None:
    written = ReceiptCache()
    [text, other] = write(written, 350, 351)
    assert read(text) == (receipt(350), PROVED.proof)
    assert read(other) == (receipt(351), PROVED.proof)
    known = written.take(text)
    assert known == receipt(350)
    assert cast("Proved", known.lease).proof == PROVED.proof
    assert written.take(text) is None
    assert written.take(other) == receipt(351)


def test_what_is_no_text_is_not_known() -> None:
    class Text(str):
        """A text that may say of itself what it likes."""

        __slots__ = ()

    written = ReceiptCache()
    [text] = write(written, 350)
    assert written.take(Text(text)) is None
    assert written.take(cast("str", text.encode())) is None
    assert written.take(text) == receipt(350)


def test_of_too_many_none_is_remembered() -> None:
    written = ReceiptCache()
    most = limits.RECEIPTS_WRITTEN_MAX
    texts = [*write(written, *range(most - 1)), *write(written, most - 1), *write(written, most)]
    assert [written.take(text) for text in texts] == [*[None] * most, receipt(most)]


def test_of_a_call_with_too_many_none_is_remembered() -> None:
    written = ReceiptCache()
    texts = write(written, *range(limits.RECEIPTS_WRITTEN_MAX + 1))
    assert [read(text)[0].seq for text in texts] == list(range(len(texts)))
    assert not any(map(written.take, texts))
