"""Rows as the driver holds them."""

from __future__ import annotations

from millrace.pipeline.source import COLUMNS, small


def test_a_span_without_rows_is_a_table_that_spark_takes() -> None:
    table = small([], 0)
    assert table is not None
    assert (table.num_rows, table.schema) == (0, COLUMNS)
    # Of a column without a chunk, Spark cannot tell the type.
    assert [column.num_chunks for column in table.columns] == [1] * len(COLUMNS)
