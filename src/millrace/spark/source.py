"""`format("millrace")`: a queue as Spark reads and writes it.

It has no side effects when it is made: Spark makes it in many processes, often.
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
    """A Millrace queue."""

    @classmethod
    def name(cls) -> str:
        """What `format` names."""
        return "millrace"

    def schema(self) -> str:
        """The columns, as the options choose them."""
        # Whether it is a stream is not known here; the readers check the rest.
        return schema_ddl(read_options(self.options, is_stream=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a queue once."""
        options = read_options(self.options, is_stream=False)
        return (NarrowReader if options.pushdown else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Follows a queue."""
        return StreamReader(read_options(self.options, is_stream=True), schema)

    # How Spark calls it is not ours to choose.
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Adds rows to a queue."""
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Adds micro-batches to a queue."""
        return StreamWriter(self.options, schema, overwrite=overwrite)
