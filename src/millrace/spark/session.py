"""A Spark session with settings that suit streams of small batches on one machine.

Each is the one that was measured to matter; whoever names a setting has it their way. Nothing of
this is needed to use the source: any session does.

Rule: through Spark Connect, Java and the settings of Spark itself are the server's. Only what a
session may say of itself is said there.
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
from millrace.spark.aloud import Say, aloud
from millrace.spark.columnar import with_columns
from millrace.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as Far

CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

REMOTE, REMOTE_VARIABLE = "spark.remote", "SPARK_REMOTE"
"""What names a server of Spark Connect: a setting, or a variable of the environment."""

SHOWN_MAX = 30
"""Characters of an address that are shown."""

_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""They print a page of JSON for each query that is refused, of which the error says all."""

LOGGING = Path(__file__).with_name("log4j2.properties")

DAEMON = "spark.python.daemon.module"
"""What starts workers, on each machine of a Spark."""


def defaults() -> dict[str, str]:
    """The settings of a session, unless they are named."""
    cores = os.cpu_count() or 1
    return {
        "spark.master": "local[*]",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark's own manager takes 100 ms more for each micro-batch.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINTS,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.python.udf.buffer.size": str(1024 * 1024),
        "spark.sql.session.timeZone": "UTC",
    }


def settings_of(conf: Mapping[str, str]) -> dict[str, str]:
    """What a session starts with. One that is elsewhere (`spark.remote`) was started by others."""
    if not _is_elsewhere(conf):
        found = defaults() | dict(conf)
        if is_local(conf) and os.environ.get("PYSPARK_PYTHON", sys.executable) == sys.executable:
            # Workers of other machines, and of other interpreters, may lack it.
            found.setdefault(DAEMON, "millrace.spark.daemon")
        return found
    return {"spark.sql.session.timeZone": "UTC"} | dict(conf)


def greeting(settings: Mapping[str, str]) -> str:
    """What is said of a session that starts: one short line, in which no secret can be."""
    where = settings.get(REMOTE) or settings.get("spark.master") or "the place in SPARK_REMOTE"
    # Behind a semicolon, the address of a server may have a token.
    where = where.partition(";")[0].rstrip("/")
    parts = [f"Spark starts at {where[:SHOWN_MAX]}"]
    if is_local(settings):
        parts[0] += " (10 s or so)"
    if "spark.sql.shuffle.partitions" in settings:
        parts.append(f"shuffle.partitions={settings['spark.sql.shuffle.partitions'][:9]}")
    return ", ".join(parts) + "; more: docs/guide/spark-tuning.md"


def session(name: str, **conf: str) -> SparkSession:
    """A session on this machine, or where `conf` says; a line on stderr says so.

    Python's workers are those of this interpreter, unless the environment says otherwise, and Java
    is the one that `find_java` finds: that of `JAVA_HOME`, if it is new enough. Of pandas, which
    nothing here uses, nothing is said; nor are refused queries logged beside their errors. It has
    the jar of `columnar`, unless `spark.millrace.columnar` is "false". It is the session of this
    thread, too: see `adopt`.

    Raises:
        NotFound: there is no Java.
        Invalid: it is to be one of Spark Connect, and what that needs is not installed.
    """
    return _started(name, conf, aloud)


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
    """Whether all of a session with these settings is on this machine."""
    master = conf.get("spark.master", "local")
    return not _is_elsewhere(conf) and master.partition("[")[0] == "local"


def _is_elsewhere(conf: Mapping[str, str]) -> bool:
    return REMOTE in conf or bool(os.environ.get(REMOTE_VARIABLE))


class _Loan:
    """The Spark that `borrowed` has started: a process has one, and threads share it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.users = 0


_loan = _Loan()


@contextmanager
def borrowed(name: str, conf: Mapping[str, str], say: Say = aloud) -> Iterator[SparkSession]:
    """A session until the context ends; where this process has a Spark already, that one is used,
    and goes on. One that was started here ends with the last who has borrowed it."""
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
    """The session of this process, if it has one."""
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
    """Whether Spark is elsewhere, and this process is a client of Spark Connect."""
    return not hasattr(spark, "_jsparkSession")


def adopt(spark: SparkSession) -> None:
    """Make a session that of this thread, and have it know `format("millrace")`.

    Spark finds sources in Python for `write` by the thread's session alone. A thread in which no
    session was made has none, and without the jar of `columnar` `write.format("millrace")` fails
    there with DATA_SOURCE_NOT_FOUND; reading, streams and Spark Connect do not ask for it.
    """
    if not is_connect(spark):
        # Of what Spark offers to programs, this sets it.
        spark.createDataFrame([], "a int")
    _register(spark)


def _register(spark: SparkSession) -> None:
    """Tell a session what `format("millrace")` is, whatever it finds by itself.

    Spark looks once in the life of its process, by a worker of Python's. Where that worker dies, or
    some other source cannot be imported, it finds none ever after.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.udf import _wrap_function

    from millrace.spark.source import MillraceSource

    name = MillraceSource.name()
    if is_connect(spark):
        try:
            spark.dataSource.register(MillraceSource)
        except AnalysisException as error:
            # The session knows it already.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
        return
    # `register` refuses the name where the jar of `columnar` has it, which itself asks for this.
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    if not sources.dataSourceExists(name):
        context = spark.sparkContext
        kind = "org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource"
        made = getattr(context._jvm, kind)(_wrap_function(context, MillraceSource))
        sources.registerDataSource(name, made)


@contextmanager
def apart(spark: SparkSession) -> Iterator[SparkSession]:
    """Another session of the same Spark, with views of its own, until the context ends."""
    if not is_connect(spark):
        made = spark.newSession()
        adopt(made)
        yield made
        # The other one was made this thread's meanwhile.
        adopt(spark)
        return
    # A server that was not asked for anything does not know the session.
    spark.conf.get("spark.sql.session.timeZone")
    clone = cast("Far", spark).cloneSession()
    # Spark 4.2 does not say it of clones, and asks for it when they are stopped.
    clone.release_session_on_close = True
    made = cast("SparkSession", clone)
    try:
        adopt(made)
        yield made
    finally:
        clone.stop()
