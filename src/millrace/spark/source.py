"""Queues as a data source of Spark: `format("millrace")`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceWriter
from pyspark.sql.types import StructType

from millrace.spark.writer import BatchWriter


class MillraceSource(DataSource):
    """The data source; it is made anew in every process that has to do with a query."""

    @classmethod
    def name(cls) -> str:
        return "millrace"

    # How Spark calls it is not ours to choose.
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        return BatchWriter(self.options, schema, overwrite=overwrite)
