"""Deduplication: drops rows that are older than another row of the same key.

Rule 1: rows of one key are passed to one writer (`lane.py`), so that the newest row of a writer is
the newest of the span.

Rule 2: keys and seqs are kept in memory, never rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from millrace.sinks.null_key import check_null_keys

SEQ = "seq"
"""The column that orders two rows; without it, the later row is the newer one."""


def newest(batches: Iterable[pa.RecordBatch], key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the batches without rows that are older than an earlier one of the same key.

    Writing them in this order, each row over the previous one, leaves the newest.

    Raises:
        Invalid: the key of a row is null.
    """
    seen: dict[object, int] = {}
    for batch in check_null_keys(batches, key):
        found: dict[object, int] = {}
        seqs = _seqs(batch)
        for at, name in enumerate(
            zip(*(batch.column(one).to_pylist() for one in key), strict=True)
        ):
            if seqs is None:
                found[name] = at
            elif seqs[at] >= seen.get(name, -1):
                seen[name] = seqs[at]
                found[name] = at
        if len(found) == batch.num_rows:
            yield batch
        elif found:
            yield batch.take(pa.array(sorted(found.values()), pa.int64()))


def _seqs(batch: pa.RecordBatch) -> list[int] | None:
    if SEQ not in batch.schema.names:
        return None
    return [-1 if seq is None else int(seq) for seq in batch.column(SEQ).to_pylist()]
