"""Context of a batch job: queues, a Spark session that reaches them, and user transformations."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Protocol

import msgspec
from pyspark.sql import DataFrame

from millrace import limits, sync
from millrace.errors import Invalid, Retry
from millrace.pipeline.opening import Where, opened, shown
from millrace.pipeline.source import Lost
from millrace.pipeline.sparked import said
from millrace.spark.notices import Say, print_notice
from millrace.spark.session import adopt, borrowed, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ProgressCallback(Protocol):
    """Callback for the progress of a job."""

    def __call__(self, done: int, total: int) -> None:
        """Take the number of finished tasks and the total of Spark's active stages."""
        ...


def _silent(done: int, total: int) -> None:
    """Ignore progress."""


class JobContext(msgspec.Struct, frozen=True):
    """Queues, Spark session and callbacks of a job."""

    m: sync.Millrace
    spark: SparkSession
    where: Where
    tell: ProgressCallback = _silent
    say: Say = print_notice

    def options(self, queue: sync.Queue) -> dict[str, str]:
        """Return the options of Spark's reader and writer for a queue."""
        return {"queue": queue.name, "space": queue.space} | self.where.options()

    def read(self, queue: sync.Queue, **options: str) -> DataFrame:
        """Return a queue as a DataFrame with at least `spark.sql.shuffle.partitions` partitions."""
        tasks = self.spark.conf.get("spark.sql.shuffle.partitions") or "1"
        given = {"minPartitions": tasks} | self.options(queue) | options
        return self.spark.read.format("millrace").options(**given).load()

    @contextmanager
    def asking(self, what: str, field: str) -> Iterator[None]:
        """Translate Spark's errors within the context, and report progress.

        Raises:
            Refused, Retry: as `said`.
            Retry: the pin of the snapshot was lost.
        """
        try:
            with said(what, field), _watched(self.spark, self.tell):
                yield
        except Lost as error:
            raise Retry(
                "the snapshot of the job is no longer pinned: it was unpinned, or a day has "
                "passed; run it again",
                field="snapshot",
            ) from error


@contextmanager
def open_job(
    name: str,
    where: Where,
    *,
    conf: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    millrace: sync.Millrace | None = None,
    tell: ProgressCallback = _silent,
    say: Say = print_notice,
) -> Iterator[JobContext]:
    """Open queues and Spark for a job until the context ends.

    A given `spark`, or one that runs in this process, is used and left running. A given `millrace`
    must be open at `where`, and share its folder with Spark's processes.

    Raises:
        NotFound: Java is not installed.
        InUse: another process has the folder open without sharing it.
    """
    with ExitStack() as stack:
        if where.path:
            # Spark's processes may run in another folder.
            where = msgspec.structs.replace(where, path=os.path.abspath(where.path))
        where = stack.enter_context(shown(where))
        m = millrace or stack.enter_context(opened(where, share=True))
        if spark is None:
            spark = stack.enter_context(borrowed(f"millrace {name}", conf or {}, say))
        else:
            adopt(spark)
        yield JobContext(m, spark, where, tell, say)


@contextmanager
def _watched(spark: SparkSession, tell: ProgressCallback) -> Iterator[None]:
    """Report the progress of Spark's tasks; Spark Connect has no status tracker."""
    if tell is _silent or is_connect(spark):
        yield
        return
    over = Event()
    watcher = Thread(target=_watch, args=(spark, tell, over), name="millrace-job", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(spark: SparkSession, tell: ProgressCallback, over: Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(limits.JOB_WATCH_SECONDS):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        if known:
            tell(
                sum(stage.numCompletedTasks for stage in known),
                sum(stage.numTasks for stage in known),
            )


# --- User-defined transformations of rows: a SQL query or a Python function ----------------------

INPUT = "input"
"""Name of the view with the rows."""


def run_sql(frame: DataFrame, sql: str) -> DataFrame:
    """Return the result of a query over `input`."""
    frame.createOrReplaceTempView(INPUT)
    return frame.sparkSession.sql(sql)


def find_function(place: str) -> tuple[Path, str]:
    """Split `file.py:name` into an existing file and the name of a function.

    Raises:
        Invalid: the file does not exist, or the text has another form.
    """
    file, _, name = place.rpartition(":")
    path = Path(file)
    if not file or not path.is_file():
        raise Invalid(f"python is {place!r}, not a function such as mend.py:mend", field="python")
    return path, name


def run_python(frame: DataFrame, place: str) -> DataFrame:
    """Apply the function `file.py:name` to the rows.

    Raises:
        Invalid: the function does not exist, or does not return a DataFrame.
    """
    path, name = find_function(place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise Invalid(f"{path} is not a Python file", field="python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function = vars(module).get(name)
    if not callable(function):
        raise Invalid(f"{path} has no function {name!r}", field="python")
    made = function(frame)
    if not isinstance(made, DataFrame):
        raise Invalid(f"{place} returned {type(made).__name__}, not a DataFrame", field="python")
    return made
