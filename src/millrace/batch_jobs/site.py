"""Where a job works: queues that are open, and a Spark whose processes reach them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Protocol

import msgspec

from millrace import limits, sync
from millrace.errors import Retry
from millrace.pipeline.feed import Lost
from millrace.pipeline.opening import Where, opened
from millrace.pipeline.showing import shown
from millrace.pipeline.sparked import said
from millrace.spark.aloud import Say, aloud
from millrace.spark.session import adopt, borrowed, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Tell(Protocol):
    """Is told how far a job has come."""

    def __call__(self, done: int, total: int) -> None:
        """So many of so many tasks, of what Spark does now, are done."""
        ...


def _silent(done: int, total: int) -> None:
    """Nobody listens."""


class Site(msgspec.Struct, frozen=True):
    """What a job has to work with."""

    m: sync.Millrace
    spark: SparkSession
    where: Where
    tell: Tell = _silent
    say: Say = aloud

    def options(self, queue: sync.Queue) -> dict[str, str]:
        """What tells Spark of a queue."""
        return {"queue": queue.name, "space": queue.space} | self.where.options()

    def read(self, queue: sync.Queue, **options: str) -> DataFrame:
        """A queue as Spark sees it, in as many tasks as there are cores at least."""
        tasks = self.spark.conf.get("spark.sql.shuffle.partitions") or "1"
        given = {"minPartitions": tasks} | self.options(queue) | options
        return self.spark.read.format("millrace").options(**given).load()

    @contextmanager
    def asking(self, what: str, field: str) -> Iterator[None]:
        """What Spark says of work within the context, in our words; progress is told meanwhile.

        Raises:
            Refused, Retry: as `said`.
            Retry: what is read is pinned no longer.
        """
        try:
            with said(what, field), _watched(self.spark, self.tell):
                yield
        except Lost as error:
            raise Retry(
                "what the job reads is no longer pinned: somebody has let it go, or a day has "
                "passed; run it again",
                field="snapshot",
            ) from error


@contextmanager
def at_work(
    name: str,
    where: Where,
    *,
    conf: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    millrace: sync.Millrace | None = None,
    tell: Tell = _silent,
    say: Say = aloud,
) -> Iterator[Site]:
    """A site until the context ends.

    A Spark that is given, or runs in this process already, is used, and goes on afterwards. Queues
    that are given are those of `where`; a folder has to be shared with Spark's processes.

    Raises:
        NotFound: there is no Java.
        InUse: somebody has the folder open, and does not share it.
    """
    with ExitStack() as stack:
        if where.path:
            # Spark's processes may work in another folder.
            where = msgspec.structs.replace(where, path=os.path.abspath(where.path))
        where = stack.enter_context(shown(where))
        m = millrace or stack.enter_context(opened(where, share=True))
        if spark is None:
            spark = stack.enter_context(borrowed(f"millrace {name}", conf or {}, say))
        else:
            adopt(spark)
        yield Site(m, spark, where, tell, say)


@contextmanager
def _watched(spark: SparkSession, tell: Tell) -> Iterator[None]:
    """Tell of Spark's tasks while they run; a Spark that is far away tells nothing."""
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


def _watch(spark: SparkSession, tell: Tell, over: Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not over.wait(limits.JOB_WATCH_SECONDS):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        known = [stage for stage in stages if stage is not None]
        if known:
            tell(
                sum(stage.numCompletedTasks for stage in known),
                sum(stage.numTasks for stage in known),
            )
