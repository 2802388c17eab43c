"""A site whose folder Spark's processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from millrace import sync
from millrace.batch_jobs.job_context import JobContext, open_job
from millrace.pipeline import Where
from tests.spark.conftest import spark

__all__ = ["spark"]


@pytest.fixture(scope="package")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobContext]:
    folder = tmp_path_factory.mktemp("jobs") / "data"
    with (
        sync.open(folder) as m,
        sync.share(m),
        open_job("tests", Where(path=str(folder)), spark=spark, millrace=m) as found,
    ):
        yield found
