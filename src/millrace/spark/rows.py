"""The rows of a part, as Spark asked for them: read, chosen, parsed, shaped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.column import Array
from millrace.spark.columns import Shaper, sliced
from millrace.spark.options import Options
from millrace.spark.read import Part, read_part

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def rows_of(options: Options, schema: StructType, part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part."""
    from pyspark.sql.pandas.types import to_arrow_schema

    shaper = Shaper(to_arrow_schema(schema, timezone="UTC"), part.number, part.snapshot)
    keys = None if options.keys is None else pa.array(options.keys, pa.binary())
    for batch in read_part(options.home, part):
        for piece in sliced(batch):
            wanted = _wanted(piece, keys, is_live=options.view == "latest")
            if wanted.num_rows:
                yield shaper.shape(wanted)


def _wanted(batch: pa.RecordBatch, keys: Array | None, *, is_live: bool) -> pa.RecordBatch:
    if is_live and batch.column("value").null_count:
        batch = batch.filter(batch.column("value").is_valid())
    if keys is not None:
        batch = batch.filter(pc.is_in(batch.column("key"), keys))
    return batch
