"""Selects rows of blocks and concatenates blocks, by Arrow instead of row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from millrace.core.format.block import Block
from millrace.errors import Corrupt, Invalid


def take(block: Block, at: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Block:
    """Return a block of these rows, counted from 0."""
    return of_rows(block.arrow(0, 0, 0).take(at))


def join(blocks: Sequence[Block]) -> Block:
    """Concatenate blocks, in their order."""
    if len(blocks) == 1:
        return blocks[0]
    table = pa.Table.from_batches([block.arrow(0, 0, 0) for block in blocks])
    [batch] = table.combine_chunks().to_batches()
    return of_rows(batch)


def of_rows(batch: pa.RecordBatch) -> Block:
    """Return a block of rows that were read; columns that are null are omitted.

    Raises:
        Corrupt: they contradict themselves.
    """
    names = ["value"]
    names += [name for name in ("key", "headers") if batch.column(name).null_count < len(batch)]
    try:
        return Block.of_arrow(batch.select(names))
    except Invalid as error:
        raise Corrupt(f"rows cannot be read: {error.message}") from error
