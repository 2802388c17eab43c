"""`format("millrace")`: the data source that reads and writes queues.

Instances have no side effects: Spark creates them in many processes, often.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from millrace.spark.batch import BatchReader, NarrowReader
from millrace.spark.options import read_options
from millrace.spark.rows import schema_ddl
from millrace.spark.stream import StreamReader
from millrace.spark.stream_writer import StreamWriter
from millrace.spark.writer import BatchWriter


class MillraceSource(DataSource):
    """A Millrace queue as a data source."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "millrace"

    def schema(self) -> str:
        """Return the columns, as the options choose them."""
        # Stream and batch cannot be distinguished here; the readers check the rest.
        return schema_ddl(read_options(self.options, is_stream=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch."""
        options = read_options(self.options, is_stream=False)
        return (NarrowReader if options.pushdown else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make the reader of a stream."""
        return StreamReader(read_options(self.options, is_stream=True), schema)

    # The signatures are defined by Spark.
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Make the writer of a batch."""
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Make the writer of a stream."""
        return StreamWriter(self.options, schema, overwrite=overwrite)
