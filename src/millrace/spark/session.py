"""Starts Spark sessions with settings for streams of small batches on one machine.

Each setting was chosen by measurement; settings of the caller take precedence. This is optional:
the source works with any session.

Rule: with Spark Connect, Java and Spark's own settings belong to the server. Only settings of the
session itself are passed.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, cast

from millrace.errors import Invalid
from millrace.spark.columnar import with_columns
from millrace.spark.java import find_java
from millrace.spark.notices import Say, print_notice

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as Far

CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

REMOTE, REMOTE_VARIABLE = "spark.remote", "SPARK_REMOTE"
"""The setting and the environment variable that name a Spark Connect server."""

SHOWN_MAX = 30
"""Number of characters of an address that are printed."""

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers that print a page of JSON for each refused query, which repeats the error."""

LOGGING = Path(__file__).with_name("log4j2.properties")

DAEMON = "spark.python.daemon.module"
"""The setting for the module that starts workers, on each machine of a Spark."""


def defaults() -> dict[str, str]:
    """Return the default settings of a session."""
    cores = os.cpu_count() or 1
    return {
        "spark.master": "local[*]",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark's default checkpoint manager takes 100 ms more for each micro-batch.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.python.udf.buffer.size": str(1024 * 1024),
        "spark.sql.session.timeZone": "UTC",
    }


def settings_of(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a new session. A remote one (`spark.remote`) gets no defaults of Spark
    itself.
    """
    if not _is_elsewhere(conf):
        found = defaults() | dict(conf)
        if is_local(conf) and os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
            # Workers of other machines, and of other interpreters, may lack the package.
            found.setdefault(DAEMON, "millrace.spark.daemon")
        return found
    return {"spark.sql.session.timeZone": "UTC"} | dict(conf)


def greeting(settings: Mapping[str, str]) -> str:
    """Return the notice for a session that starts: one short line without secrets."""
    where = settings.get(REMOTE) or settings.get("spark.master") or "the place in SPARK_REMOTE"
    # The address of a server may have a token after a semicolon.
    where = where.partition(";")[0].rstrip("/")
    parts = [f"Spark starts at {where[:SHOWN_MAX]}"]
    if is_local(settings):
        parts[0] += " (10 s or so)"
    if "spark.sql.shuffle.partitions" in settings:
        parts.append(f"shuffle.partitions={settings['spark.sql.shuffle.partitions'][:9]}")
    return ", ".join(parts) + "; more: docs/guide/spark-tuning.md"


def session(name: str, **conf: str) -> SparkSession:
    """Start a session on this machine, or at the address in `conf`, and print a line on stderr.

    Python workers use this interpreter, unless the environment says otherwise, and Java is the one
    that `find_java` finds: that of `JAVA_HOME`, if it is new enough. The warning about pandas,
    which is not used here, is suppressed; so is the log of refused queries, which repeats their
    errors. It has the jar of `columnar`, unless `spark.millrace.columnar` is "false". It becomes
    the session of this thread, too: see `adopt`.

    Raises:
        NotFound: Java is not installed.
        Invalid: Spark Connect is requested, and its dependencies are not installed.
    """
    return _started(name, conf, print_notice)


def _started(name: str, conf: Mapping[str, str], say: Say) -> SparkSession:
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = settings_of(conf)
    if not _is_elsewhere(conf):
        java = find_java()
        os.environ["JAVA_HOME"] = str(java.home)
        settings = with_columns(settings, java, say)
    say(greeting(settings))
    for logger in _LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        found = builder.getOrCreate()
    except ImportError as error:
        raise Invalid(
            f"Spark Connect needs more than Spark itself: {error}; pip install 'pyspark[connect]'",
            field=REMOTE,
        ) from error
    adopt(found)
    return found


def is_local(conf: Mapping[str, str]) -> bool:
    """Return True if a session with these settings runs entirely on this machine."""
    master = conf.get("spark.master", "local")
    return not _is_elsewhere(conf) and master.partition("[")[0] == "local"


def _is_elsewhere(conf: Mapping[str, str]) -> bool:
    return REMOTE in conf or bool(os.environ.get(REMOTE_VARIABLE))


class _Loan:
    """Reference count of the Spark that `borrowed` has started: a process has one, and threads
    share it.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.users = 0


_loan = _Loan()


@contextmanager
def borrowed(name: str, conf: Mapping[str, str], say: Say = print_notice) -> Iterator[SparkSession]:
    """Yield a session until the context ends. An existing Spark of this process is used, and keeps
    running; one that was started here is stopped by its last user.
    """
    with _loan.lock:
        found = _running()
        is_ours = found is None or _loan.users > 0
        if found is not None and is_connect(found):
            adopt(found)
        else:
            found = _started(name, conf, say)
        _loan.users += is_ours
    try:
        yield found
    finally:
        if is_ours:
            with _loan.lock:
                _loan.users -= 1
                if not _loan.users:
                    found.stop()


def _running() -> SparkSession | None:
    """Return the session of this process, or None."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    if not is_remote() and SparkContext._active_spark_context is None:
        return None
    try:
        return SparkSession.active()
    except (PySparkRuntimeError, ImportError):
        return None


def is_connect(spark: SparkSession) -> bool:
    """Return True if Spark is remote, and this process is a client of Spark Connect."""
    return not hasattr(spark, "_jsparkSession")


def adopt(spark: SparkSession) -> None:
    """Make a session the one of this thread, and register `format("millrace")` in it.

    Spark finds Python sources for `write` by the thread's session alone. A thread in which no
    session was made has none, and without the jar of `columnar`, `write.format("millrace")` fails
    there with DATA_SOURCE_NOT_FOUND; reading, streams and Spark Connect do not need it.
    """
    if not is_connect(spark):
        # The only public call of Spark that sets the thread's session.
        spark.createDataFrame([], "a int")
    _register(spark)


def _register(spark: SparkSession) -> None:
    """Register `format("millrace")` in a session, even if Spark's own discovery has failed.

    Spark discovers sources once per process, in a Python worker. If that worker dies, or another
    source cannot be imported, no source is found from then on.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.udf import _wrap_function

    from millrace.spark.source import MillraceSource

    name = MillraceSource.name()
    if is_connect(spark):
        try:
            spark.dataSource.register(MillraceSource)
        except AnalysisException as error:
            # The session has it already.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
        return
    # `register` refuses the name if the jar of `columnar` has it, which itself needs this one.
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    if not sources.dataSourceExists(name):
        context = spark.sparkContext
        kind = "org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource"
        made = getattr(context._jvm, kind)(_wrap_function(context, MillraceSource))
        sources.registerDataSource(name, made)


@contextmanager
def apart(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield another session of the same Spark, with views of its own, until the context ends."""
    if not is_connect(spark):
        made = spark.newSession()
        adopt(made)
        yield made
        # The new session has become the one of this thread.
        adopt(spark)
        return
    # A server creates a session with its first request.
    spark.conf.get("spark.sql.session.timeZone")
    clone = cast("Far", spark).cloneSession()
    # Spark 4.2 does not set this on clones, and requires it when they are stopped.
    clone.release_session_on_close = True
    made = cast("SparkSession", clone)
    try:
        adopt(made)
        yield made
    finally:
        clone.stop()
