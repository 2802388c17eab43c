"""Rows in batches of the size that suits Spark, and what its processes need not load."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.spark.columns import sized

MOST = limits.SPARK_BATCH_ROWS


def batch_of(first: int, rows: int, size: int) -> pa.RecordBatch:
    seqs = pa.array(range(first, first + rows), pa.int64())
    return pa.RecordBatch.from_arrays(
        [seqs, pa.array([bytes(size)] * rows, pa.binary())], ["seq", "value"]
    )


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3000)), max_size=12))
def test_rows_keep_their_order_in_batches_of_bounded_size(shapes: list[tuple[int, int]]) -> None:
    most_rows, most_bytes = 16, 4096
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SPARK_BATCH_ROWS", most_rows)
        patch.setattr(limits, "SPARK_BATCH_BYTES", most_bytes)
        first, batches = 0, []
        for rows, size in shapes:
            batches.append(batch_of(first, rows, size))
            first += rows
        found = list(sized(batches))
    assert [seq for batch in found for seq in batch.column("seq").to_pylist()] == list(range(first))
    assert all(batch.num_rows <= most_rows for batch in found)
    largest = max((batch.nbytes for batch in batches), default=0)
    assert all(batch.nbytes <= max(most_bytes, largest) + 64 for batch in found)
    for one, other in pairwise(found):
        fits = one.num_rows + other.num_rows <= most_rows
        is_cut = any(batch.num_rows > most_rows for batch in batches)
        assert is_cut or not fits or one.nbytes + other.nbytes > most_bytes - 64, "joined"


def test_what_has_the_right_size_is_not_copied() -> None:
    large = batch_of(0, MOST, 1)
    [found] = sized([large])
    assert found is large
    halves = list(sized([batch_of(0, 2 * MOST, 1)]))
    assert [one.num_rows for one in halves] == [MOST, MOST]


@pytest.mark.process
def test_the_processes_of_spark_do_not_load_the_engine() -> None:
    """Each of them starts for a query, which waits for it."""
    told = (
        "import sys, pyspark_millrace; from millrace.spark import batch, source, stream, writer; "
        "print([name for name in ('millrace.node', 'lmdb', 'millrace.server.web.app') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
